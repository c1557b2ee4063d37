"""``policy: whole_batches``: every batch comes from one component, and batches are distributed as
``quota`` does with rows.

For batches of similar rows: buckets of documents of one length, or tasks that must not share a
step. All batches have the same number of tokens.

Invariant: after any step, each component is within one batch of the share that its weights ask for
(the guarantee of :class:`~headrace.mix.stages.Stages` for rows, applied to batches); a step depends
only on earlier steps. Price: that of ``quota`` with batches of one row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError
from headrace.mix.policies.kind import PolicyInputs, PolicyKind
from headrace.mix.policy import Anchor, MixingPolicy, StepTable
from headrace.mix.schedule import BatchSchedule
from headrace.mix.shares import UNLIMITED
from headrace.mix.stage_config import MixtureConfig
from headrace.mix.stages import Stages


class WholeBatches(MixingPolicy):
    """Batches of one component each.

    Args:
        inputs: Inputs of the policy. Limits are rounded down to whole batches.

    Raises:
        ConfigError: batches of several sizes, or a largest share of a batch.

    Example:
        >>> from headrace.mix.blend import Blend
        >>> from headrace.mix.stages import Stage
        >>> stages = [Stage(0, Blend({"short": 3, "long": 1}))]
        >>> draws = WholeBatches(
        ...     PolicyInputs(["short", "long"], stages, BatchSchedule(8), [99, 99], [None] * 2, 16)
        ... )
        >>> [draws.counts_at(step).tolist() for step in range(4)], draws.starts_at(400).tolist()
        ([[8, 0], [8, 0], [0, 8], [8, 0]], [2400, 800])
    """

    name = "whole_batches"
    follows_sizes = False

    def __init__(self, inputs: PolicyInputs) -> None:
        check_whole(
            inputs.batch, {n: s for stage in inputs.stages for n, s in stage.max_share.items()}
        )
        self.batch, self.components, self._rows = (
            inputs.batch,
            len(inputs.names),
            inputs.batch.max_size,
        )
        limits = [None if limit is None else limit // self._rows for limit in inputs.limits]
        self._batches = Stages(
            inputs.names, inputs.stages, BatchSchedule(1), limits, inputs.planned
        )

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


class WholeBatchesKind(PolicyKind):
    """``policy: whole_batches``."""

    def check(self, config: MixtureConfig) -> None:
        check_whole(config.batch, config.max_share)

    def make(self, inputs: PolicyInputs) -> WholeBatches:
        return WholeBatches(inputs)


def check_whole(batch: BatchSchedule, max_share: Mapping[str, float]) -> None:
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
