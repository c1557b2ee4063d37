"""The section of a report about figures that the training program logged in addition to the
loader's counters.

``RunLog(...)(step, rollout=dataset.metrics(step), train=losses)`` writes ``rollout/reward_mean``,
``train/entropy`` and so on. Names that differ only in their last word (``_mean``, ``_max``, ...)
share a chart, as do all shares of a group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from headrace import numbers as n
from headrace.errors import format_count
from headrace.report.blocks import Block, Chart, Section, Table, Text, columns
from headrace.report.charts import lines_chart
from headrace.report.run_records import Points

MOST_CHARTS = 24
BY_SOURCE = "loss_by_source"
"""Begins the names of figures of sources, which share a chart."""
_LAST_WORD = re.compile(r"_(mean|std|min|max|p\d+)$")


def figures_section(figures: Mapping[str, Points]) -> Section:
    """A chart for each family of figures that are not always zero, and a table of all figures."""
    families: dict[str, dict[str, Points]] = {}
    for name, points in sorted(figures.items()):
        if points[1].any():  # counters that are always zero are only in the table
            families.setdefault(_family(name), {})[name] = points
    blocks: list[Block] = [
        Chart(f"own-{k}", family, lines_chart(lines))
        for k, (family, lines) in enumerate([*families.items()][:MOST_CHARTS])
    ]
    if len(families) > MOST_CHARTS:
        blocks.append(
            Text(f"The first {MOST_CHARTS} of {len(families)} charts are shown.", quiet=True)
        )
    heads = columns("figure", "steps", "last", "mean", "smallest", "largest", left=1)
    blocks.append(
        Table(
            heads,
            [_row(name, *points) for name, points in sorted(figures.items())],
            "All, as logged",
        )
    )
    line = format_count(len(figures), "figure")
    return Section("program", "Logged: rollouts and losses", blocks, line)


def _family(name: str) -> str:
    """The family of a name: names of one family share a chart.

    Example:
        >>> [_family(name) for name in ("train/ratio_max", "train/clip_low_share", "train/kl")]
        ['train/ratio', 'train: shares', 'train/kl']
        >>> _family("loss_by_source/web")
        'loss_by_source'
    """
    if name.startswith(f"{BY_SOURCE}/"):
        return BY_SOURCE
    if name.endswith("_share"):
        return f"{name.partition('/')[0]}: shares"
    return _LAST_WORD.sub("", name)


def _row(name: str, steps: np.ndarray, values: np.ndarray) -> list[str]:
    there = values[np.isfinite(values)]
    figures = [there[-1], there.mean(), there.min(), there.max()] if there.size else [None] * 4
    return [
        name,
        n.count(steps.size),
        *(n.digits(None if value is None else float(value)) for value in figures),
    ]
