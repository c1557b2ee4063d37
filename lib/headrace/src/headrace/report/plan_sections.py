"""The parts of a report that follow from the config: mixture, epochs, order, packs, forecast of reads."""

from __future__ import annotations

import numpy as np

from headrace.analysis.simulate.forecast import Forecast
from headrace.report import numbers as n
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
    "Dashed: 1, a full shuffle. Bars above it mean batches that are more alike than chance; below it, batches that are"
    " spread more evenly."
)


def mixture_section(plan: PlanFacts) -> Section:
    """Mixture wanted against realised, and epochs."""
    facts, components = plan.mixture, plan.plan.components
    steps = int(facts.edge[-1])
    blocks: list[Block] = []
    if plan.assumed_steps:
        blocks.append(Text(f"The config has no num_steps: the first {n.count(steps)} steps are shown.", quiet=True))
    more = f" The {MOST_SOURCES - 1} largest sources are lines of their own." if len(facts.names) > MOST_SOURCES else ""
    blocks.append(
        Chart(
            "mixture",
            "Wanted and realised mixture",
            mixture_chart(facts),
            "Lines: the share of rows that are drawn. Dots: the share that the weights ask for. A click on a source in"
            f" the legend hides it, a double click shows it alone.{more}",
        )
    )
    off = facts.off_quota
    planned, drawn, tokens = facts.wanted.sum(axis=0), facts.drawn.sum(axis=0), facts.tokens.sum(axis=0)
    rows = [
        [
            name,
            n.percent(float(planned[d] / max(planned.sum(), 1e-12))),
            n.percent(float(drawn[d] / max(drawn.sum(), 1))),
            n.NOTHING if off is None else n.digits(float(off[d])),
            n.count(float(drawn[d])),
            n.short(float(tokens[d])),
            n.digits(components[d].epochs),
        ]
        for d, name in enumerate(facts.names)
    ]
    heads = columns("source", "wanted", "realised", "rows off, at most", "rows", "tokens", "epochs", left=1)
    blocks.append(Table(heads, rows, f"The first {n.count(steps)} steps"))
    if off is None:
        blocks.append(Text("So many steps and sources are sampled, so rows off quota are not counted.", quiet=True))
    figure = epochs_chart(facts, [c.row_tokens for c in components])
    blocks.append(Chart("epochs", "Epochs used", figure, "Passes over the rows of each source that are trained on."))
    return Section("mixture", "Mixture and epochs", blocks)


def order_section(plan: PlanFacts) -> Section:
    """How well rows are mixed."""
    forecast = plan.plan.unlimited
    blocks: list[Block] = [
        Text(
            f"A batch of {n.count(forecast.batch_size)} rows draws from {n.count(forecast.distinct_blocks)} stored"
            f" blocks (mean over {_looked(forecast)})."
        )
    ]
    if forecast.variance_ratio:
        blocks.append(
            Chart(
                "quality",
                "Variance ratio of windows of batches",
                quality_chart(forecast),
                "Variance of the mean of a window, for a value that is the same within a stored block, over that of"
                f" independent rows. {_BARS}",
            )
        )
    rows = [
        [
            c.name,
            c.shuffle,
            n.count(c.strands) if c.strands else n.NOTHING,
            n.count(c.block_rows) if c.block_rows else n.NOTHING,
            n.count(c.chunk_tokens),
            n.size(c.open_bytes),
            str(plan.plan.noise.get(c.name, n.NOTHING)),
        ]
        for c in plan.plan.components
    ]
    heads = ("source", "shuffle", "strands", "rows of a block", "tokens of a chunk", "open, all hosts", "likeness")
    blocks.append(Table(columns(*heads, left=2), rows))
    text = "Likeness: the share of losses' variance between blocks, and what the order makes of it over a full shuffle."
    blocks.append(Text(f"{text} headrace icc CACHE --save measures it.", quiet=True))
    return Section("order", "Quality of the order", blocks)


def documents_section(plan: PlanFacts) -> Section:
    """Lengths of documents and fill of packs."""
    blocks: list[Block] = []
    if plan.lengths:
        figure = lengths_chart(plan.lengths)
        blocks.append(Chart("lengths", "Length of documents", figure, "Two bins an octave, in tokens."))
        rows = [
            [
                name,
                n.count(histogram.of),
                n.count(histogram.mean),
                n.count(histogram.median),
                n.count(histogram.longest),
                "all" if histogram.looked == histogram.of else n.short(histogram.looked),
            ]
            for name, histogram in plan.lengths.items()
        ]
        heads = columns("source", "documents", "mean", "median", "longest seen", "looked at", left=1)
        blocks.append(Table(heads, rows))
    else:
        blocks.append(Text("Lengths of documents are not known: no cache is there yet.", quiet=True))
    if plan.fills:
        figure = fill_chart(plan.fills)
        blocks.append(Chart("fill", "Fill of packs", figure, "Share of a row's places that hold a token."))
        rows = [
            [name, fill.algorithm, n.count(fill.packs), n.percent(fill.mean), n.percent(fill.worst)]
            for name, fill in plan.fills.items()
        ]
        blocks.append(Table(columns("source", "algorithm", "packs", "mean fill", "emptiest", left=2), rows))
    else:
        blocks.append(Text("No source is packed: rows are cut from the stream of tokens, so all are full.", quiet=True))
    return Section("documents", "Documents and packs", blocks)


def forecast_section(plan: PlanFacts) -> Section:
    """Reads that the order needs, by the number of hosts."""
    run, blocks = plan.plan, list[Block]()
    forecast = run.forecast or run.unlimited
    if run.refused is not None:
        blocks.append(Notes([("problem", "prefetch_bytes", run.refused)]))
    memory = "all the memory that hosts want" if run.forecast is None else f"{n.size(run.prefetch_bytes)} a host"
    blocks.append(
        Text(
            f"Counted from the order, with {memory}, over {_looked(forecast)}"
            f"{' (all of the run)' if forecast.exact else ''}. The first batch touches"
            f" {n.count(run.first_batch_chunks)} stored chunks, {n.size(run.first_batch_bytes)}."
        )
    )
    rows = [
        [
            n.count(h.hosts),
            f"{h.reads_per_block:.3f}",
            n.digits(h.reads_per_step),
            n.digits(h.reads_per_step_busiest),
            n.size(h.bytes_per_step),
            n.size(h.resident_bytes),
            n.size(h.cold_start_bytes),
            f"{h.burst:.2f} ×",
        ]
        for h in forecast.by_hosts
    ]
    reads = ("reads of a block, an epoch", "reads a host and step", "the busiest host", "read a host and step")
    heads = ("hosts", *reads, "held by a host", "cold start", "burst")
    blocks.append(Table(columns(*heads), rows, "Forecast of reads"))
    return Section("forecast", "Reads: forecast", blocks)


def config_section(plan: PlanFacts) -> Section:
    """The config, resolved."""
    return Section("config", "Config", [Details("The config with all defaults, as YAML", plan.plan.config.to_yaml())])


def forecast_for(plan: PlanFacts | None, hosts: int) -> tuple[float, float] | None:
    """Block fetches and bytes of a host in a step that are forecast for so many hosts; None if they are not."""
    if plan is None:
        return None
    by_hosts = (plan.plan.forecast or plan.plan.unlimited).by_hosts
    return next(((one.reads_per_step, one.bytes_per_step) for one in by_hosts if one.hosts == hosts), None)


def largest_epochs(plan: PlanFacts) -> tuple[str, float]:
    """The source that is passed over most often."""
    epochs = [c.epochs or 0.0 for c in plan.plan.components]
    k = int(np.argmax(epochs))
    return plan.plan.components[k].name, epochs[k]


def _looked(forecast: Forecast) -> str:
    windows = [f"{n.count(look.first_step)} to {n.count(look.stop_step - 1)}" for look in forecast.looks]
    return f"steps {' and '.join(windows)}"
