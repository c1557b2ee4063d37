"""``PhasedDataset``: rows of another length from a step on, or without some documents; each source
continues with what no row has had yet.

The idea of phases is in :mod:`headrace.mix.phases`, the construction in
:mod:`headrace.data.phased_mixture`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import OrderedRun, PlannedDataset, WrappingDataset
from headrace.data.erased import NOTHING_ERASED, Erasures
from headrace.data.mixture import MixtureDataset
from headrace.data.rows import Explained, Rows, RowSource
from headrace.errors import ConfigError
from headrace.metrics import ReadStats
from headrace.mix.draws import Skips
from headrace.mix.phases import PhaseChange
from headrace.mix.schedule import BatchSchedule
from headrace.order.intervals import starts
from headrace.order.order import OpenWindow, Order, check_indices

if TYPE_CHECKING:
    from headrace.batch.packed_batch import PackedBatch

RunDataset: TypeAlias = "MixtureDataset | PhasedDataset"
"""What a config makes of its components."""


class PhasedDataset(WrappingDataset):
    """Batches of one dataset, from a step on those of the next, and so on; each without the
    documents that are erased by then. Examples are numbered consecutively.

    Args:
        phases: First step and dataset of each phase, in order, the first at step 0. All over the
            same stored arrays.
        changes: Changes for reports.
        erasures: What is erased from which step on.

    Attributes:
        erasures: As given.
    """

    def __init__(
        self,
        phases: Sequence[tuple[int, PlannedDataset]],
        batch: BatchSchedule,
        changes: Sequence[PhaseChange] = (),
        erasures: Erasures = NOTHING_ERASED,
    ) -> None:
        steps = [step for step, _ in phases]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError("must begin at step 0 and be in order", field="phases", value=steps)
        self._phases = tuple(phases)
        self.batch_schedule = batch
        self._changes = tuple(changes)
        self.erasures = erasures
        self.base = first = self._phases[0][1]
        for step, dataset in self._phases:
            if (_urls(dataset), dataset.splits_documents, dataset.pairs) != (
                _urls(first),
                first.splits_documents,
                first.pairs,
            ):
                raise ConfigError(
                    "lies in other arrays than the first phase", field=f"phases[{step}]"
                )
        self._steps = np.asarray(steps, np.int64)
        self._planned_steps = steps

    def skipping(self, skips: Skips) -> PhasedDataset:
        """See :meth:`~headrace.data.mixture.MixtureDataset.skipping`; every phase must be a
        mixture.
        """
        if not skips:
            return self
        other = copy.copy(self)
        phases = [
            (skips.step_of(step), cast(Any, dataset).skipping(skips))
            for step, dataset in self._phases
        ]
        other._phases = tuple(phases)
        other.base = phases[0][1]
        other._steps = np.asarray([step for step, _ in phases], np.int64)
        other.batch_schedule = skips.left_of(self.batch_schedule)
        return other

    def reweighed(self, *_: object) -> None:
        """See :meth:`~headrace.data.mixture.MixtureDataset.reweighed`; where rows change, what they
        are depends on the draws.
        """

    @property
    def phases(self) -> Sequence[tuple[int, PlannedDataset]]:
        return self._phases

    def with_loss_weights(self, weights: Mapping[str, object]) -> PhasedDataset:
        """See :meth:`~headrace.data.mixture.MixtureDataset.with_loss_weights`; every phase must be
        a mixture.
        """
        if not weights:
            return self
        phases = [
            (step, cast(Any, dataset).with_loss_weights(weights)) for step, dataset in self._phases
        ]
        return PhasedDataset(phases, self.batch_schedule, self._changes, self.erasures)

    @property
    def changes(self) -> Sequence[PhaseChange]:
        return self._changes

    @property
    def own_schedule(self) -> BatchSchedule:
        return self.batch_schedule

    @property
    def mixture(self) -> PlannedDataset | None:
        return self.base.mixture if len(self._phases) == 1 else None

    @property
    def sources(self) -> Sequence[RowSource]:
        """Those of the last steps, which have the columns of all."""
        return self.erasures.applied(self.base).sources

    def at_step(self, step: int) -> tuple[PlannedDataset, int | None]:
        phase = self._phase_at(step)
        later = [self.erasures.next_after(step), *self._steps[phase + 1 : phase + 2].tolist()]
        until = min((end for end in later if end is not None), default=None)
        return self.erasures.applied(self._phases[phase][1], step), until

    def _phase_at(self, step: int) -> int:
        return int(np.searchsorted(self._steps, step, side="right")) - 1

    @property
    def length(self) -> int | None:
        ends = [*self._steps[1:].tolist(), None]
        for (_, dataset), until in zip(self._phases, ends, strict=True):
            length = dataset.length
            if length is not None and (
                until is None or length <= self.batch_schedule.rows_at(until)[0]
            ):
                return length
        return None

    @property
    def seq_len(self) -> int:
        """Tokens in the longest row."""
        return max(self.seq_lens)

    @property
    def read_stats(self) -> ReadStats:
        return sum((dataset.read_stats for _, dataset in self.phases), ReadStats())

    def describe(self) -> dict[str, Any]:
        erased = self.erasures.describe()
        if erased and len(self._phases) == 1:  # a mixture whose rows keep their length
            return {**self.base.describe(), **erased}
        phases = [
            {"step": step, "dataset": dataset.describe()}
            for step, (_, dataset) in zip(self._planned_steps, self._phases, strict=True)
        ]
        return {"phases": phases, **erased}

    def explain(self, example: Int64[np.ndarray, " n"]) -> Explained:
        return self._phase_of(example).explain(example)

    def open_windows(self, step: int | None = None) -> Mapping[str, tuple[OpenWindow, int]]:
        return self._phases[self._phase_at(step or 0)][1].open_windows(step)

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        return self._phase_of(indices).locate(indices, epoch)

    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> PackedBatch:
        first, last = self._steps_of(check_indices(indices, self.length))
        served, until = self.at_step(first)
        if until is not None and last >= until:
            raise _of_two_sides(until)
        return await served.get_batch(indices)

    def reordered(self, order: Order) -> PlannedDataset:
        raise ConfigError(
            "cannot be reordered: rows change their length, or documents are erased",
            field="phases",
            cure="Shuffle the components instead.",
        )

    def _phase_of(self, indices: Int64[np.ndarray, " n"]) -> PlannedDataset:
        first, last = map(self._phase_at, self._steps_of(indices))
        if first < last:
            raise _of_two_sides(int(self._steps[last]))
        return self._phases[first][1]

    def _steps_of(self, indices: Int64[np.ndarray, " n"]) -> tuple[int, int]:
        """The first and the last step of examples."""
        steps = self.batch_schedule.step_of(np.atleast_1d(indices))
        return (int(steps.min()), int(steps.max())) if steps.size else (0, 0)


def _of_two_sides(step: int) -> ConfigError:
    return ConfigError(
        f"lie on both sides of step {step}, where rows change their length or documents are erased",
        field="indices",
        cure="Ask for the examples of one side at a time.",
    )


def _urls(dataset: PlannedDataset) -> list[str]:
    """Of all arrays, tokens and columns."""
    columns = [
        a for source in dataset.sources for column in source.columns.values() for a in column.stored
    ]
    return [a.url for a in (*(a for source in dataset.sources for a in source.arrays), *columns)]


class Continued(WrappingDataset):
    """A component from a phase on: the rest of an epoch, then whole epochs in new orders,
    endlessly.

    Args:
        first: Ordinal of its first example: the number that earlier phases drew.
        rest: The parts of the remainder of the epoch, each shuffled, one after the other.
        whole: All of it, shuffled.
        epoch: The epoch of ``rest``, or else of the first pass over ``whole``.
    """

    def __init__(
        self, first: int, rest: Sequence[PlannedDataset], whole: PlannedDataset, epoch: int
    ) -> None:
        self.first = first
        self.rest = tuple(rest)
        self.whole = whole
        self.epoch = epoch
        self.base = whole
        self._begins = starts(np.array([len(part) for part in self.rest], np.int64))
        self.rest_rows = int(self._begins[-1])
        self.whole_epoch = epoch + (self.rest_rows > 0)

    def at(self, ordinal: int) -> tuple[PlannedDataset, int, int]:
        """The position of an ordinal: in a part of ``rest`` or in ``whole``, the examples drawn
        from it before, and the epoch.
        """
        drawn = ordinal - self.first
        if drawn < self.rest_rows:
            part = int(np.searchsorted(self._begins, drawn, side="right")) - 1
            return self.rest[part], drawn - int(self._begins[part]), self.epoch
        passes, position = divmod(drawn - self.rest_rows, len(self.whole))
        return self.whole, position, self.whole_epoch + passes

    @property
    def length(self) -> None:
        return None

    def passes(self, ordinal: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        drawn = ordinal - self.first
        full_passes = self.whole_epoch + (drawn - self.rest_rows) // len(self.whole)
        return np.where(drawn < self.rest_rows, self.epoch, full_passes)

    @property
    def rows_of_pass(self) -> int:
        return len(self.whole)

    def shuffle_order(self) -> Order | None:
        return self.whole.shuffle_order()

    def ordered_runs(self) -> Sequence[OrderedRun]:
        epochs = [self.epoch] * len(self.rest) + [self.whole_epoch]
        first = (self.first + self._begins).tolist()
        runs: list[OrderedRun] = []
        for part, begin, epoch in zip((*self.rest, self.whole), first, epochs, strict=True):
            run = part.pass_order()
            if run is None:
                return ()
            runs.append(run._replace(first=begin, epoch=epoch))
        return runs

    def open_window(self) -> OpenWindow:
        windows = [part.open_window() for part in (self.whole, *self.rest)]
        return max(windows, key=lambda window: (window.rows, window.blocks))

    def describe(self) -> dict[str, Any]:
        # Further rows follow from what was drawn before, which the earlier phases describe:
        # untouched blocks and whole epochs are described, and the epoch of the first of these
        rest = [part.describe() for part in self.rest if not part.has_further_rows]
        return {
            "first": self.first,
            "epoch": self.epoch if rest else self.whole_epoch,
            "rest": rest[0] if rest else None,
            "whole": self.whole.describe(),
        }

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        drawn = indices - self.first
        passes, position = np.divmod(drawn - self.rest_rows, len(self.whole))
        if int(drawn.min(initial=self.rest_rows)) >= self.rest_rows:
            return self.whole.locate(position, self.whole_epoch + passes)
        located = Rows(np.empty_like(indices), np.empty_like(indices), np.empty(indices.size))
        part_of = np.searchsorted(self._begins, drawn, side="right") - 1
        for number in np.unique(part_of).tolist():
            chosen = part_of == number
            if number < len(self.rest):
                in_part = drawn[chosen] - self._begins[number]
                rows = self.rest[number].locate(in_part, np.full(in_part.size, self.epoch))
            else:
                rows = self.whole.locate(position[chosen], self.whole_epoch + passes[chosen])
            for field, values in zip(located, rows, strict=True):
                field[chosen] = values
        return located
