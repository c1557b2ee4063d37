"""Judges the figures of a forecast and tells what to change if one is bad.

Only figures with a stated bound are judged. Remedies are those of
:mod:`headrace.analysis.check.findings`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from headrace.analysis.excess import SourceExcess
from headrace.analysis.resolved import OrderFacts
from headrace.analysis.simulate.forecast import Forecast, HostForecast
from headrace.config.lm_data import LmDataConfig
from headrace.errors import command_line, format_count

EPOCHS = 4.0
"""Passes over a source that are about as good as new text (Muennighoff et al. 2023, Scaling
Data-Constrained Language Models).
"""
SHARED_READS = 1.5
"""Reads of a block per epoch above which hosts count as sharing it."""
EXCESS = 1.1
"""Excess loss, or variance of a batch's mean, relative to a full shuffle, above which an order is
reported.
"""
BURST = 4.0
"""Largest good ratio of most to mean reads per step: the bar of
scripts/bench/bench_braid_reads.py.
"""


class Judgment(NamedTuple):
    """One figure: ``good``, ``high``, ``low`` or ``unknown``, and why or what to change."""

    level: str
    figure: str
    text: str

    def __str__(self) -> str:
        return f"{self.level} {self.figure}: {self.text}"


NOT_JUDGED = Judgment(
    "unknown",
    "MiB per step, cold start and cost",
    "not judged, as what is good depends on the store",
)
"""The figures of a forecast that have no bound of their own."""


def judge_forecast(
    forecast: Forecast,
    config: LmDataConfig,
    orders: Collection[OrderFacts],
    noise: Mapping[str, SourceExcess],
) -> list[Judgment]:
    """Judges reads, memory, bursts and mixing quality; the worst number of hosts counts. ``orders``
    are those of all components.
    """
    kinds = {order.kind for order in orders}
    neediest = max(forecast.by_hosts, key=lambda h: h.open_bytes)
    lacks = neediest.open_bytes > config.prefetch_bytes
    memory = (
        f"{config.prefetch_bytes:,}; the shuffle keeps {neediest.open_bytes:,} bytes open on"
        f" {format_count(neediest.hosts, 'host')}"
    )
    raised = f"Raise prefetch_bytes to {neediest.open_bytes * 5 // 4:,}."
    if any(order.reads_rows for order in orders):
        raised = sharing_cure(config, orders)
    judgments = [
        Judgment("low", "prefetch_bytes", f"{memory}. {raised}")
        if lacks
        else Judgment("good", "prefetch_bytes", memory)
    ]
    if forecast.steps * forecast.batch_size < 4 * sum(order.strands for order in orders):
        judgments += [
            Judgment("unknown", name, "too few steps to tell")
            for name in ("reads per block per epoch", "burst")
        ]
    else:
        cure = raised if lacks else sharing_cure(config, orders)
        judgments += [_judge_reads(forecast, config, cure), _judge_bursts(forecast.by_hosts, kinds)]
    variance = max(forecast.variance_ratio.values(), default=1.0)
    if all(order.mixes_all for order in orders):
        ratio = f"a variance ratio other than 1 ({variance:.2f} at most) is chance"
        text = f"each epoch is a shuffle of all rows of a source; {ratio}"
        return [*judgments, Judgment("good", "order", text)]
    return [*judgments, _judge_order(forecast, config, noise, variance)]


def _judge_reads(forecast: Forecast, config: LmDataConfig, cure: str) -> Judgment:
    setting = config.exchange_setting
    worst = max(forecast.by_hosts, key=lambda h: h.reads_with(setting))
    reads = worst.reads_with(setting)
    text = f"{reads:.2f} on {format_count(worst.hosts, 'host')}"
    if reads > SHARED_READS:
        return Judgment("high", "reads per block per epoch", f"{text}. {cure}")
    return Judgment("good", "reads per block per epoch", f"{text} (up to {SHARED_READS:g})")


def _judge_bursts(by_hosts: tuple[HostForecast, ...], kinds: Collection[str]) -> Judgment:
    """Only for hosts that read in most steps; otherwise every read is a burst and tells nothing."""
    bursts = [h for h in by_hosts if h.reads_per_step * h.hosts >= 1]
    if not bursts:
        return Judgment(
            "unknown", "burst", "not judged, as most steps read nothing and any read is a burst"
        )
    worst = max(bursts, key=lambda h: h.burst)
    text = f"{worst.burst:.1f} x the mean on {format_count(worst.hosts, 'host')}"
    if worst.burst <= BURST:
        return Judgment("good", "burst", f"{text} (up to {BURST:g} x)")
    cure = (
        "Raise shuffle.strands."
        if "braid" in kinds
        else "Leave shuffle out: the braided shuffle is the default."
    )
    return Judgment("high", "burst", f"{text}. {cure}")


def _judge_order(
    forecast: Forecast, config: LmDataConfig, noise: Mapping[str, SourceExcess], variance: float
) -> Judgment:
    if variance <= EXCESS:
        return Judgment(
            "good", "variance ratio", f"{variance:.2f} at most (up to {EXCESS:g}; 1: full shuffle)"
        )
    why = f"the variance ratio is {variance:.2f}, above {EXCESS:g}"
    unknown = [name for name in config.components if name not in noise]
    name = max(noise, key=lambda name: noise[name].excess, default="")
    if name and noise[name].excess > EXCESS:
        cure = noise[name].cure(config.components[name].caches[0])
        return Judgment(
            "high", "excess loss", f"{noise[name].excess - 1:+.0%} of {name}; {why}. {cure}"
        )
    if unknown:
        command = command_line(
            "cache inspect",
            config.components[unknown[0]].caches[0],
            icc=True,
            seq_len=config.phases[0][1],
            batch_size=forecast.batch_size,
            save=True,
        )
        cure = f"Measure how alike neighbours are: {command}"
        return Judgment(
            "unknown", "excess loss", f"depends on the text of {unknown[0]}; {why}. {cure}"
        )
    return Judgment(
        "good",
        "excess loss",
        f"{noise[name].excess - 1:+.0%} at most (up to {EXCESS - 1:+.0%}); {why}",
    )


def sharing_cure(config: LmDataConfig, orders: Collection[OrderFacts]) -> str:
    """What to change if hosts read the same blocks. ``orders`` are those of all components."""
    if config.row_order == "stream":
        return (
            "Use row_order: locality, which leaves each batch as it is and orders the rows within"
            " it."
        )
    if any(order.reads_rows for order in orders):
        return (
            "Leave shuffle out: the braided shuffle mixes batches as well and reads each chunk"
            " about once."
        )
    if any(order.kind == "block" for order in orders):
        return "Leave shuffle out: the braided shuffle keeps hosts at blocks of their own."
    if config.exchange_setting == "off":
        return "Use row_exchange: auto: hosts pass rows to each other, and each block is read once."
    return "Use more rows per host, smaller chunks, or fewer components."
