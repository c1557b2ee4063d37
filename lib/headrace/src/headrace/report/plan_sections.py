"""The sections of a report that follow from the config: mixture, epochs, order, packs, forecast of
reads.
"""

from __future__ import annotations

import numpy as np

from headrace import numbers as n
from headrace.analysis.simulate.forecast import Forecast
from headrace.report.blocks import Block, Chart, Details, Notes, Section, Table, Text, columns
from headrace.report.charts import (
    MOST_SOURCES,
    epochs_chart,
    fill_chart,
    lengths_chart,
    mixture_chart,
    quality_chart,
)
from headrace.report.facts import PlanFacts

_BARS = (
    "The dashed line, 1, is a full shuffle. Above it, batches are more alike than by chance; below"
    " it, they are spread more evenly."
)


def mixture_chart_of(plan: PlanFacts) -> Chart:
    """The chart of target and actual mixture."""
    facts = plan.mixture
    more = (
        f" The {MOST_SOURCES - 1} largest sources each have a line; click others to show the rest"
        " together."
        if len(facts.names) > MOST_SOURCES
        else ""
    )
    return Chart(
        "mixture",
        "Target and actual mixture",
        mixture_chart(facts),
        "Lines: share of the rows. Dots: target, the share that the weights ask for. Click a"
        f" source in the legend to hide it; double-click to show it alone.{more}",
    )


def mixture_section(plan: PlanFacts, steps_done: int) -> Section:
    """Rows, tokens and epochs of each source; ``steps_done`` steps are trained."""
    facts = plan.mixture
    components = plan.plan.components
    steps = int(facts.edge[-1])
    passes = plan.passes_until(steps_done)
    repeats = plan.repeats_after(steps_done)
    blocks: list[Block] = []
    if plan.assumed_steps:
        blocks.append(
            Text(
                f"The config has no num_steps. This page shows the first {n.count(steps)} steps.",
                quiet=True,
            )
        )
    off = facts.off_quota
    planned = facts.target.sum(axis=0)
    drawn = facts.drawn.sum(axis=0)
    tokens = facts.tokens.sum(axis=0)
    rows = [
        [
            name,
            n.percent(float(planned[d] / max(planned.sum(), 1e-12))),
            n.percent(float(drawn[d] / max(drawn.sum(), 1))),
            n.NOTHING if off is None else n.digits(float(off[d])),
            n.short(float(drawn[d])),
            n.short(float(tokens[d])),
            n.digits(components[d].epochs),
            n.digits(passes[d]),
            n.count(repeats[d]),
        ]
        for d, name in enumerate(facts.names)
    ]
    heads = columns(
        "source",
        "target",
        "actual",
        "largest error, rows",
        "rows",
        "tokens",
        "epochs",
        "epochs so far",
        "next epoch near step",
        left=1,
    )
    blocks.append(Table(heads, rows, f"Planned for {n.count(steps)} steps"))
    if off is None:
        blocks.append(
            Text(
                "With this many steps and sources, only a sample is shown, so errors are not"
                " counted.",
                quiet=True,
            )
        )
    figure = epochs_chart(facts, [c.row_tokens for c in components])
    blocks.append(Chart("epochs", "Epochs", figure, "Planned passes over the rows of each source."))
    name, epochs = largest_epochs(plan)
    line = f"{n.short(float(tokens.sum()))} tokens; most epochs: {n.digits(epochs)}, {name}"
    return Section("mixture", "Planned: mixture and epochs", blocks, line)


def order_section(plan: PlanFacts) -> Section:
    """How well the order mixes rows."""
    forecast = plan.plan.unlimited
    blocks: list[Block] = [
        Text(
            f"A batch of {n.count(forecast.batch_size)} rows draws from"
            f" {n.count(forecast.distinct_blocks)} stored"
            f" blocks (mean over {_looked(forecast)})."
        )
    ]
    if all(c.mixes_all for c in plan.plan.components):
        blocks.append(
            Text("Each epoch of a source is a shuffle of all its rows, as good as a full shuffle.")
        )
    elif forecast.variance_ratio:
        blocks.append(
            Chart(
                "quality",
                "Variance ratio of windows of batches",
                quality_chart(forecast),
                "Variance of the mean of a window, for a value that is the same within a stored"
                f" block, divided by that of rows drawn at random. {_BARS}",
            )
        )
    rows = [
        [
            c.name,
            c.shuffle,
            n.count(c.strands) if c.strands else n.NOTHING,
            n.count(c.block_rows) if c.block_rows else n.NOTHING,
            n.short(c.chunk_tokens),
            n.in_bytes(c.open_bytes),
            str(plan.plan.noise.get(c.name, n.NOTHING)),
        ]
        for c in plan.plan.components
    ]
    heads = columns(
        "source",
        "shuffle",
        "strands",
        "rows per block",
        "tokens per chunk",
        "open, all hosts",
        "similarity",
        left=2,
    )
    blocks.append(Table(heads, rows))
    blocks.append(
        Text(
            "Similarity: share of the variance of the loss between blocks (ICC), and the resulting"
            " excess loss. headrace cache inspect CACHE --icc --save measures it.",
            quiet=True,
        )
    )
    ratios = forecast.variance_ratio.values()
    line = f"a batch draws from {n.count(forecast.distinct_blocks)} stored blocks"
    if ratios:
        line += f"; variance ratio at most {n.digits(max(ratios))}"
    return Section("order", "Planned: order", blocks, line)


def documents_section(plan: PlanFacts) -> Section:
    """Lengths of documents and fill of packs."""
    blocks: list[Block] = []
    if plan.lengths:
        figure = lengths_chart(plan.lengths)
        blocks.append(
            Chart("lengths", "Length of documents", figure, "Two bins per octave, in tokens.")
        )
        rows = [
            [
                name,
                n.short(histogram.of),
                n.short(round(histogram.mean)),
                n.short(round(histogram.median)),
                n.short(histogram.longest),
                "all" if histogram.looked == histogram.of else n.short(histogram.looked),
            ]
            for name, histogram in plan.lengths.items()
        ]
        heads = columns("source", "documents", "mean", "median", "longest seen", "sampled", left=1)
        blocks.append(Table(heads, rows))
    else:
        blocks.append(
            Text("The lengths of documents are unknown: no cache has been built yet.", quiet=True)
        )
    if plan.fills:
        figure = fill_chart(plan.fills)
        blocks.append(
            Chart("fill", "Fill of packed rows", figure, "Share of a row that holds tokens.")
        )
        rows = [
            [name, fill.algorithm, n.short(fill.packs), n.percent(fill.mean), n.percent(fill.worst)]
            for name, fill in plan.fills.items()
        ]
        blocks.append(
            Table(columns("source", "algorithm", "rows", "mean fill", "emptiest", left=2), rows)
        )
    else:
        blocks.append(
            Text(
                "No source is packed. Rows are cut from the stream of tokens, so all of them are"
                " full.",
                quiet=True,
            )
        )
    documents = sum(histogram.of for histogram in plan.lengths.values())
    line = f"{n.short(documents)} documents" if plan.lengths else "no cache has been built yet"
    if plan.fills:
        line += f"; rows are {n.percent(min(f.mean for f in plan.fills.values()))} full or more"
    return Section("documents", "Planned: documents and packing", blocks, line)


def forecast_section(plan: PlanFacts) -> Section:
    """Reads that the order needs, by the number of hosts."""
    run = plan.plan
    blocks = list[Block]()
    forecast = run.forecast or run.unlimited
    if run.refused is not None:
        blocks.append(Notes([("problem", "prefetch_bytes", run.refused)]))
    memory = (
        "as much memory as the hosts need"
        if run.forecast is None
        else f"{n.in_bytes(run.config.prefetch_bytes)} per host"
    )
    blocks.append(
        Text(
            f"Counted from the order, with {memory}, over {_looked(forecast)}"
            f"{' (the whole run)' if forecast.exact else ''}. The first batch touches"
            f" {n.count(run.first_batch[0])} stored chunks,"
            f" {n.in_bytes(run.first_batch[1])}."
        )
    )
    rows = [
        [
            n.count(h.hosts),
            f"{h.reads_per_block:.3f}",
            n.digits(h.reads_per_step),
            n.digits(h.reads_per_step_busiest),
            n.in_bytes(h.bytes_per_step),
            n.in_bytes(h.resident_bytes),
            n.in_bytes(h.cold_start_bytes),
            f"{h.burst:.2f} ×",
        ]
        for h in forecast.by_hosts
    ]
    heads = columns(
        "hosts",
        "reads per block per epoch",
        "reads per host per step",
        "on the busiest host",
        "bytes per host per step",
        "memory per host",
        "read at the start",
        "burst",
    )
    blocks.append(Table(heads, rows, "Forecast of reads"))
    first = forecast.by_hosts[0]
    line = f"{first.reads_per_block:.2f} reads per block per epoch on {n.count(first.hosts)} host"
    return Section("forecast", "Planned: reads", blocks, line, run.refused is None)


def config_section(plan: PlanFacts) -> Section:
    """The config, resolved."""
    return Section(
        "config",
        "Config",
        [Details("The config with all defaults, as YAML", plan.plan.original.to_yaml())],
        "as YAML, with all defaults",
    )


def forecast_for(plan: PlanFacts | None, hosts: int) -> tuple[float, float] | None:
    """Forecast block fetches and bytes of a host per step for a number of hosts; None if there is
    no forecast.
    """
    if plan is None:
        return None
    by_hosts = (plan.plan.forecast or plan.plan.unlimited).by_hosts
    return next(
        ((one.reads_per_step, one.bytes_per_step) for one in by_hosts if one.hosts == hosts), None
    )


def largest_epochs(plan: PlanFacts) -> tuple[str, float]:
    """The source with the most epochs."""
    epochs = [c.epochs or 0.0 for c in plan.plan.components]
    k = int(np.argmax(epochs))
    return plan.plan.components[k].name, epochs[k]


def _looked(forecast: Forecast) -> str:
    windows = [
        f"{n.count(look.first_step)} to {n.count(look.stop_step - 1)}" for look in forecast.looks
    ]
    return f"steps {' and '.join(windows)}"
