"""``PhasedDataset``: rows of another length from a step on, or without some documents; each source
continues with what no row has had yet.

The idea of phases is in :mod:`headrace.mix.phases`, the construction in
:mod:`headrace.data.phased_mixture`. What is erased (:mod:`headrace.data.erased_rows`) are documents
that were removed from the caches of a run when it began, or while it goes on: plans, orders, quotas
and splits are not affected, and steps before a removal are bit-identical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import OrderedRun, PlannedDataset, WrappingDataset
from headrace.data.erased_rows import ErasedRows, Erasure
from headrace.data.mixture import MixtureDataset, mixture_of
from headrace.data.rows import Explained, Rows, RowSource
from headrace.data.token_seq import stored_dataset
from headrace.errors import ConfigError
from headrace.metrics import ReadStats
from headrace.mix.draws import NO_SKIPS, Skips
from headrace.mix.phases import PhaseChange
from headrace.mix.schedule import BatchSchedule
from headrace.order.intervals import Intervals, starts
from headrace.order.order import OpenWindow, Order, check_indices

if TYPE_CHECKING:
    from headrace.batch.packed_batch import PackedBatch

RunDataset: TypeAlias = "MixtureDataset | PhasedDataset"
"""What a config makes of its components."""


class PhasedDataset(WrappingDataset):
    """Batches of one dataset, from a step on those of the next, and so on; each without the
    documents that are erased by then. Examples are numbered consecutively.

    Args:
        phases: First step of the plan and dataset of each phase, in order, the first at step 0. All
            over the same stored arrays.
        batch: Batch sizes of the plan.
        changes: Changes for reports.
        erasures: What is erased from which step on, by component: in the order of steps, each
            including the previous.
        drawn_from: First step of components that amendments add. Nothing of them is erased before,
            so that the amendment adds no mask to earlier batches.
        skips: The skipped steps, which the phases leave out already.

    Attributes:
        erasures: As given.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> from headrace.order.intervals import Intervals
        >>> tokens = TokenSeqDataset(headrace.testing.tiny_cache(documents=40), seq_len=8)
        >>> mixture = MixtureDataset({"web": tokens}, {"web": 1}, batch_size=2)
        >>> gone = Erasure(Intervals(np.array([18]), np.array([20])), 1, {"snapshot": [2]})
        >>> erased = PhasedDataset(
        ...     [(0, mixture)], mixture.batch_schedule, erasures={"web": [(1, gone)]}
        ... )
        >>> (
        ...     erased.at_step(0)[0].read([0]).token_mask,
        ...     erased.at_step(1)[0].read([2]).token_mask.tolist(),
        ... )
        (None, [[1, 1, 0, 0, 1, 1, 1, 1]])
    """

    def __init__(
        self,
        phases: Sequence[tuple[int, PlannedDataset]],
        batch: BatchSchedule,
        changes: Sequence[PhaseChange] = (),
        erasures: Mapping[str, Sequence[tuple[int, Erasure]]] = MappingProxyType({}),
        drawn_from: Mapping[str, int] = MappingProxyType({}),
        skips: Skips = NO_SKIPS,
    ) -> None:
        steps = [step for step, _ in phases]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError("must begin at step 0 and be in order", field="phases", value=steps)
        self._phases = tuple((skips.step_of(step), dataset) for step, dataset in phases)
        self.batch_schedule = skips.left_of(batch)
        self._changes = tuple(changes)
        self.erasures = dict(erasures)
        from_step = {
            name: [(max(step, drawn_from.get(name, 0)), one) for step, one in of_component]
            for name, of_component in erasures.items()
        }
        steps_erased = {0, *(step for ones in from_step.values() for step, _ in ones)}
        self._erased_by = {step: _erased_by(step, from_step) for step in sorted(steps_erased)}
        # By phase and the step of its last erasure
        self._served: dict[tuple[int, int], PlannedDataset] = {}
        self._checked: set[tuple[int, int]] = set()
        self.base = self._phases[0][1]
        for step, dataset in self._phases:
            if _rows_like(dataset) != _rows_like(self.base):
                raise ConfigError(
                    "lies in other arrays than the first phase", field=f"phases[{step}]"
                )
        self._steps = np.asarray([step for step, _ in self._phases], np.int64)
        self._planned_steps = steps

    def reweighed(self, *_: object) -> None:
        """See :meth:`~headrace.data.mixture.MixtureDataset.reweighed`; where rows change, what they
        are depends on the draws.
        """

    @property
    def phases(self) -> Sequence[tuple[int, PlannedDataset]]:
        return self._phases

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
        return self._without_erased(0, max(self._erased_by)).sources

    def at_step(self, step: int) -> tuple[PlannedDataset, int | None]:
        phase = self._phase_at(step)
        erasure = max(began for began in self._erased_by if began <= step)
        later = [began for began in (*self._erased_by, *self._steps.tolist()) if began > step]
        served = self._without_erased(phase, erasure)
        # Not before a step is asked for: a run may have begun with less
        mixture = mixture_of(served)
        if mixture is not None and (phase, erasure) not in self._checked:
            _check_left(mixture, self._erased_by[erasure], erasure)
            self._checked.add((phase, erasure))
        return served, min(later, default=None)

    def _without_erased(self, phase: int, erasure: int) -> PlannedDataset:
        """A phase without what is erased from a step on; itself if nothing is."""
        dataset = self._phases[phase][1]
        mixture = mixture_of(dataset)
        erased = self._erased_by[erasure]
        if not erased or mixture is None:
            return dataset
        if (phase, erasure) not in self._served:
            sources = [
                ErasedRows(rows, erased[name]) if name in erased else rows
                for name, component in zip(mixture.names, mixture.components, strict=True)
                for rows in component.sources
            ]
            self._served[phase, erasure] = mixture.with_sources(sources)
        return self._served[phase, erasure]

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
        removed = {
            name: {str(step): one.record for step, one in ones}
            for name, ones in self.erasures.items()
        }
        erased = {"removed": removed} if removed else {}
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


def _erased_by(
    step: int, from_step: Mapping[str, Sequence[tuple[int, Erasure]]]
) -> dict[str, Erasure]:
    """What is erased from each component at a step."""
    past = {
        name: [one for first, one in of_component if first <= step]
        for name, of_component in from_step.items()
    }
    return {name: ones[-1] for name, ones in past.items() if ones and ones[-1].tokens.total}


def _check_left(mixture: MixtureDataset, past: Mapping[str, Erasure], step: int) -> None:
    """Raises ConfigError if a component from which rows are drawn, at this step or later, has
    nothing left.
    """
    later = mixture.stage_steps[1:]
    drawn = {
        name
        for stage, end in zip(mixture.stages, [*later, None], strict=True)
        if end is None or end > step
        for name in stage.blend.names
    }
    for name, erasure in past.items():
        dataset = mixture.components[mixture.names.index(name)]
        cache = dataset.caches()[0]
        removal = stored_dataset(dataset).removal
        if name not in drawn or erasure.tokens.total < cache.num_tokens - removal.num_tokens:
            continue
        if Intervals.union([erasure.tokens, removal.tokens]).total == cache.num_tokens:
            cure = f"Drop the source in the same amendment: drop: [{name}]."
            if not erasure.field.startswith("amendments"):
                cure = (
                    "Leave the source out, or train on what was removed:"
                    f" components.{name}.snapshot: 1."
                )
            problem = f"leaves nothing of {cache.path}: all documents of {name!r} are removed"
            raise ConfigError(
                problem, field=erasure.field, value=erasure.record["snapshot"], cure=cure
            )


def _of_two_sides(step: int) -> ConfigError:
    return ConfigError(
        f"lie on both sides of step {step}, where rows change their length or documents are erased",
        field="indices",
        cure="Ask for the examples of one side at a time.",
    )


def _rows_like(dataset: PlannedDataset) -> tuple[object, ...]:
    """What all phases have in common: all arrays, of tokens and columns, and what rows are of."""
    columns = [c for source in dataset.sources for c in source.columns.values()]
    arrays = [a for source in dataset.sources for a in source.arrays]
    arrays += [a for column in columns for a in column.stored]
    return [a.url for a in arrays], dataset.splits_documents, dataset.pairs


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
