"""Braided shuffle: bijective, the same for any number of hosts, close to a full shuffle, without
bursts.
"""

import math
from bisect import bisect_right
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.order.braid import LAP_BITS, BraidShuffle, BraidTable, braid_spec, lattice_step
from headrace.order.permutation import permute
from headrace.order.seeds import derive, fold

PINNED = [
    14,
    31,
    9,
    34,
    16,
    21,
    12,
    19,
    8,
    3,
    17,
    23,
    15,
    18,
    24,
    2,
    4,
    22,
    13,
    29,
    25,
    0,
    7,
    26,
    33,
    28,
    10,
    1,
    6,
    27,
    32,
    30,
    11,
    35,
    5,
    20,
    36,
]
PINNED_EPOCH_1 = [10, 6, 24, 16, 32, 12, 8, 4]
PINNED_STRANDS = [4, 2, 0, 5, 3, 1, 4, 2, 0, 5, 3, 1]
PINNED_LOCALITY = [0.982666, 0.649333, 0.316]
PINNED_BIG = [743470879515, 881985566489, 959188164961, 916416542696, 386197935853]
PINNED_FEW = [33, 12, 18, 27, 21, 26, 31, 16]
PINNED_MANY = [883, 853, 45, 3019, 1176, 1197, 1118, 3196]
PINNED_MIXED = [
    9,
    14,
    22,
    25,
    13,
    16,
    3,
    8,
    12,
    29,
    26,
    33,
    17,
    0,
    24,
    7,
    28,
    27,
    32,
    4,
    2,
    10,
    6,
    30,
    1,
    20,
    35,
    19,
    11,
    5,
    23,
    36,
    21,
    15,
    18,
    31,
    34,
]


@st.composite
def laps(draw: st.DrawFn, strands: int) -> float:
    """A divisor of the strands, or any number that is not whole."""
    if draw(st.booleans()):
        return draw(st.sampled_from([d for d in range(1, strands + 1) if strands % d == 0]))
    units = draw(st.integers(1, (strands << LAP_BITS) - 1))
    return draw(st.sampled_from([(units | 1) / 2**LAP_BITS, (units + 1 / 3) / 2**LAP_BITS]))


@st.composite
def braids(draw: st.DrawFn, least: int = 0, most: int = 2000, whole: bool = False) -> BraidShuffle:
    n = draw(st.integers(least, most))
    strands = draw(st.integers(1, max(n // 40, 1)) | st.integers(1, max(n, 1)))
    lap = draw(laps(strands).filter(lambda lap: not whole or lap == int(lap)))
    part = draw(st.integers(1, 4) | st.integers(1, n + 3))
    block = part * draw(st.sampled_from([1, 1, 2, 5]))
    seed = draw(st.integers(0, 1 << 40))
    return BraidShuffle(n, io_block_size=block, part=part, strands=strands, lap=lap, seed=seed)


def epochs_like(i: np.ndarray, epoch: int) -> np.ndarray:
    return np.full(i.shape, epoch, np.int64)


@given(braids(), st.integers(0, 1 << 40))
def test_bijection(m: BraidShuffle, epoch: int) -> None:
    i = np.arange(len(m))
    assert np.array_equal(np.sort(m.at(i, epochs_like(i, epoch))), i)


def test_bijection_for_every_length_up_to_2000() -> None:
    rng = np.random.default_rng(0)
    for n in range(2001):
        most = max(n, 1) if n % 2 else max(n // 40, 1)  # short strands, long strands
        strands = int(rng.integers(1, most + 1))
        block = int(rng.integers(1, n + 3 if n % 2 else 4))
        whole = rng.choice([d for d in range(1, strands + 1) if strands % d == 0])
        fraction = (int(rng.integers(1, strands << LAP_BITS)) | 1) / 2**LAP_BITS
        lap = int(whole) if n // 2 % 2 else fraction  # with short strands and with long ones
        m = BraidShuffle(n, io_block_size=block, strands=strands, lap=lap, seed=n)
        i = np.arange(n)
        assert np.array_equal(np.sort(m.at(i, epochs_like(i, n % 5))), i), (n, strands, block, lap)


def slow_scatter(x: int, size: int, word: int) -> int:
    """Four rounds of swap-or-not in Python integers."""
    for _ in range(4):
        word = (word ^ (word >> 29)) * 0xBF58476D1CE4E5B9 % 2**64
        other = ((word >> 32) * size // 2**32 - x) % size
        x = other if word >> (max(x, other) % 64) & 1 else x
    return x


def slow_key(key: int, *path: int) -> int:
    keys = np.array([key], np.uint64)
    for part in path:
        keys = fold(keys, np.array([part], np.uint64))
    return int(keys[0])


def slow_place(v: int, n: int, block: int, part: int, strands: int, key: int, epoch: int) -> int:
    """The row at a place of the epoch's sequence."""
    if -(-n // part) <= min(strands, 64):
        return int(permute(np.array([v]), n, slow_key(key, epoch, 5))[0])
    b = v // block
    full = n // block
    p, place = divmod(v, part)
    size = min(part, n - p * part)
    inside = slow_key(key, epoch, 3, p)
    inner = (place * lattice_step(size) + ((inside >> 32) * size >> 32)) % size
    inner = slow_scatter(inner, size, inside)
    outer = int(permute(np.array([b]), full, slow_key(key, epoch, 2))[0]) if b < full else full
    return outer * block + p * part - b * block + inner


def slow_row(
    n: int,
    block: int,
    part: int,
    strands: int,
    lap: float,
    key: int,
    first_strand: int,
    p: int,
    epoch: int,
) -> tuple[int, float, int]:
    """Row, locality and strand by the definition in Python integers, which do not overflow.
    Permutations and hashes are those of headrace.
    """

    one = 2 ** min(max((62 - math.frexp(lap)[1]) // 2, 20), 30)
    period = round(lap * one)
    cells, fraction = divmod(period, one)
    depth = strands * one // period

    def visits(x: int) -> tuple[int, int]:
        t = ((x + 1) * one - 1) // period  # lap t begins with draw t * period // one
        place = x - t * period // one
        return t * cells + min(place, cells), place

    begin = n % period * (epoch % 2**21) % period
    (before, _), (after, _), (now, place) = visits(begin), visits(begin + n), visits(begin + p)
    extra = place >= cells
    mine = now - before
    draws = after - before
    earlier = before
    if extra:
        mine = p - mine
        draws = n - draws
        earlier = begin - before
    first = int(fraction > 0 and cells > 0)
    ring = max(cells - first, 1)
    corner = slow_key(key, 4)
    cell = (
        0
        if place < first
        else first + ((place - first) * lattice_step(ring) + (corner % 2**32 * ring >> 32)) % ring
    )
    low = 2.0**-10 if fraction else 0.0
    round_cells = cells
    round_depth = depth
    round_cell = cell
    if extra:
        round_cells = max(strands - cells * depth, 1)
        round_depth = 1
        round_cell = mine % round_cells * lattice_step(round_cells) % round_cells
    turn, visit = divmod(mine, round_cells * round_depth)
    nth = visit // round_cells
    rounds, rest = divmod(draws, round_cells * round_depth)
    short = rounds < 16 * min(block, n)
    longer, over = divmod(rest, round_cells) if short else (0, 0)
    lengths = [rounds + (k < longer) for k in range(round_depth)]
    apart = min(max(round_depth * rounds // min(block, n), 1), round_depth)
    order = sorted(range(round_depth), key=lambda k: (k % apart, k))  # of the strands of a cell
    at = order.index(nth)
    spot = round_cell * round_depth + at + (cells * depth if extra else 0)
    length = lengths[nth]
    start = round_cell * sum(lengths) + sum(lengths[k] for k in order[:at])
    if not short:
        length = rounds + (visit < rest)
        start = visit * rounds + min(visit, rest)
    if extra or place < first:
        locality = low * ((corner >> 44) / 2**20 + extra * 2.0**-21)
    else:
        locality = low + (cell - first + (corner >> 44) / 2**20) * ((1.0 - low) / ring)

    if draws < 2**40:
        left = [(k + 1) * draws // over - 1 for k in range(over)]
    else:
        left = [(k + 1) * (draws // over) - 1 for k in range(over)]

    def with_gaps(x: int) -> int:
        return x + bisect_right([hole - k for k, hole in enumerate(left)], x)

    block = min(block, n)
    spread = (spot + first_strand) * 0x9E3779B9 % 2**32
    earlier //= round_cells * round_depth
    if length >= block:
        turned = (
            (spot * 0x91E10DA5 + (slow_key(key, epoch, 1) >> 32))
            % 2**32
            * min(length // block, 8)
            // 2**32
        )
        phase = (
            (spread * block // 2**32 + earlier) % block - with_gaps(start)
        ) % block + turned * block
    else:
        phase = (spread + slow_key(key, epoch, 1)) % 2**32 * length // 2**32
    if mine >= draws - over:  # the draws after the last whole lap
        columns = min(max(draws // block, 1), over)
        v = left[sorted(range(over), key=lambda k: (k % columns, k)).index(mine - (draws - over))]
    else:
        v = with_gaps(start + (turn + phase) % length)
    v += after - before if extra else 0
    return slow_place(v, n, block, part, strands, key, epoch), locality, spot


def strands_of(m: BraidShuffle, i: np.ndarray, epoch: int = 0) -> np.ndarray:
    """Strand of each position."""
    key = derive(m.seed, "braid")
    sizes = len(m), m.io_block_size, m.part, m.strands, m.lap, key, m.first_strand
    return np.array([slow_row(*sizes, p, epoch)[2] for p in i.tolist()])


@given(st.data())
def test_equals_the_definition_up_to_the_largest_sizes(data: st.DataObject) -> None:
    n = data.draw(
        st.one_of(st.integers(1, 300), st.integers(1, 1 << 62), st.integers((1 << 62) - 9, 1 << 62))
    )
    strands = data.draw(st.one_of(st.integers(1, min(n, 500)), st.integers(1, min(n, 100_000))))
    lap = (
        data.draw(laps(strands))
        if strands < 5000
        else (data.draw(st.integers(1, strands << 19)) * 2 + 1) / 2**20
    )
    block = data.draw(st.one_of(st.integers(1, 600), st.integers(1, 1 << 31)))
    part = block // data.draw(st.sampled_from([k for k in (1, 2, 3, 16) if block % k == 0]))
    key = data.draw(st.integers(0, (1 << 64) - 1))
    epoch = data.draw(st.one_of(st.integers(0, 9), st.integers(0, 1 << 62)))
    p = [0, n - 1, *data.draw(st.lists(st.integers(0, n - 1), max_size=5))]
    first = data.draw(st.integers(0, 1 << 40))
    lap = min(lap, strands)
    sizes = {"io_block_size": block, "part": part, "strands": strands}
    spec = braid_spec(n, **sizes, lap=lap, key=key, first_strand=first)
    i = np.array(p, np.int64)
    rows, locality = BraidTable(spec)(None, i, epochs_like(i, epoch))
    expected = [slow_row(n, block, part, strands, lap, key, first, x, epoch) for x in p]
    assert rows.tolist() == [row for row, _, _ in expected]
    assert locality.tolist() == [where for _, where, _ in expected]
    assert ((locality >= 0) & (locality < 1)).all()


def test_pinned_order() -> None:
    """Changing this is a release note and a new order version."""
    m = BraidShuffle(37, io_block_size=4, strands=6, lap=3, seed=0)
    i = np.arange(37)
    assert m(i).tolist() == PINNED
    assert m.at(i[:8], epochs_like(i[:8], 1)).tolist() == PINNED_EPOCH_1
    assert strands_of(m, i[:12]).tolist() == PINNED_STRANDS
    assert np.round(m.locality(i[:3]), 6).tolist() == PINNED_LOCALITY
    mixed = BraidShuffle(37, io_block_size=4, strands=8, lap=3.6, seed=0)
    assert mixed(i).tolist() == PINNED_MIXED
    few = BraidShuffle(37, io_block_size=4, strands=37, lap=3.6, seed=0)
    many = BraidShuffle(3700, io_block_size=16, strands=37, lap=3.6, seed=0)
    big = BraidShuffle(10**12, io_block_size=32, strands=8192, lap=1024, seed=7)
    assert (few.permutes_all, many.permutes_all, big.permutes_all) == (True, False, False)
    assert few(i[:8]).tolist() == PINNED_FEW
    assert many(i[:8]).tolist() == PINNED_MANY
    assert big(np.array([0, 1, 2, 10**9, 10**12 - 1])).tolist() == PINNED_BIG


PINNED_RUNS = [18369, 22082, 30907, 7497, 18378, 22083, 30906, 7518]


def test_parts_of_a_block_are_drawn_one_after_the_other_as_stored() -> None:
    m = BraidShuffle(16 * 64 * 40, io_block_size=64 * 16, part=16, strands=4, seed=3)
    i = np.arange(len(m))
    drawn = m(i)
    strands = (m.locality(i) * 4).astype(int)  # laps of one draw for each strand
    jumps = 0
    for strand in range(4):
        part = drawn[strands == strand] // 16
        follows = np.diff(part)[np.diff(part) != 0]
        jumps += int((follows != 1).sum())
    assert jumps <= 40 + 3 * 4  # from block to block, and where strands begin and end
    other_epoch = m.at(i, epochs_like(i, 1))
    assert (drawn // 1024 != other_epoch // 1024).mean() > 0.9
    assert m(i[:8]).tolist() == PINNED_RUNS
    with pytest.raises(ConfigError, match="part = 5: must divide io_block_size"):
        BraidShuffle(100, io_block_size=16, part=5, strands=4, seed=3)


def test_the_rule_for_few_blocks() -> None:
    def whole(n: int, block: int, strands: int) -> bool:
        return BraidShuffle(n, io_block_size=block, strands=strands, seed=0).permutes_all

    assert whole(64 * 32, 32, 64)
    assert whole(5, 32, 5)
    assert not whole(64 * 32, 32, 63)  # it would open more than the strands do
    assert not whole(64 * 32 + 1, 32, 128)  # 65 blocks


@pytest.mark.parametrize(("block", "batch"), [(32, 128), (64, 64)])
def test_neighbours_are_other_distances_apart_in_every_epoch(block: int, batch: int) -> None:
    n = 1 << 16
    m = BraidShuffle(n, io_block_size=block, strands=8 * batch, lap=batch, seed=1)
    distances = []
    for epoch in range(3):
        position = np.empty(n, np.int64)
        position[m.at(np.arange(n), np.full(n, epoch))] = np.arange(n)
        distances.append(np.abs(np.diff(position)))
    assert max(float((a == b).mean()) for a, b in pairwise(distances)) <= 0.05


@pytest.mark.parametrize(("n", "batch", "block"), [(64, 8, 8), (256, 32, 32), (1000, 16, 32)])
def test_epochs_of_small_sources_are_full_shuffles(n: int, batch: int, block: int) -> None:
    m = BraidShuffle(n, io_block_size=block, strands=8 * batch, lap=batch, seed=0)
    epochs = 200
    order = np.concatenate([m.at(np.arange(n), np.full(n, epoch)) for epoch in range(epochs)])
    assert len({part.tobytes() for part in order.reshape(epochs, n)}) == epochs
    batches = order[: order.size // batch * batch].reshape(-1, batch)
    meetings = np.zeros((n, n), np.int64)
    np.add.at(meetings, (batches[:, :, None], batches[:, None, :]), 1)
    pairs = meetings[np.triu_indices(n, 1)]
    assert pairs.var() / pairs.mean() <= 1.3
    assert (pairs == 0).mean() <= 1.5 * (1 - (batch - 1) / (n - 1)) ** (order.size / n) + 1e-9


@given(st.floats(0.01, 2000.0).filter(lambda lap: lap != int(lap)), st.integers(0, 2_000_000))
@example(
    np.nextafter(3.0, 0.0), 1_000_000
)  # whole in as many places as are counted, and no divisor of the strands
@example(np.nextafter(3.0, 4.0), 1_000_000)
def test_laps_stay_with_the_batches_over_a_long_run(lap: float, step: int) -> None:
    """The draw that begins a lap is that of the batch with its number, but for a hundredth of a
    row.
    """
    spec = braid_spec(1 << 40, io_block_size=32, strands=4096, lap=lap, key=0)
    begins = int(spec.period[0]) * step / 2 ** int(spec.bits[0])
    assert abs(begins - lap * step) < 0.04


@given(braids(least=1), st.data())
def test_batched_equals_one_by_one(m: BraidShuffle, data: st.DataObject) -> None:
    i = np.array(data.draw(st.lists(st.integers(0, len(m) - 1), min_size=1, max_size=20)), np.int64)
    epoch = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=len(i), max_size=len(i))), np.int64
    )
    assert m.at(i, epoch).tolist() == [
        int(m.at(i[k : k + 1], epoch[k : k + 1])[0]) for k in range(len(i))
    ]
    rows, where = m.resolve(i, epoch)
    assert rows.tolist() == m.at(i, epoch).tolist()
    assert where.tolist() == m.locality(i, epoch).tolist()
    assert where.tolist() == [
        float(m.locality(i[k : k + 1], epoch[k : k + 1])[0]) for k in range(len(i))
    ]


def test_slices_of_a_long_batch_agree() -> None:
    """Longer than the pieces that are computed at a time."""
    m = BraidShuffle(10**7, io_block_size=32, strands=96, lap=12, seed=1)
    i = np.arange(20_000) * 487
    epoch = i % 3
    whole = m.at(i, epoch)
    assert np.array_equal(
        whole,
        np.concatenate([m.at(i[k : k + 999], epoch[k : k + 999]) for k in range(0, 20_000, 999)]),
    )


@given(braids(least=1, most=200), st.integers(0, 5))
def test_strands_are_of_equal_length(m: BraidShuffle, epoch: int) -> None:
    i = np.arange(len(m))
    strand = strands_of(m, i, epoch)
    visits = np.bincount(strand, minlength=m.strands)
    assert len(visits) == m.strands
    regular = int(m.lap) * int(
        m.strands / m.lap
    )  # the others take the extra draws of laps that are not whole
    for group in (visits[:regular], visits[regular:]):
        assert group.size == 0 or group.max() - group.min() <= 1
    if m.lap == int(m.lap):
        assert regular == m.strands


def run_of(m: BraidShuffle, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and epochs of the first draws of a run."""
    epoch, i = np.divmod(np.arange(draws), len(m))
    return i, epoch


@given(braids(least=1, whole=True))
def test_any_lap_takes_each_cell_once(m: BraidShuffle) -> None:
    """Wherever it starts, also over the end of an epoch; cell c has localities in [c / lap, (c + 1)
    / lap).
    """
    lap = int(m.lap)
    locality = m.locality(*run_of(m, 3 * len(m) + lap))
    assert ((locality >= 0) & (locality < 1)).all()
    cell = (locality * lap).astype(int)
    for start in (0, 1, len(m) // 3, len(m) - 1, 2 * len(m) - lap // 2):
        assert sorted(cell[start : start + lap].tolist()) == list(range(lap))


@given(braids(least=1, most=200, whole=True))
def test_a_strand_has_one_cell(m: BraidShuffle) -> None:
    i = np.arange(len(m))
    strand = strands_of(m, i)
    cell = (m.locality(i) * m.lap).astype(int)
    assert len(np.unique(np.stack([strand, cell]), axis=1).T) == len(np.unique(strand))


def touched_by_walking(m: BraidShuffle, drawn: int, epoch: int) -> set[int]:
    """Blocks of the epoch's sequence, found row by row."""
    _, full, key = m.block_permutation(epoch)
    sequence = permute(np.arange(full), full, key).tolist()
    i = np.arange(drawn)
    stored = np.unique(m.at(i, epochs_like(i, epoch)) // min(m.io_block_size, len(m))).tolist()
    return {sequence.index(block) if block < full else full for block in stored}


@given(braids(least=1, most=1000), st.integers(0, 9), st.floats(0, 1))
def test_touched_blocks_are_those_of_the_rows(m: BraidShuffle, epoch: int, share: float) -> None:
    """And few others: between two draws of a strand lies what the last draws of an epoch take."""
    for drawn in (round(share * len(m)), max(len(m) - 3, 0), len(m)):
        touched = m.touched_blocks(drawn, epoch)
        numbers = set(touched.numbers(np.arange(touched.total)).tolist())
        walked = touched_by_walking(m, drawn, epoch)
        assert numbers >= walked
        if m.io_block_size > 1:
            assert len(numbers) - len(walked) <= m.strands


@given(braids(least=1), st.data())
def test_every_batch_of_lap_rows_takes_the_same_cells(m: BraidShuffle, data: st.DataObject) -> None:
    """A quota gives step s the draws from floor(lap s) or one more on: what differs between steps
    lies at the front.
    """
    steps = min(30, int(3 * len(m) / m.lap))
    early = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=steps + 1, max_size=steps + 1)), np.int64
    )
    starts = np.floor(np.arange(steps + 1) * m.lap).astype(int) + (
        early if m.lap != int(m.lap) else 0
    )
    locality = m.locality(*run_of(m, int(starts[-1])))
    ring = [
        sorted(x for x in locality[a:b].tolist() if m.lap == int(m.lap) or x >= 2**-10)
        for a, b in pairwise(starts)
    ]
    assert all(cells == ring[0] for cells in ring)
    assert not ring or len(ring[0]) >= int(m.lap) - 1


@given(braids(least=1, most=600), st.integers(1, 5), st.integers(0, 3))
def test_the_order_and_the_reading_fronts_do_not_depend_on_hosts(
    m: BraidShuffle, batches: int, epoch: int
) -> None:
    """Hosts take equal parts of each batch sorted by locality: together they have the batch, rows
    in the same order.
    """
    batch = max(1, len(m) // batches)
    for step in range(len(m) // batch):
        i = np.arange(step * batch, (step + 1) * batch)
        rows = m.at(i, epochs_like(i, epoch))
        where = m.locality(i, epochs_like(i, epoch))
        order = np.argsort(where, kind="stable")
        whole = rows[order]
        for hosts in (1, 2, 3, 8):
            parts = [order[batch * h // hosts : batch * (h + 1) // hosts] for h in range(hosts)]
            again = [
                m.at(i[p], epochs_like(p, epoch)) for p in parts
            ]  # each host computes its own rows only
            assert np.array_equal(np.concatenate(again), whole)
            fronts = [where[p] for p in parts if len(p)]
            assert all(a.max() <= b.min() for a, b in pairwise(fronts))


@given(braids(least=50))
def test_epochs_and_seeds_give_other_orders(m: BraidShuffle) -> None:
    """A corpus of one block has some 100 orders: two epochs in a row may agree, ten do not."""
    i = np.arange(len(m))
    first = m(i)
    assert any(not np.array_equal(m.at(i, epochs_like(i, epoch)), first) for epoch in range(1, 10))
    others = [
        BraidShuffle(
            len(m), io_block_size=m.io_block_size, strands=m.strands, lap=m.lap, seed=m.seed + k
        )
        for k in range(1, 10)
    ]
    assert any(not np.array_equal(other(i), first) for other in others)


def test_epochs_are_unrelated() -> None:
    m = BraidShuffle(50_000, io_block_size=16, strands=512, lap=64, seed=0)
    i = np.arange(50_000)
    zero = m(i)
    one = m.at(i, epochs_like(i, 1))
    assert abs(np.corrcoef(np.argsort(zero), np.argsort(one))[0, 1]) < 0.03
    assert (zero == one).mean() < 0.001


def test_empty_and_out_of_range() -> None:
    m = BraidShuffle(0, io_block_size=4, strands=1, seed=0)
    assert m(np.zeros(0, np.int64)).tolist() == []
    with pytest.raises(IndexOutOfRangeError):
        m(np.array([0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"io_block_size": 0}, "io_block_size = 0: must be at least 1"),
        ({"strands": 0, "lap": None}, "strands = 0: must be at least 1"),
        ({"lap": 0}, r"lap = 0.0: must lie in 2\*\*-20 .. 10"),
        ({"lap": 10.5}, r"lap = 10.5: must lie in 2\*\*-20 .. 10, the number of strands"),
        ({"lap": math.nan}, r"lap = nan: must lie in"),
        (
            {"strands": 101, "lap": None},
            "strands = 101: more strands than the 100 examples.*at most 100",
        ),
        ({"strands": 10, "lap": 4}, "lap = 4: does not divide the 10 strands.*strands: 12"),
        ({"n": -1}, "length = -1"),
        ({"n": 1 << 62, "io_block_size": 1 << 32}, "io_block_size = 4294967296: must be at most"),
        (
            {"n": 1 << 62, "strands": 1 << 23, "lap": None},
            "strands = 8388608: more than 4194304 strands",
        ),
    ],
)
def test_bad_parameters_are_refused(change: dict[str, int], message: str) -> None:
    sizes = {"n": 100, "io_block_size": 8, "strands": 10, "lap": 5, "seed": 0} | change
    with pytest.raises(ConfigError, match=message):
        BraidShuffle(sizes.pop("n"), **sizes)


def test_key_follows_from_the_seed() -> None:
    keys = [BraidShuffle(100, io_block_size=8, strands=10, seed=seed)._spec.key for seed in (0, 1)]
    assert keys[0] != keys[1]
    with pytest.raises(ConfigError, match="a seed is an integer"):
        BraidShuffle(
            100,
            io_block_size=8,
            strands=10,
            seed=0.5,  # pyright: ignore[reportArgumentType]
        )
