"""Pieces of rows of several sources in one pass, against each source by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MixtureDataset, TokenSeqDataset
from headrace.data import PackedTokenDataset, PlannedDataset
from headrace.data.documents import DocumentFilter
from headrace.data.rows import JoinedRows, RowSource
from headrace.order.intervals import Intervals
from headrace.testing import tiny_cache


@pytest.fixture(scope="module")
def sources() -> list[RowSource]:
    caches = [tiny_cache(seed=seed) for seed in range(4)]
    removed = DocumentFilter(Intervals(np.array([2, 9]), np.array([4, 10])))
    datasets = [
        TokenSeqDataset(caches[0], 8),
        TokenSeqDataset(caches[1], 8, removed=removed),
        PackedTokenDataset(caches[2], 8),
        TokenSeqDataset(caches[3], 8, block_tokens=24),
        TokenSeqDataset(caches[0], 8),
    ]
    return [source for dataset in datasets for source in dataset.sources]


@given(st.data())
def test_pieces_are_those_of_each_source(sources: list[RowSource], data: st.DataObject):
    present = data.draw(st.sets(st.integers(0, len(sources) - 1), min_size=1))
    places = [(k, row) for k in sorted(present) for row in range(sources[k].num_rows)]
    source, row = (
        np.array(data.draw(st.lists(st.sampled_from(places), max_size=30)), np.int64)
        .reshape(-1, 2)
        .T
    )
    first_array = np.cumsum([0] + [len(one.arrays) for one in sources])[:-1]
    pieces = JoinedRows(sources).pieces(source, row, first_array)
    expected = []
    for number, (k, r) in enumerate(zip(source.tolist(), row.tolist(), strict=True)):
        of_row = sources[k].pieces(np.array([r]))
        columns = (of_row.column, of_row.array + first_array[k], of_row.start, of_row.size)
        expected += [(number, *one) for one in zip(*(c.tolist() for c in columns), strict=True)]
    assert list(zip(*(field.tolist() for field in pieces), strict=True)) == expected


def test_a_mixture_finds_rows_of_shuffled_and_other_components_alike():
    datasets = {
        f"c{seed}": TokenSeqDataset(tiny_cache(seed=seed), 8, name=f"c{seed}") for seed in range(3)
    }
    components = {
        "c0": datasets["c0"].braid_shuffle(seed=1, strands=2).repeat(),
        "c1": datasets["c1"].repeat(),
        "c2": datasets["c2"].shuffle(3).repeat(),
    }
    mixture = MixtureDataset(components, dict.fromkeys(components, 1), batch_size=6)
    indices = np.arange(600)
    component, ordinal = mixture.draws.route(indices)
    located = mixture.locate(indices)
    for number, dataset in enumerate(components.values()):
        some = component == number
        assert isinstance(dataset, PlannedDataset)
        alone = dataset.locate(ordinal[some])
        np.testing.assert_array_equal(located.row[some], alone.row)
        np.testing.assert_array_equal(located.locality[some], alone.locality)
        assert (located.source[some] == number).all()
