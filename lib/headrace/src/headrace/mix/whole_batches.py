"""``policy: whole_batches``: every batch comes from one component, and batches are distributed as
``quota`` does with rows.

For batches of similar rows: buckets of documents of one length, or tasks that must not share a
step. All batches have the same number of tokens.

Invariant: after any step, each component is within one batch of the share that its weights ask for
(the guarantee of :class:`~headrace.mix.stages.Stages` for rows, applied to batches); a step depends
only on earlier steps. Price: that of ``quota`` with batches of one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError
from headrace.mix.policy import Anchor, MixingPolicy, StepTable
from headrace.mix.schedule import BatchSchedule
from headrace.mix.shares import UNLIMITED
from headrace.mix.stages import Stage, Stages


class WholeBatches(MixingPolicy):
    """Batches of one component each.

    Args:
        names: As for :class:`~headrace.mix.stages.Stages`, also the following ones.
        limits: Rounded down to whole batches.

    Raises:
        ConfigError: batches of several sizes, or a largest share of a batch.

    Example:
        >>> from headrace.mix.blend import Blend
        >>> stages = [Stage(0, Blend({"short": 3, "long": 1}))]
        >>> draws = WholeBatches(["short", "long"], stages, BatchSchedule(8), [None] * 2)
        >>> [draws.counts_at(step).tolist() for step in range(4)], draws.starts_at(400).tolist()
        ([[8, 0], [8, 0], [0, 8], [8, 0]], [2400, 800])
    """

    name = "whole_batches"
    follows_sizes = False

    def __init__(
        self,
        names: Sequence[str],
        stages: Sequence[Stage],
        batch: BatchSchedule,
        limits: Sequence[int | None],
        planned: int | None = None,
    ) -> None:
        check_batches(batch, {n: s for stage in stages for n, s in stage.max_share.items()})
        self.batch = batch
        self.components = len(names)
        self._rows = batch.max_size
        limits = [None if limit is None else limit // self._rows for limit in limits]
        self._batches = Stages(names, stages, BatchSchedule(1), limits, planned)

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        return self._batches.starts_at(step) * self._rows

    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        return np.repeat(self._batches.components_at(step), self._rows)

    def tables_between(self, first: int, stop: int) -> StepTable | None:
        if (batches := self._batches.tables_between(first, stop)) is None:
            return None
        component, number = batches
        return np.repeat(component, self._rows), (
            number[:, None] * self._rows + np.arange(self._rows)
        ).ravel()

    def supply(self) -> Int64[np.ndarray, " d"]:
        batches = self._batches.supply()
        return np.where(batches >= UNLIMITED, UNLIMITED, batches * self._rows)

    def anchor_at(self, step: int) -> Anchor | None:
        return self._batches.anchor_at(step)

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        self._batches.use_anchor(anchor)


def check_batches(batch: BatchSchedule, max_share: Mapping[str, float]) -> None:
    """Raises ConfigError for settings that batches of one component cannot meet."""
    if len(batch.points) > 1:
        cure = "Keep one batch_size, or use policy: quota."
        raise ConfigError(
            "does not go with a batch_size that changes",
            field="policy",
            value="whole_batches",
            cure=cure,
        )
    if max_share:
        name = next(iter(max_share))
        cure = "Leave it out, or use policy: quota."
        raise ConfigError(
            "does not go with policy whole_batches",
            field=f"components.{name}.max_share",
            value=max_share[name],
            cure=cure,
        )
