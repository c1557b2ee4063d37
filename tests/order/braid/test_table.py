"""Many braids in one pass: row for row what each of them says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.braid import BraidShuffle, BraidTable


def some_braids() -> list[BraidShuffle]:
    lengths = np.array([1, 7, 100, 1000, 10**12, 90, 950])
    blocks = np.array([4, 4, 16, 8, 32, 16, 8])
    strands = np.array([1, 2, 30, 64, 8192, 30, 64])
    laps = np.array([0.3, 2, 9.7, 64, 1024, 9.7, 64])
    seeds = [5, 6, 7, 8, 9, 10, 11]
    firsts = np.cumsum(strands) - strands
    return [
        BraidShuffle(
            int(n),
            io_block_size=int(b),
            strands=int(k),
            lap=float(c),
            seed=s,
            first_strand=int(f),
        )
        for n, b, k, c, s, f in zip(lengths, blocks, strands, laps, seeds, firsts, strict=True)
    ]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 10**13)), max_size=40))
def test_table_equals_its_components_repeated(draws: list[tuple[int, int]]) -> None:
    alone = some_braids()
    table = BraidTable.of(alone)
    component = np.array([c for c, _ in draws], np.int32)
    ordinal = np.array([o for _, o in draws], np.int64)
    rows, locality = table(component, ordinal)
    for k, (c, o) in enumerate(draws):
        epoch, place = np.divmod(np.array([o]), len(alone[c]))
        row, where = alone[c].resolve(place, epoch)
        assert (rows[k], locality[k]) == (row[0], where[0])


def test_a_table_of_braids() -> None:
    alone = some_braids()
    i = np.arange(500)
    for own in (alone, [BraidShuffle(999, io_block_size=8, strands=50, seed=3), *alone]):
        held = BraidTable.of(own)
        component = (i % len(own)).astype(np.int32)
        rows, locality = held(component, i)
        for c, order in enumerate(own):
            mine = component == c
            epoch, place = np.divmod(i[mine], len(order))
            expected = order.resolve(place, epoch)
            assert np.array_equal(rows[mine], expected[0])
            assert np.array_equal(locality[mine], expected[1])


def test_components_do_not_tie() -> None:
    """Equal components lie at different places of their cells, so sorting never shuffles them
    between hosts.
    """
    table = BraidTable.of(
        [BraidShuffle(100, io_block_size=8, strands=1, seed=k, first_strand=k) for k in range(50)]
    )
    _, locality = table(np.arange(50, dtype=np.int32), np.zeros(50, np.int64))
    assert len(set(locality.tolist())) == 50


def test_a_table_refuses_an_empty_component() -> None:
    with pytest.raises(ConfigError, match="component 1: cannot be mixed: it is empty"):
        BraidTable.of([BraidShuffle(n, io_block_size=2, strands=1, seed=n) for n in (3, 0)])
