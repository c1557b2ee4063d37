"""The parts of a report that come from the run's own counters: reads, waiting, stalls."""

from __future__ import annotations

from headrace.report import numbers as n
from headrace.report.blocks import Block, Chart, Section, Table, Text, columns
from headrace.report.charts import loader_time_chart, measured_chart, stalls_chart, waits_chart
from headrace.report.facts import ReportFacts
from headrace.report.plan_sections import forecast_for
from headrace.report.run_records import HostSeries, RunRecords

WAITING_BAR = 0.02
"""Share of waiting above which the data holds up training; see docs/metrics.md."""
MOST_STALLS = 100
MOST_HOSTS = 10
_HELP = {
    "start": "Nothing: it happens once for each start.",
    "store": "Hedged requests, more prefetch_bytes, a nearer store.",
    "decode": "Free CPU cores, caches without compression.",
    "check": "A faster disk, fewer other readers.",
    "budget": "More prefetch_bytes.",
    "plan": "Free CPU cores.",
    "gather": "Free CPU cores.",
    "transfer": "Fewer small devices a process, a faster link.",
    "dataset": "A faster function.",
    "trainer ahead": "Fewer Python threads beside the loader.",
}
_NOT_MEASURED = (
    "Nothing is measured yet. In the training loop, RunLog(loader, folder, config=config) writes the loader's counters"
    " into the run's folder; see docs/report.md."
)


def reads_section(facts: ReportFacts) -> Section:
    """Measured reads beside the forecast."""
    records = facts.records
    if not records.series:
        return Section("reads", "Reads: measured", [Text(_NOT_MEASURED, quiet=True)])
    series = _shown(records)
    expected = forecast_for(facts.plan, records.hosts)
    hosts = f"{records.hosts} hosts" if records.hosts > 1 else "1 host"
    blocks: list[Block] = [*_shown_note(records)]
    fetches = measured_chart(
        series,
        [s.per_batch("block_fetches") for s in series],
        "block fetches a step",
        expected=None if expected is None else (f"forecast, {hosts}", expected[0]),
    )
    read = measured_chart(
        series,
        [s.per_batch("bytes_read") / 2**20 for s in series],
        "MiB a step",
        expected=None if expected is None else (f"forecast, {hosts}", expected[1] / 2**20),
    )
    blocks += [
        Chart(
            "fetches",
            "Blocks read by a host in a step",
            fetches,
            "Reading runs ahead of the batches: the steps after a start read more. Peaks may run out of the frame.",
        ),
        Chart("bytes", "Bytes read by a host in a step", read, "Decoded bytes of the blocks that were read."),
        Table(
            columns("host", "steps", "rows", "blocks read", "read", "reads a row", "from memory", "retries", "hedges"),
            [_reads_row(s) for s in records.series],
            "In all",
        ),
    ]
    return Section("reads", "Reads: measured", blocks)


def waiting_section(facts: ReportFacts) -> Section:
    """How long the trainer waited, and where the loader spent its time."""
    records = facts.records
    if not records.series:
        return Section("waiting", "Waiting", [Text(_NOT_MEASURED, quiet=True)])
    series = _shown(records)
    worst = max(records.series, key=lambda s: s.total("wait_s"))
    of = f"host {worst.host}, which waited longest" if len(records.series) > 1 else "the only host"
    share = measured_chart(
        series,
        [s.per_second("wait_s") for s in series],
        "share of time",
        expected=(f"{n.percent(WAITING_BAR)}, the bar", WAITING_BAR),
        tickformat=".2~%",
    )
    speed = measured_chart(series, [s.per_second("batches") for s in series], "batches a second")
    queue = measured_chart(
        series, [s.levels["queue_occupancy"] for s in series], "ready / room", tickformat=".0%", range=[0, 1.05]
    )
    blocks: list[Block] = [
        *_shown_note(records),
        Chart(
            "waiting",
            "Share of the time that the trainer waited",
            share,
            "Below the bar the loader is not what holds up training. Peaks may run out of the frame.",
        ),
        Chart("waits", "Wait for a batch", waits_chart(worst), f"Of the last 10,000 batches of {of}."),
        Chart(
            "loader-time",
            "Where the loader's thread spent its time",
            loader_time_chart(worst),
            f"On {of}. Most of it overlaps with training; it matters where the trainer waits.",
        ),
        Chart("speed", "Speed", speed, "Batches that training took."),
        Chart(
            "queue",
            "Ready batches when the trainer asks",
            queue,
            "Near 100%: the loader is ahead. Near 0: the trainer waits.",
        ),
    ]
    return Section("waiting", "Waiting", blocks)


def stalls_section(facts: ReportFacts) -> Section:
    """Waits far above the usual, and what they are put down to."""
    stalls = facts.records.stalls
    if not facts.records.series:
        return Section("stalls", "Stalls", [Text(_NOT_MEASURED, quiet=True)])
    if not stalls:
        return Section("stalls", "Stalls", [Text("None: no wait was far above the usual.")])
    causes = sorted({s.cause for s in stalls}, key=lambda cause: -sum(s.wait_s for s in stalls if s.cause == cause))
    by_cause = [
        [cause, n.count(len(of)), n.duration(sum(of)), n.duration(max(of)), _HELP.get(cause, "")]
        for cause in causes
        for of in [[s.wait_s for s in stalls if s.cause == cause]]
    ]
    longest = sorted(stalls, key=lambda s: -s.wait_s)[:MOST_STALLS]
    rows = [
        [
            n.count(s.step),
            n.count(s.host),
            n.duration(s.wait_s),
            s.cause,
            "" if s.array is None else f"chunk {s.block} of {s.array}",
            s.detail,
        ]
        for s in sorted(longest, key=lambda s: (s.step, s.host))
    ]
    shown = "All that were kept"
    if len(stalls) > MOST_STALLS:
        shown = f"The {MOST_STALLS} longest of {n.count(len(stalls))}"
    blocks: list[Block] = [
        Chart(
            "stalls",
            "Stalls by step",
            stalls_chart(stalls),
            "Waits far above the usual; by default those above 50 ms and five times the median.",
        ),
        Table(
            [*columns("cause", "stalls", "together", "longest", left=1), ("what helps", "prose")], by_cause, "By cause"
        ),
        Table(
            [
                ("step", "right"),
                ("host", "right"),
                ("waited", "right"),
                ("cause", "left"),
                ("where", "code"),
                ("detail", "prose"),
            ],
            rows,
            shown,
        ),
    ]
    return Section("stalls", "Stalls", blocks)


def _shown(records: RunRecords) -> tuple[HostSeries, ...]:
    """The hosts that charts show: of very many, those that waited longest."""
    if len(records.series) <= MOST_HOSTS:
        return records.series
    worst = sorted(records.series, key=lambda s: -s.total("wait_s"))[:MOST_HOSTS]
    return tuple(sorted(worst, key=lambda s: s.host))


def _shown_note(records: RunRecords) -> list[Block]:
    if len(records.series) <= MOST_HOSTS:
        return []
    return [Text(f"Charts show the {MOST_HOSTS} of {len(records.series)} hosts that waited longest.", quiet=True)]


def _reads_row(s: HostSeries) -> list[str]:
    rows, fetches, hits = s.total("examples_requested"), s.total("block_fetches"), s.total("block_hits")
    return [
        n.count(s.host),
        n.count(s.total("batches")),
        n.count(rows),
        n.count(fetches),
        n.size(s.total("bytes_read")),
        n.digits(fetches / rows) if rows else n.NOTHING,
        n.percent(hits / (hits + fetches)) if hits + fetches else n.NOTHING,
        n.count(s.total("retries")),
        n.count(s.total("hedges")),
    ]
