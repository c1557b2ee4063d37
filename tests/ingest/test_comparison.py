"""Which documents are encoded twice."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.part_builder import FIRST_BYTES, FIRST_DOCUMENTS, ONE_IN, compared_indices


@given(st.integers(0, 5000), st.lists(st.integers(1, 3000), min_size=1, max_size=7))
def test_the_sample_does_not_depend_on_how_a_part_is_cut_into_batches(total: int, cuts: list[int]):
    sizes = np.ones(total, int).tolist()
    whole = compared_indices("00003", 0, sizes)
    pieces = list[int]()
    start = 0
    for length in [FIRST_DOCUMENTS, *cuts, total]:
        pieces += [
            start + i for i in compared_indices("00003", start, sizes[start : start + length])
        ]
        start += length
    assert pieces == whole
    after = [i for i in whole if i >= FIRST_DOCUMENTS]
    assert total // ONE_IN - 1 <= len(after) <= total // ONE_IN + 1


def test_first_documents_are_compared_as_far_as_there_are_bytes_for_them():
    assert compared_indices("0", 0, []) == []
    assert compared_indices("0", 0, [10 * FIRST_BYTES, 1, 1])[:2] == [0]
    assert compared_indices("0", 0, [FIRST_BYTES // 2] * 3)[:2] == [0, 1]
    assert compared_indices("0", 0, [0] * 100)[:FIRST_DOCUMENTS] == list(range(FIRST_DOCUMENTS))


def test_other_parts_compare_others():
    samples = {tuple(compared_indices(str(part), ONE_IN, [1] * ONE_IN)) for part in range(50)}
    assert len(samples) > 40
    assert {len(s) for s in samples} == {1}


def test_pinned():
    assert compared_indices("00000", 1024, [100] * 4096) == [629, 1999, 2905, 3834]
