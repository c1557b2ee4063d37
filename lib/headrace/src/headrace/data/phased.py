"""``PhasedDataset``: rows of another length from a step on; each source goes on with what no row has touched yet.

The idea is in :mod:`headrace.index.phases`, the construction in :mod:`headrace.data.phased_mixture`. Here are the two
datasets that it needs: one whose batches come from another dataset from a step on, and a component that first finishes
an epoch and then goes round the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.data.batch import PackedBatch
from headrace.data.dataset import PlannedDataset
from headrace.data.rows import Rows, RowSource, masks_of
from headrace.errors import ConfigError
from headrace.index.remap import IndexMap
from headrace.index.schedule import BatchSchedule
from headrace.metrics import ReadStats


@dataclasses.dataclass(frozen=True)
class PhaseChange:
    """What a change of length meant for one component.

    Attributes:
        step: First step of the new length.
        component: Name of the component.
        seq_len: New length.
        epoch: Epoch that the change fell into.
        drawn: Examples that the component had given before, in the whole run.
        left_blocks: Blocks of the epoch that no row had touched; the phase begins with them.
        block_tokens: Tokens of a block.
        skipped_tokens: Tokens of rows that were never delivered in this epoch: what was left of touched blocks.
    """

    step: int
    component: str
    seq_len: int
    epoch: int
    drawn: int
    left_blocks: int
    block_tokens: int
    skipped_tokens: int


class PhasedDataset(PlannedDataset):
    """Batches of one dataset, from a step on those of the next, and so on. Examples are numbered through.

    Args:
        phases: First step and dataset of each phase, in order, the first at step 0. All over the same stored arrays.
        batch: Batch sizes: they say which examples make a step.
        changes: What the changes meant, for reports.

    Raises:
        ConfigError: phases out of order, or over other arrays.
    """

    def __init__(
        self, phases: Sequence[tuple[int, PlannedDataset]], batch: BatchSchedule, changes: Sequence[PhaseChange] = ()
    ) -> None:
        steps = [step for step, _ in phases]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError("must begin at step 0 and be in order", field="phases", value=steps)
        self.phases, self.batch_schedule, self.changes = tuple(phases), batch, tuple(changes)
        first = self.phases[0][1]
        for step, dataset in self.phases:
            if (_urls(dataset), dataset.eos_id, dataset.pairs) != (_urls(first), first.eos_id, first.pairs):
                raise ConfigError("lies in other arrays than the first phase", field=f"phases[{step}]")
        self._steps = np.asarray(steps, np.int64)

    def phase_at(self, step: int) -> tuple[PlannedDataset, int | None]:
        phase = int(np.searchsorted(self._steps, step, side="right")) - 1
        until = int(self._steps[phase + 1]) if phase + 1 < self._steps.size else None
        return self.phases[phase][1], until

    @property
    def length(self) -> int | None:
        for step, dataset in self.phases:
            _, until = self.phase_at(step)
            length = dataset.length
            if length is not None and (until is None or length <= self.batch_schedule.rows_at(until)[0]):
                return length
        return None

    @property
    def seq_len(self) -> int:
        """Tokens in the longest row."""
        return max(self.seq_lens)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        return tuple(dataset.seq_len for _, dataset in self.phases)

    @property
    def sources(self) -> Sequence[RowSource]:
        return self.phases[0][1].sources

    @property
    def eos_id(self) -> int | None:
        return self.phases[0][1].eos_id

    @property
    def pairs(self) -> bool:
        return self.phases[0][1].pairs

    @property
    def read_stats(self) -> ReadStats:
        return sum((dataset.read_stats for _, dataset in self.phases), ReadStats())

    @property
    def skipped_tokens(self) -> int:
        """Tokens that all changes together skip."""
        return sum(change.skipped_tokens for change in self.changes)

    def describe(self) -> dict[str, Any]:
        return {"phases": [{"step": step, "dataset": dataset.describe()} for step, dataset in self.phases]}

    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        return self._phase_of(indices).locate(indices, epoch)

    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> PackedBatch:
        return await self._phase_of(indices).get_batch(indices)

    def reordered(self, order: IndexMap) -> PlannedDataset:
        raise ConfigError(
            "cannot be reordered: rows change their length", field="phases", cure="Shuffle the components instead."
        )

    def _phase_of(self, indices: Int64[np.ndarray, " n"]) -> PlannedDataset:
        steps = self.batch_schedule.step_of(np.atleast_1d(indices))
        found = np.unique(np.searchsorted(self._steps, steps, side="right")) - 1
        if found.size > 1:
            raise ConfigError(
                "lie in phases of different seq_len, and a batch has rows of one length",
                field="indices",
                cure="Ask for the examples of one phase at a time.",
            )
        return self.phases[int(found[0]) if found.size else 0][1]


def _urls(dataset: PlannedDataset) -> list[str]:
    """Of all arrays, tokens and masks."""
    return [a.url for source in dataset.sources for a in (*source.arrays, *(masks_of(source) or ()))]


class Continued(PlannedDataset):
    """A component from a phase on: the rest of an epoch, then the whole again and again, re-keyed. It has no end.

    Args:
        first: Ordinal of its first example: as many were drawn in earlier phases.
        rest: What is left of the epoch, shuffled; None if nothing is.
        whole: All of it, shuffled.
        epoch: The epoch of ``rest``, or else of the first pass over ``whole``.

    Attributes:
        rest_rows: Examples of ``rest``.
        whole_epoch: Epoch of the first pass over ``whole``.
    """

    def __init__(self, first: int, rest: PlannedDataset | None, whole: PlannedDataset, epoch: int) -> None:
        self.first, self.rest, self.whole, self.epoch = first, rest, whole, epoch
        self.rest_rows = 0 if rest is None else len(rest)
        self.whole_epoch = epoch + (rest is not None)

    def at(self, ordinal: int) -> tuple[PlannedDataset, int, int]:
        """Where an ordinal is: in ``rest`` or ``whole``, how many examples of it were drawn before, and the epoch."""
        drawn = ordinal - self.first
        if self.rest is not None and drawn < self.rest_rows:
            return self.rest, drawn, self.epoch
        passes, position = divmod(drawn - self.rest_rows, len(self.whole))
        return self.whole, position, self.whole_epoch + passes

    @property
    def length(self) -> None:
        return None

    @property
    def sources(self) -> Sequence[RowSource]:
        return self.whole.sources

    @property
    def seq_len(self) -> int:
        return self.whole.seq_len

    @property
    def eos_id(self) -> int | None:
        return self.whole.eos_id

    @property
    def pairs(self) -> bool:
        return self.whole.pairs

    @property
    def read_stats(self) -> ReadStats:
        return self.whole.read_stats

    def describe(self) -> dict[str, Any]:
        rest = None if self.rest is None else self.rest.describe()
        return {"first": self.first, "epoch": self.epoch, "rest": rest, "whole": self.whole.describe()}

    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        drawn = indices - self.first
        passes, position = np.divmod(drawn - self.rest_rows, len(self.whole))
        if self.rest is None or int(drawn.min(initial=self.rest_rows)) >= self.rest_rows:
            return self.whole.locate(position, self.whole_epoch + passes)
        in_rest = drawn < self.rest_rows
        located = Rows(np.empty_like(indices), np.empty_like(indices), np.empty(indices.size))
        rest = self.rest.locate(drawn[in_rest], np.full(int(in_rest.sum()), self.epoch))
        whole = self.whole.locate(position[~in_rest], self.whole_epoch + passes[~in_rest])
        for field, early, late in zip(located, rest, whole, strict=True):
            field[in_rest], field[~in_rest] = early, late
        return located
