"""A mixture whose rows change their length at given steps; the idea is in :mod:`headrace.index.phases`.

Each phase is an ordinary mixture with the same draws. The first is the one that there would be without phases, row for
row. In each later one a component is a :class:`~headrace.data.phased.Continued`: it begins with the blocks that the
phase before left whole, and goes on with epochs of the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

import numpy as np

from headrace.data.dataset import PlannedDataset, ReorderedDataset
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import Continued, PhaseChange, PhasedDataset
from headrace.data.shuffle import placed, shuffle_components
from headrace.data.token_seq import TokenSeqDataset
from headrace.data.validation import split_sides
from headrace.errors import ConfigError
from headrace.index.phases import RowsOfBlocks, phase_block, untouched_blocks
from headrace.index.remap import Compose, Identity, IndexMap
from headrace.index.schedule import BatchSchedule
from headrace.index.seeds import derive
from headrace.index.shuffle_config import BlockShuffleConfig, BraidShuffleConfig, ShuffleConfig
from headrace.index.stages import Stage
from headrace.index.validation_config import ValidationConfig


def phased_mixture(
    sources: Mapping[str, TokenSeqDataset],
    phases: Sequence[tuple[int, int]],
    shuffles: Mapping[str, ShuffleConfig],
    stages: Sequence[Stage],
    batch: BatchSchedule,
    seed: int,
    *,
    planned: int | None = None,
    num_steps: int | None = None,
    validation: ValidationConfig | None = None,
    max_epochs: Mapping[str, float] | None = None,
    max_tokens: Mapping[str, int] | None = None,
    policy: str = "quota",
    own: Collection[str] = (),
) -> PhasedDataset:
    """A mixture whose rows change their length.

    Args:
        sources: Components by name, in rows of the first phase.
        phases: First step and row length of each phase; see :func:`~headrace.index.phases.phase_lengths`.
        shuffles: How each component is shuffled. A block is the same tokens in all phases; ``io_block_size`` counts
            rows of the first phase.
        stages: Weights.
        batch: Batch sizes.
        seed: Integer seed.
        planned: How many of the stages were planned, those after them being amendments; None: all.
        num_steps: Steps of the run, after which the mixture ends; None: it has no end of its own.
        validation: What is held out of each component; None: nothing.
        max_epochs: Most passes over components, by name. An epoch that a change cut short counts as one.
        max_tokens: Most tokens of components, by name.
        policy: Which rows come when.
        own: Components whose shuffle is written under their own name, for errors.

    Raises:
        ConfigError: a full shuffle, which leaves no block whole; rows that are longer than the data.
    """
    (_, seq_len), *later = phases
    lengths = [length for _, length in phases]
    courses: dict[str, _Course] = {}
    for n, source in sources.items():
        with placed([n], own):
            courses[n] = _Course(n, source, lengths, shuffles[n], validation)
    stored = {n: course.cut(seq_len, first=True) for n, course in courses.items()}
    first = {n: course.sized(seq_len, None) for n, course in courses.items()}
    shuffled = _shuffled(stored, first, stages, batch, seed, planned, own)
    for n, course in courses.items():
        course.begin(stored[n], shuffled[n])
    most = {n: tokens // seq_len for n, tokens in (max_tokens or {}).items()}
    mixture = MixtureDataset(
        shuffled, stages, batch, max_epochs=max_epochs or {}, max_examples=most, policy=policy, num_steps=num_steps
    )
    found: list[tuple[int, PlannedDataset]] = [(0, mixture)]
    changes: list[PhaseChange] = []
    for number, (step, length) in enumerate(later, start=1):
        if mixture.length is not None and mixture.length <= batch.rows_at(step)[0]:
            break  # limits end the mixture before
        drawn = dict(zip(mixture.names, mixture.draws.starts_at(step).tolist(), strict=True))
        late = _from_step(batch, step)
        changes += [course.change(step, length, drawn[n]) for n, course in courses.items()]
        stored = {n: course.cut(length, first=False) for n, course in courses.items()}
        rests = {n: course.rest(stored[n]) for n, course in courses.items()}
        rest = _shuffled(
            {n: cut for n, cut in rests.items() if cut.rows},
            {n: courses[n].sized(length, cut.rows) for n, cut in rests.items() if cut.rows},
            stages,
            late,
            derive(seed, "phase", number),
            planned,
        )
        sizes = {n: course.sized(length, stored[n].rows) for n, course in courses.items()}
        whole = _shuffled(stored, sizes, stages, late, seed, planned)
        components = {n: courses[n].enter(stored[n], rests[n], whole[n], rest.get(n)) for n in courses}
        limits = {
            n: _limit(mixture.limits[n], component, mixture.seq_len, (max_epochs or {}).get(n))
            for n, component in components.items()
        }
        known = {n: limit for n, limit in limits.items() if limit is not None}
        # Equal limits: the draws are those of the phase before, and are walked once
        same = limits == mixture.limits and policy not in ("exhaustive", "least_consumed")
        mixture = MixtureDataset(
            components,
            stages,
            batch,
            max_examples=known,
            policy=policy,
            num_steps=num_steps,
            draws=mixture.draws if same else None,
        )
        found.append((step, mixture))
    return PhasedDataset(found, batch, changes)


@dataclasses.dataclass(frozen=True)
class _Cut:
    """Rows in stored order, most of them in full blocks, which come first.

    Attributes:
        dataset: The rows.
        blocks: The full blocks, as numbers of those of the whole component.
        block: Rows of a block.
        block_behind: See :func:`~headrace.index.phases.untouched_blocks`.
    """

    dataset: PlannedDataset
    blocks: IndexMap
    block: int
    block_behind: Callable[[int], int]

    @property
    def rows(self) -> int:
        return len(self.dataset)


class _Course:
    """One component on its way through the phases."""

    def __init__(
        self,
        name: str,
        dataset: TokenSeqDataset,
        lengths: Sequence[int],
        shuffle: ShuffleConfig,
        validation: ValidationConfig | None,
    ) -> None:
        if shuffle is True:
            raise ConfigError(
                "touches every block from the start, so that a change of seq_len would leave nothing to go on with",
                field=f"components.{name}.shuffle",
                value=True,
                cure="Use the braided shuffle (the default) or a block shuffle with more than one seq_len.",
            )
        self._name, self._dataset, self._shuffle, self._validation = name, dataset, shuffle, validation
        self._block_tokens = block_of_phases(dataset, lengths, shuffle)
        if validation is not None and validation.by == "documents":
            self._dataset = dataset.holdout_documents(validation.groups_of, seed=validation.seed)[0]
            self._validation = None
        self._left: IndexMap = Identity(0)

    def cut(self, seq_len: int, *, first: bool) -> _Cut:
        """All of it; in the first phase as it would be cut without others."""
        rows, tokens = self._block_tokens // seq_len, self._block_tokens
        stored = self._dataset if first else self._dataset.with_rows(seq_len, block_tokens=tokens)
        blocks = stored.full_blocks(rows)
        if self._validation is None:
            return _Cut(stored, Identity(blocks), rows, lambda row: stored.windows.block_behind(row, tokens))
        train = split_sides(stored, self._validation, block_tokens=tokens)[0]
        return _blocks_first(train, Identity(blocks - (len(stored) - len(train)) // rows), rows)

    def sized(self, seq_len: int, rows: int | None) -> ShuffleConfig:
        """The shuffle over these blocks, with no more strands than there are rows."""
        shuffle, block = self._shuffle, self._block_tokens // seq_len
        if isinstance(shuffle, BraidShuffleConfig):
            strands = shuffle.strands if shuffle.strands is None or rows is None else min(shuffle.strands, rows)
            return dataclasses.replace(shuffle, io_block_size=block, strands=strands)
        return dataclasses.replace(shuffle, io_block_size=block) if isinstance(shuffle, BlockShuffleConfig) else shuffle

    def begin(self, whole: _Cut, shuffled: PlannedDataset) -> None:
        """Enters the first phase."""
        self._component, self._cuts = Continued(0, None, shuffled, 0), (whole, whole)

    def change(self, step: int, seq_len: int, drawn: int) -> PhaseChange:
        """Leaves a phase, with so many examples drawn in the whole run."""
        dataset, position, epoch = self._component.at(drawn)
        cut = self._cuts[dataset is not self._component.rest]
        self._drawn, self._epoch = drawn, epoch
        begun = dataset is self._component.rest or position > 0
        skipped = 0
        self._left = Identity(0)
        if begun:
            left = untouched_blocks(
                _order(dataset), drawn=position, epoch=epoch, blocks=len(cut.blocks), block_behind=cut.block_behind
            )
            self._left = Compose(cut.blocks, left)
            skipped = (cut.rows - position - len(left) * cut.block) * self._component.seq_len
            self._epoch += len(left) == 0  # nothing to finish
        return PhaseChange(step, self._name, seq_len, epoch, drawn, len(self._left), self._block_tokens, skipped)

    def rest(self, whole: _Cut) -> _Cut:
        """What is left of the epoch, cut as the whole is."""
        rows = RowsOfBlocks(self._left, block=whole.block, n=whole.rows)
        return _blocks_first(whole.dataset.reordered(rows), self._left, whole.block)

    def enter(
        self, whole: _Cut, rest: _Cut, shuffled: PlannedDataset, shuffled_rest: PlannedDataset | None
    ) -> Continued:
        """Enters the next phase."""
        self._cuts = (rest, whole)
        self._component = Continued(self._drawn, shuffled_rest, shuffled, self._epoch)
        return self._component


def block_of_phases(dataset: TokenSeqDataset, lengths: Sequence[int], shuffle: ShuffleConfig) -> int:
    """Tokens of the blocks in which a component changes its rows; see :func:`~headrace.index.phases.phase_block`."""
    rows = shuffle.io_block_size if isinstance(shuffle, BraidShuffleConfig | BlockShuffleConfig) else None
    return phase_block(dataset.cache.layout.chunk_elements, lengths, rows)


def _blocks_first(dataset: PlannedDataset, blocks: IndexMap, block: int) -> _Cut:
    return _Cut(dataset, blocks, block, lambda row: -(-row // block))


def _order(dataset: PlannedDataset) -> IndexMap:
    if isinstance(dataset, ReorderedDataset) and dataset.order.reorders:
        return dataset.order
    return Identity(len(dataset))


def _shuffled(
    cuts: Mapping[str, _Cut],
    shuffles: Mapping[str, ShuffleConfig],
    stages: Sequence[Stage],
    batch: BatchSchedule,
    seed: int,
    planned: int | None,
    own: Collection[str] = (),
) -> dict[str, PlannedDataset]:
    stored = {n: cut.dataset for n, cut in cuts.items()}
    shuffled = shuffle_components(stored, shuffles, stages, batch, seed, planned=planned, own=own)
    return cast("dict[str, PlannedDataset]", shuffled)


def _from_step(batch: BatchSchedule, step: int) -> BatchSchedule:
    """Batch sizes from a step on: strands and laps of a phase follow its own batches."""
    size = int(batch.size_at(np.array([step]))[0])
    return BatchSchedule({0: size, **{s - step: n for s, n in batch.points if s > step}})


def _limit(before: int | None, component: Continued, old_seq_len: int, max_epochs: float | None) -> int | None:
    """Most examples of a component in the whole run, if its rows keep their new length."""
    if before is None:
        return None
    left = max(before - component.first, 0) * old_seq_len // component.seq_len
    if max_epochs is not None:
        whole = int(max(max_epochs - component.whole_epoch, 0) * len(component.whole))
        left = min(left, component.rest_rows + whole)
    return component.first + left
