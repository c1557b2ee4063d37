"""Evaluates braids: one for many positions, or those of all components of a mixture in one pass.

A mixture of 200 components has a few rows of each in a batch. Mapping them component by component
costs some 100 us each, whatever the number of rows. Here, each row has the parameters of its
component, and the batch is mapped at once by compiled code (:class:`BraidTable`).
:mod:`headrace.order.braid.shuffle` says what a braid is; comments here have the numbers of its
steps. What remains here in NumPy is steps 1 to 5, for questions about orders (strands, touched
blocks); the compiled code has all six.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Integer, UInt64

from headrace.native import native_library
from headrace.order.braid.spec import GOLDEN32, BraidSpec, braid_spec, check_not_empty
from headrace.order.permutation import rectangle
from headrace.order.seeds import derive, fold

_PLASTIC32 = np.uint64(0x91E10DA5)  # 2**32 / plastic number squared: independent of GOLDEN32
_LOW32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_EPOCHS = np.uint64((1 << 21) - 1)
_ONE = np.uint64(1)
_EXACT = np.uint64(1 << 40)  # draws times cells stay below 2**63; beyond, gaps are whole numbers
# Blocks of a strand among which its first is chosen: fewer give bursts, more disturb others' times
_LAST = np.uint64(8)
# Blocks of a strand from which on it is rare that neighbours meet in one block
_LONG = np.uint64(16)
# What a child key is for; see also spec. A vector: numpy warns of overflow, which hashing needs,
# for scalars.
_PHASE = np.array([1], np.uint64)
_SHORT = 1 << 14  # rows of a call during which other threads may wait for the interpreter
_MOST_PLACED = 1 << 12


class Draw(NamedTuple):
    """The position of a draw in the laps."""

    key: np.ndarray  # of its epoch
    begin: np.ndarray  # place of the epoch's first draw in the period
    visits: np.ndarray  # draws of cells (not extra ones) in the period before this one
    extra: np.ndarray  # bool: the extra draw of a lap
    cell: np.ndarray


def count_laps(x: np.ndarray, s: BraidSpec) -> tuple[np.ndarray, np.ndarray]:
    """Draws of cells before the ``x``-th draw, and its place in the lap.

    Lap t begins with draw floor(t lap). With a lap of 2.5, that is 0, 2, 5, 7, 10, ...: laps of 2
    and 3 draws in turn, with ``cells`` = 2 and an extra draw in every second one. All in integers:
    a lap is ``period`` units of 2**-bits rows, so 2**bits laps have ``period`` draws.
    """
    # Whole periods first, so that products stay below 2**63
    periods = x // s.period
    inside = x - periods * s.period
    # The largest t with floor(t period / 2**bits) <= inside
    lap = (((inside + _ONE) << s.bits) - _ONE) // s.period
    offset = inside - ((lap * s.period) >> s.bits)
    lap += periods << s.bits
    return lap * s.cells + np.minimum(offset, s.cells), offset


def place_draws(i: np.ndarray, epoch: np.ndarray, s: BraidSpec) -> Draw:
    """The draws at positions of epochs."""
    # 1. Place in the lap. Epoch e begins with draw e * n of the run, taken modulo the period and
    #    2**21 epochs
    begin = (s.begin * (epoch & _EPOCHS)) % s.period
    visits, offset = count_laps(begin + i, s)
    # 2. The cell, on the golden lattice. If laps have no whole length, cell 0 is for the rows that
    #    come and go, and only the ring of the others is on the lattice
    cell = np.maximum(offset, s.first) - s.first
    cell *= s.step
    cell += s.shift
    cell %= s.ring
    cell += s.first
    cell *= offset >= s.first  # place 0 keeps cell 0 if that one comes and goes
    return Draw(fold(s.key, epoch), begin, visits, offset >= s.cells, cell)


class Spot(NamedTuple):
    """A draw's strand, and its position there."""

    strand: np.ndarray
    rounds_before: np.ndarray  # over all strands, in earlier epochs
    turn: np.ndarray  # examples of the strand that were drawn before in this one
    start: np.ndarray  # of the strand, among the examples of ``draws`` that are not left over
    length: np.ndarray
    draws: np.ndarray  # of the epoch, of this kind
    base: np.ndarray  # where their examples begin
    over: np.ndarray  # examples left over by whole laps, less than a lap; the last draws take them
    late: np.ndarray  # int64: number of the last draws, from 0; negative for others


def find_strands(i: np.ndarray, d: Draw, s: BraidSpec) -> Spot:
    """Strand of each draw.

    Draws of cells, and extra draws, each go round their own strands from the epoch's begin.
    """
    # Count the draws of each kind: in the epoch (``draws``), and before this one (``draw``)
    first_visit = count_laps(d.begin, s)[0]
    end_visit = count_laps(d.begin + s.n, s)[0]
    regular = end_visit - first_visit
    own_visits = d.visits - first_visit
    # Where no lap has an extra draw, numbers of the braid stay single numbers, which are far
    # cheaper to divide by
    extra = bool(d.extra.any())
    either = np.where if extra else _second
    draw = either(d.extra, i - own_visits, own_visits)
    draws = either(d.extra, s.n - regular, regular)
    # Extra draws have a cell for each of their strands
    cells = either(d.extra, s.extra, s.cells)
    depth = either(d.extra, _ONE, s.depth)
    # 3. and 4. Draws go round all strands of the kind; ``visit`` is the position in this round,
    #    ``lap`` tells which of its cell's strands has its turn
    strands = cells * depth
    turn = draw // strands
    visit = draw - turn * strands
    lap = visit // cells
    cell = np.where(d.extra, visit * s.extra_step % s.extra, d.cell) if extra else d.cell
    # 5. Where the strand begins in the sequence, and its length: ``rounds`` examples, or one more.
    #    Strands of many blocks lie in the order of their draws; the first of them are one longer.
    #    Of short strands, many share a block. So that successive draws do not, these lie in the
    #    order of their cells, and those of a cell that are next to each other are drawn ``apart``
    #    laps apart. There, draws that make no whole lap are left over.
    rounds = draws // strands
    rest = draws - rounds * strands
    short = rounds < s.block * _LONG
    longer = np.where(short, rest // cells, 0)  # laps whose strands are one longer
    apart = np.minimum(np.maximum(depth * rounds // s.block, _ONE), depth)
    nth, column = _transposed(lap, depth, apart)
    above = longer // apart
    column_longer = longer - above * apart
    longer_before = column * above + np.minimum(column, column_longer)
    longer_before += np.minimum(lap // apart, above + (column < column_longer))
    strand = cell * depth + nth
    over = np.where(short, rest - longer * cells, 0)
    return Spot(
        strand=strand + s.regular * d.extra,
        rounds_before=either(d.extra, d.begin - first_visit, first_visit) // strands,
        turn=turn,
        start=np.where(
            short,
            strand * rounds + cell * longer + longer_before,
            visit * rounds + np.minimum(visit, rest),
        ),
        length=rounds + np.where(short, lap < longer, visit < rest),
        draws=draws,
        base=regular * d.extra,
        over=over,
        late=(draw + over - draws).view(np.int64),
    )


def _second(_which: np.ndarray, _first: object, second: np.ndarray) -> np.ndarray:
    """``np.where`` of a condition that is true nowhere; the answer may be one number for all."""
    return second


def _transposed(k: np.ndarray, n: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place of ``k < n`` if all are dealt to columns in turn and the columns put in a row.

    Returns the column, too.

    Example:
        Five cards dealt to two columns are 0 2 4 and 1 3.

        >>> _transposed(np.arange(5), np.array([5]), np.array([2]))[0].tolist()
        [0, 3, 1, 4, 2]
    """
    turn = k // columns
    column = k - turn * columns
    height = n // columns
    return column * height + np.minimum(column, n - height * columns) + turn, column


def virtual_places(at: Spot, key: np.ndarray, s: BraidSpec) -> np.ndarray:
    """Positions in the epoch's sequence of blocks; ``key`` is the epoch's."""
    key = fold(key, _PHASE)
    # 5. The phase. A strand changes blocks when its virtual place is a multiple of the block:
    #    spread that, not the phase itself. It begins at one of its first blocks and so comes round
    #    to its begin, which cuts two blocks, near the epoch's end.
    spread = (at.strand * GOLDEN32 + s.spread) & _LOW32
    # of strands that are shorter than a block
    offsets = (spread + (key & _LOW32)) & _LOW32
    inside = skip_left_over(at.start, at) % s.block
    target = (((spread * s.block) >> _S32) + at.rounds_before) % s.block
    blocks = at.length // s.block
    turned = (
        (((at.strand * _PLASTIC32 + (key >> _S32)) & _LOW32) * np.minimum(blocks, _LAST)) >> _S32
    ) * s.block
    phase = np.where(
        blocks > 0,
        target - inside + s.block * (target < inside) + turned,
        (offsets * np.minimum(at.length, s.block)) >> _S32,
    )
    # Neither is above the length: one subtraction is the modulus
    offset = at.turn + phase
    offset -= at.length * (offset >= at.length)
    virtual = skip_left_over(at.start + offset, at)
    # The epoch's last draws, which belong to no strand, take the places that were left over
    last = np.flatnonzero(at.late >= 0)
    if last.size:
        over, draws = (np.broadcast_to(x, virtual.shape)[last] for x in (at.over, at.draws))
        blocks = np.minimum(
            np.maximum(draws // (s.block if s.block.size == 1 else s.block[last]), _ONE), over
        )
        k = _transposed(at.late[last].view(np.uint64), over, blocks)[0] + _ONE
        gap = draws // over
        uneven = np.where(draws < _EXACT, draws - gap * over, 0)
        virtual[last] = k * gap + k * uneven // over - _ONE
    virtual += at.base
    return virtual


def skip_left_over(x: np.ndarray, at: Spot) -> np.ndarray:
    """The ``x``-th example of those that are not left over.

    The others stand evenly between them.
    """
    exact = at.draws < _EXACT
    among = np.where(exact, at.draws - at.over, at.draws // np.maximum(at.over, _ONE) - _ONE)
    gaps = np.where(exact, (x + _ONE) * at.over - (at.over > 0), x) // np.maximum(among, _ONE)
    return x + np.minimum(gaps, at.over)


def spec_of(orders: Sequence[Any]) -> BraidSpec:
    """The parameters of some ``BraidShuffle``, checked."""
    return braid_spec(
        np.asarray([order.length for order in orders], np.int64),
        io_block_size=np.asarray([order.io_block_size for order in orders]),
        strands=np.asarray([order.strands for order in orders]),
        lap=np.asarray([order.lap for order in orders]),
        key=np.asarray([derive(order.seed, "braid") for order in orders], np.uint64),
        first_strand=np.asarray([order.first_strand for order in orders]),
        part=np.asarray([order.part for order in orders]),
    )


class BraidTable:
    """The braids of a ``spec``, evaluated in one pass over draws of any of them.

    Row for row equal to ``Repeat(BraidShuffle(...))`` of each. ``native/braid.c`` computes one row
    after the other, and what the rows of a braid have in common once per epoch; NumPy would pass
    over all rows for each of about 100 operations.

    Price: 0.07 us per row in windows of steps, 0.12 us in batches of 1,024; 15 us per call,
    whatever the number of braids.

    Example:
        >>> from headrace.order.braid.shuffle import BraidShuffle
        >>> table = BraidTable.of(
        ...     [BraidShuffle(n, io_block_size=4, strands=n // 5, seed=n) for n in (10, 100)]
        ... )
        >>> rows, locality = table(
        ...     np.array([0, 1, 0]), np.array([3, 99, 13])
        ... )  # 13: the second epoch of component 0
        >>> bool(
        ...     rows[2]
        ...     == BraidShuffle(10, io_block_size=4, strands=2, seed=10).at(
        ...         np.array([3]), np.array([1])
        ...     )[0]
        ... )
        True
    """

    def __init__(self, spec: BraidSpec) -> None:
        self._spec = spec
        self._is_empty = bool((spec.n == 0).any())

    @classmethod
    def of(cls, orders: Sequence[Any]) -> BraidTable:
        """The table of all components of a mixture.

        Args:
            orders: A ``BraidShuffle`` for each component.

        Raises:
            ConfigError: an empty component.
        """
        check_not_empty(np.asarray([len(order) for order in orders], np.int64))
        return cls(spec_of(orders))

    @cached_property
    def _fields(self) -> UInt64[np.ndarray, "d f"]:
        """The fields of the structure ``Spec`` for each braid."""
        s = self._spec
        columns = [*s, *rectangle(s.full_blocks), *rectangle(s.n)]
        fields = np.stack(
            [np.ascontiguousarray(np.broadcast_to(c, s.n.shape)).view(np.uint64) for c in columns],
            axis=1,
        )
        assert fields.strides == (_bytes_of_structures().spec, 8)
        return fields

    def __call__(
        self,
        component: Integer[np.ndarray, " m"] | None,
        ordinal: Int64[np.ndarray, " m"],
        first_epoch: Int64[np.ndarray, " m"] | None = None,
    ) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
        """Row in its store and locality of each ``ordinal``-th draw of a component (None: the only
        one). Each pass is re-keyed, starting at ``first_epoch`` (None: 0).

        Raises:
            IndexError: no such component; a draw of an empty braid.
        """
        if self._is_empty:  # the compiled code divides by the number of rows
            if ordinal.size:
                raise IndexError("an empty braid has no draws")
            return np.empty(ordinal.shape, np.int64), np.empty(ordinal.shape, np.float64)
        shape = np.broadcast_shapes(
            *(v.shape for v in (component, ordinal, first_epoch) if v is not None)
        )
        arrays = [
            None
            if values is None
            else np.ascontiguousarray(np.broadcast_to(values, shape), np.int64)
            for values in (component, ordinal, first_epoch)
        ]
        rows = np.empty(shape, np.int64)
        where = np.empty(shape)
        if not rows.size:
            return rows, where
        fields = self._fields
        braids = len(fields)
        if arrays[0] is not None and not 0 <= int(arrays[0].min()) <= int(arrays[0].max()) < braids:
            raise IndexError(f"components {arrays[0].min()} .. {arrays[0].max()} of {braids}")
        # Room for what is computed once per epoch, and once per block
        structures = _bytes_of_structures()
        epochs = 1 << (min(braids, 2 * rows.size) - 1).bit_length()
        placed = min(_MOST_PLACED, 1 << (rows.size // 2).bit_length())
        scratch = np.zeros(epochs * structures.epoch + placed * structures.placed, np.uint8)
        at = scratch.ctypes.data
        library = native_library()
        call = (library.short_calls if rows.size <= _SHORT else library.calls).braid_rows
        call(
            rows.size,
            *(None if values is None else values.ctypes.data for values in (fields, *arrays)),
            at,
            epochs - 1,
            at + epochs * structures.epoch,
            placed - 1,
            rows.ctypes.data,
            where.ctypes.data,
        )
        return rows, where


class _StructureBytes(NamedTuple):
    spec: int
    epoch: int
    placed: int


@cache
def _bytes_of_structures() -> _StructureBytes:
    """Bytes of the structures of ``native/braid.c``."""
    calls = native_library().calls
    return _StructureBytes(calls.spec_bytes(), calls.epoch_bytes(), calls.placed_bytes())
