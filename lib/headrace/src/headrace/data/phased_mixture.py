"""Makes the dataset of a run whose rows change their length at given steps: a mixture for each
length.

:mod:`headrace.mix.phases` explains phases. Each is an ordinary mixture with the same draws. The
first is the mixture that there would be without phases, row for row (unless blocks are held out,
because their size depends on all lengths). In later phases, a component is a
:class:`~headrace.data.phased.Continued`: it begins with the blocks that the previous phase did not
touch, then comes what it left of touched ones, and it continues with whole epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Int64

from headrace.data.component import (
    Orders,
    component_sides,
    naming_split,
    placed,
    shuffle_components,
    split_sides,
)
from headrace.data.dataset import PlannedDataset, WrappingDataset
from headrace.data.mixture import MixtureDataset
from headrace.data.packed import LeftPieces, PackedRows, PackedTokenDataset, pack_left
from headrace.data.phased import Continued, PhasedDataset
from headrace.data.rows import FurtherRows, Pieces, Rows, RowSource
from headrace.data.token_seq import TokenSeqDataset
from headrace.errors import ConfigError
from headrace.mix.phases import (
    PhaseChange,
    RowsOfBlocks,
    phase_block,
    rows_in_touched_blocks,
    untouched_blocks,
)
from headrace.mix.plan import Plan
from headrace.order.compose import Compose
from headrace.order.holdout import HoldOut
from headrace.order.intervals import Intervals, cut_ranges, starts
from headrace.order.order import Identity, Order, Slice
from headrace.order.seeds import derive
from headrace.order.shuffle_config import Shuffle, shuffle_of
from headrace.order.windows import Windows, rows_outside


def phased_dataset(
    sources: Mapping[str, PlannedDataset], plan: Plan, orders: Orders
) -> PhasedDataset:
    """The dataset of a run whose rows change their length.

    Args:
        sources: Components by name, in rows of the first phase, before anything is held out.
        plan: How much is drawn of each, and when.
        orders: In which order.

    Raises:
        ConfigError: rows that are longer than the data; else as for
            :class:`~headrace.data.mixture.MixtureDataset` and
            :func:`~headrace.data.component.shuffle_components`.
    """
    lengths = [length for _, length in plan.phases]
    courses: dict[str, _Course] = {}
    for name, source in sources.items():
        shuffle = shuffle_of(orders.shuffles[name])
        course = _PackedCourse if isinstance(source, PackedTokenDataset) else _Course
        with placed([name], orders.own_shuffles, shuffle):
            courses[name] = course(
                name, cast(Any, source), shuffle.of_one_length(), lengths, orders, plan
            )
    mixture = _first_mixture(courses, plan, orders)
    phases: list[tuple[int, PlannedDataset]] = [(0, mixture)]
    changes: list[PhaseChange] = []
    for number, (step, length) in enumerate(plan.phases[1:], start=1):
        if mixture.length is not None and mixture.length <= plan.batch.rows_at(step)[0]:
            break  # limits end the mixture before
        drawn = mixture.draws.starts_at(step).tolist()
        changes += [
            courses[name].change(step, length, n)
            for name, n in zip(mixture.names, drawn, strict=True)
        ]
        mixture = _next_mixture(mixture, courses, plan, orders, number)
        phases.append((step, mixture))
    return PhasedDataset(phases, plan.batch, changes)


def _first_mixture(courses: Mapping[str, _Course], plan: Plan, orders: Orders) -> MixtureDataset:
    seq_len = plan.phases[0][1]
    cuts = {name: course.cut(seq_len) for name, course in courses.items()}
    stored = {name: cut.dataset for name, cut in cuts.items()}
    shuffles = {name: course.sized(seq_len, None) for name, course in courses.items()}
    shuffled = shuffle_components(stored, plan, dataclasses.replace(orders, shuffles=shuffles))
    for name, course in courses.items():
        course.enter(cuts[name], (), shuffled[name], ())
    return MixtureDataset.of(shuffled, plan)


def _next_mixture(
    mixture: MixtureDataset,
    courses: Mapping[str, _Course],
    plan: Plan,
    orders: Orders,
    number: int,
) -> MixtureDataset:
    """The mixture of a phase, made from that of the previous phase, which the courses have left."""
    step, length = plan.phases[number]
    # Strands and laps of a phase follow its own batches
    phase_plan = dataclasses.replace(plan, batch=plan.batch.seen_from(step))
    cuts = {name: course.cut(length) for name, course in courses.items()}
    orders = dataclasses.replace(orders, own_shuffles=())
    of_phase = derive(orders.seed, "phase", number)
    rests = {name: course.rests(cuts[name]) for name, course in courses.items()}
    # The untouched blocks of all components share one budget of strands, and so does what is left
    # of touched ones
    shuffled_rests: dict[str, list[PlannedDataset]] = {name: [] for name in courses}
    for part, seed in ((0, of_phase), (1, derive(of_phase, "left"))):
        started = {name: of_each[part].dataset for name, of_each in rests.items()}
        started = {name: rest for name, rest in started.items() if len(rest)}
        shuffles = {name: courses[name].sized(length, len(rest)) for name, rest in started.items()}
        of_part = dataclasses.replace(orders, shuffles=shuffles, seed=seed)
        for name, rest in shuffle_components(started, phase_plan, of_part).items():
            shuffled_rests[name].append(rest)
    stored = {name: cut.dataset for name, cut in cuts.items()}
    shuffles = {name: course.sized(length, cuts[name].rows) for name, course in courses.items()}
    of_whole = dataclasses.replace(orders, shuffles=shuffles)
    reshuffled = shuffle_components(stored, phase_plan, of_whole)
    components = {
        name: course.enter(cuts[name], rests[name], reshuffled[name], shuffled_rests[name])
        for name, course in courses.items()
    }
    limits = {
        name: _limit(name, courses[name], component, mixture, plan.epochs_of(name))
        for name, component in components.items()
    }
    policy = mixture.draws.policy
    # These limits hold all others
    plan = dataclasses.replace(
        plan,
        max_epochs=None,
        max_rows={name: limit for name, limit in limits.items() if limit is not None},
    )
    if limits == mixture.limits and not policy.follows_sizes:  # what was counted is shared
        plan = dataclasses.replace(plan, make=lambda _: policy)
    return MixtureDataset.of(components, plan)


class _Cut(NamedTuple):
    """Rows in stored order, most of them in full blocks, which come first."""

    dataset: PlannedDataset
    blocks: Order
    """The full blocks, as numbers of those of the whole component."""
    block: int
    """Rows of a block."""
    windows: Windows | None = None
    """How its rows are numbered, if they are cut within blocks of ``block_tokens``; None: the rows
    of full blocks come first.
    """
    block_tokens: int = 0

    @property
    def rows(self) -> int:
        return len(self.dataset)

    def block_behind(self, row: int) -> int:
        """See :func:`~headrace.mix.phases.untouched_blocks`."""
        if self.windows is None:
            return -(-row // self.block)
        return self.windows.block_behind(row, self.block_tokens)

    def rows_behind(self, row: int) -> Int64[np.ndarray, " n"]:
        """See :func:`~headrace.mix.phases.rows_in_touched_blocks`."""
        if self.windows is not None:
            return self.windows.rows_behind(row, self.block_tokens)
        blocks = len(self.blocks)
        first = min(self.block_behind(row), blocks)
        return rows_outside(row, first, blocks, self.block, self.rows)


class _Course:
    """One component on its way through the phases.

    Attributes:
        token_limit: Largest number of examples in the run by its tokens (``max_tokens``), if its
            rows keep their length.
    """

    _dataset: Any
    """What is trained on of it, in rows of the first length, as it would be cut without others."""
    _stored: Any
    """The same in rows of the present length, and what was left behind them."""

    def __init__(
        self,
        name: str,
        dataset: TokenSeqDataset,
        shuffle: Shuffle,
        lengths: Sequence[int],
        orders: Orders,
        plan: Plan,
    ) -> None:
        self.token_limit = plan.max_rows.get(name)
        self._name = name
        self._shuffle = shuffle
        self._validation, self._path = orders.validation.get(name, (None, ""))
        self._held_out: HoldOut | None = None
        self._blocks: Order = Identity(0)
        self._has_left = False
        self._drawn = 0
        self._epoch = 0
        self._block_tokens = self._open(dataset, lengths)

    def _open(self, dataset: TokenSeqDataset, lengths: Sequence[int]) -> int:
        """Sets what is trained on, and returns the tokens of its blocks."""
        validation = self._validation
        chunk = dataset.cache.layout.chunk_elements
        block = phase_block(chunk, lengths, self._shuffle.io_block_size)
        if validation is not None:
            with naming_split(self._name, self._path, validation):
                if validation.by == "documents":
                    train, _ = dataset.holdout_documents(validation.groups_of, seed=validation.seed)
                    dataset = train
                    self._validation = None
                else:
                    self._held_out = validation.holdout(dataset, block // lengths[0])
        self._dataset = self._stored = dataset
        return block

    def cut(self, seq_len: int) -> _Cut:
        """All of it, in rows of the present length."""
        rows = self._block_tokens // seq_len
        tokens = self._block_tokens
        stored = self._stored
        blocks = stored.full_blocks(rows)
        if self._validation is None:
            return _Cut(stored, Identity(blocks), rows, stored.windows, tokens)
        how = self._held_out
        with naming_split(self._name, self._path, self._validation):
            train, _ = split_sides(stored, self._validation, block_tokens=tokens, how=how)
        return _Cut(train, Identity(blocks - (len(stored) - len(train)) // rows), rows)

    def sized(self, seq_len: int, rows: int | None) -> Shuffle:
        """The shuffle over these blocks, with no more strands than there are rows."""
        return self._shuffle.resized(self._block_tokens // seq_len, rows)

    def change(self, step: int, seq_len: int, drawn: int) -> PhaseChange:
        """Leaves a phase after ``drawn`` examples in the whole run."""
        dataset, position, epoch = self._component.at(drawn)
        old_seq_len = self._component.seq_len
        self._drawn = drawn
        self._epoch = epoch
        self._blocks = Identity(0)
        parts = [part for part, _ in self._parts]
        # Of the parts of a rest that come behind the one that was reached, nothing was drawn. What
        # comes behind the rest is another epoch; and an epoch of which nothing was drawn has no
        # rest
        open_parts = self._parts[parts.index(dataset) : -1]
        if dataset is self._component.whole and position > 0:
            open_parts = self._parts[-1:]
        left_pieces = [
            self._leave(part, cut, position if part is dataset else 0, epoch)
            for part, cut in open_parts
        ]
        rows, skipped = self._cut_left(left_pieces, seq_len)
        self._has_left = rows > 0
        blocks = len(self._blocks)
        if blocks:
            skipped += blocks * (self._block_tokens % seq_len - self._block_tokens % old_seq_len)
        self._epoch += bool(open_parts) and blocks + rows == 0  # nothing to finish
        return PhaseChange(
            step, self._name, seq_len, epoch, drawn, blocks, self._block_tokens, rows, skipped
        )

    def _leave(self, part: PlannedDataset, cut: _Cut, position: int, epoch: int) -> Any:
        """Leaves a part of an epoch at a position: notes its untouched blocks, and returns the
        tokens of all other rows that were not drawn.
        """
        if part.has_further_rows:
            return tokens_of_rows(cut.dataset, _rows_from(part, position, epoch))
        blocks = len(cut.blocks)
        order = part.shuffle_order() or Identity(len(part))
        untouched = untouched_blocks(
            order, drawn=position, epoch=epoch, blocks=blocks, block_behind=cut.block_behind
        )
        self._blocks = Compose(cut.blocks, untouched)
        rows = rows_in_touched_blocks(
            order,
            drawn=position,
            epoch=epoch,
            block=cut.block,
            blocks=blocks,
            rows_behind=cut.rows_behind,
        )
        numbered = cut.dataset.block_aligned(cut.block) if self._shuffle.in_blocks else cut.dataset
        return tokens_of_rows(numbered, rows)

    def _cut_left(self, left: Sequence[Any], seq_len: int) -> tuple[int, int]:
        """Cuts the component into rows of a new length, and what was left behind them. Returns the
        rows of what was left, and its tokens that are in none.
        """
        tokens = Intervals.union(cast("Sequence[Intervals]", left))
        stored = self._dataset.with_rows(seq_len, block_tokens=self._block_tokens)
        rows, skipped = divmod(tokens.total, seq_len)
        if rows:
            stored = stored.with_further(LeftRows(stored.sources[0], tokens))
        self._stored = stored
        return rows, skipped

    def rests(self, whole: _Cut) -> tuple[_Cut, _Cut]:
        """The remainder of the epoch: its untouched blocks, cut like the whole, and what is left of
        others.
        """
        rows = RowsOfBlocks(self._blocks, block=whole.block, n=whole.rows)
        untouched = _Cut(whole.dataset.reordered(rows), self._blocks, whole.block)
        remainder: PlannedDataset = whole.dataset.reordered(Slice(whole.rows, 0, 0))
        if self._has_left:
            remainder = FurtherDataset(self._stored)
        return untouched, _Cut(remainder, Identity(0), whole.block)

    def enter(
        self,
        whole: _Cut,
        rests: Sequence[_Cut],
        shuffled: PlannedDataset,
        shuffled_rests: Sequence[PlannedDataset],
    ) -> Continued:
        """Enters a phase."""
        cuts = [cut for cut in rests if cut.rows]
        self._parts = (*zip(shuffled_rests, cuts, strict=True), (shuffled, whole))
        self._component = Continued(self._drawn, shuffled_rests, shuffled, self._epoch)
        return self._component


class _PackedCourse(_Course):
    """A packed component. Packs of two lengths share no blocks, so all that is left of an epoch is
    packed anew.
    """

    def _open(self, dataset: Any, lengths: Sequence[int]) -> int:
        validation = self._validation
        if validation is not None and validation.by == "blocks":
            raise ConfigError(
                f"cuts documents, and component {self._name!r} packs them into rows of several"
                " lengths",
                field=f"{self._path}.by",
                value="blocks",
                cure=f"Hold out documents: components.{self._name}.validation={{one_in: 100, by:"
                " documents}, or none.",
            )
        train, _ = component_sides(self._name, dataset, validation, path=self._path)
        self._dataset = self._stored = train
        rows = self._shuffle.io_block_size
        return dataset.cache.layout.chunk_elements if rows is None else rows * lengths[0]

    def cut(self, seq_len: int) -> _Cut:
        return _Cut(self._stored, Identity(0), max(self._block_tokens // seq_len, 1))

    def sized(self, seq_len: int, rows: int | None) -> Shuffle:
        if rows is None:  # the first phase, which is what it would be alone
            return self._shuffle
        return self._shuffle.resized(max(self._block_tokens // seq_len, 1), rows)

    def _leave(self, part: PlannedDataset, cut: _Cut, position: int, epoch: int) -> LeftPieces:
        source = cut.dataset.sources[0]
        if isinstance(source, FurtherRows):
            source = source.further if part.has_further_rows else source.rows
        return LeftPieces(*cast(PackedRows, source).items(_rows_from(part, position, epoch)))

    def _cut_left(self, left: Sequence[LeftPieces], seq_len: int) -> tuple[int, int]:
        pieces = LeftPieces.join(left)
        stored = self._dataset.with_rows(seq_len)
        packs = pack_left(stored, pieces)
        self._stored = stored if packs is None else stored.with_further(packs)
        if packs is None:
            return 0, pieces.total
        return packs.num_rows, pieces.total - packs.packed_tokens


class FurtherDataset(WrappingDataset):
    """The further rows of a dataset whose only source is a :class:`FurtherRows`."""

    def __init__(self, base: PlannedDataset) -> None:
        self.base = base
        source = cast(FurtherRows, base.sources[0])
        self._first = source.rows.num_rows
        self._rows = source.further.num_rows

    @property
    def has_further_rows(self) -> bool:
        return True

    @property
    def length(self) -> int:
        return self._rows

    def describe(self) -> dict[str, Any]:
        return {"further": self._rows, "of": self.base.describe()}

    def default_io_block_size(self) -> int:
        return self.base.default_io_block_size()

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        return Rows(np.zeros_like(indices), indices + self._first, indices / max(self._rows, 1))


def tokens_of_rows(dataset: PlannedDataset, rows: Int64[np.ndarray, " n"]) -> Intervals:
    """The tokens of rows of a dataset over one cache.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> tokens_of_rows(dataset, np.array([5, 0, 1]))
        Intervals(0..16, 40..48)
    """
    (source,) = dataset.sources
    pieces = source.pieces(dataset.locate(rows).row)
    begin = source.first_token[pieces.array] + pieces.start
    return Intervals(begin, begin + pieces.size)


class LeftRows(RowSource):
    """The tokens of a set in rows like those of a source over a cache, in stored order.

    Tokens are numbered through all parts of the cache. Rows continue across the gaps of the set and
    across the ends of parts, so that fewer tokens are left out than a row holds. Price: 24 bytes
    and 0.4 us per row.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> tokens = Intervals(np.array([3, 20]), np.array([6, 30]))
        >>> rows = LeftRows(dataset.sources[0], tokens)
        >>> (
        ...     rows.num_rows,
        ...     rows.pieces(np.array([0])).start.tolist(),
        ...     rows.pieces(np.array([0])).size.tolist(),
        ... )
        (1, [3, 20], [3, 5])
    """

    def __init__(self, source: RowSource, tokens: Intervals) -> None:
        super().__init__(source.cache, source.name, source.row_elements, source.columns)
        self._num_rows = tokens.total // self.row_elements
        # No range crosses two parts
        self._start, stop = tokens.split_at(self.first_token)
        self._place = starts(
            stop - self._start
        )  # where each range begins among the tokens of the set

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        begin = rows * self.row_elements
        end = begin + self.row_elements
        row, number, low, high = cut_ranges(begin, end, self._place[:-1], self._place[1:])
        array, start = self.in_arrays(self._start[number] + (low - self._place[number]))
        return Pieces(row, low - begin[row], array, start, high - low)


def _rows_from(part: PlannedDataset, position: int, epoch: int) -> Int64[np.ndarray, " n"]:
    """The rows of a part of an epoch from a position on."""
    positions = np.arange(position, len(part))
    order = part.shuffle_order() or Identity(len(part))
    return order.at(positions, np.full_like(positions, epoch))


def _limit(
    name: str,
    course: _Course,
    component: Continued,
    mixture: MixtureDataset,
    epochs: float | None,
) -> int | None:
    """Largest number of examples of a component in the run if its rows keep the new length;
    ``mixture`` ends here.
    """
    limit = mixture.limits[name]
    if limit is None:
        return None
    remaining_rows = max(limit - component.first, 0) * mixture.seq_len // component.seq_len
    if epochs is None:
        return component.first + remaining_rows
    # A pass has as many rows as it has: those of packs follow from their padding, not from the rows
    # of another length
    rows_left = component.rest_rows + int((epochs - component.whole_epoch) * len(component.whole))
    if epochs < component.whole_epoch:  # it ends within the pass that the change cut short
        rows_left = min(remaining_rows, component.rest_rows)
    by_tokens = course.token_limit
    if by_tokens is not None:
        by_tokens = max(by_tokens - component.first, 0) * mixture.seq_len // component.seq_len
        rows_left = min(rows_left, by_tokens)
        course.token_limit = component.first + by_tokens
    return component.first + rows_left
