"""Where documents begin, told chunk after chunk."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pack.starts import DocumentStarts


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=90), st.data())
def test_starts_are_sums_whatever_the_chunks(chunks, data):
    starts = DocumentStarts()
    for chunk in chunks:
        starts.add(np.array(chunk, np.int64))
    lengths = np.array([n for chunk in chunks for n in chunk], np.int64)
    wanted = np.cumsum(lengths) - lengths
    documents = np.array(
        data.draw(st.lists(st.integers(0, max(lengths.size - 1, 0)), max_size=9)), np.int64
    )
    documents = documents[: lengths.size and documents.size]
    assert starts.of(documents).tolist() == wanted[documents].tolist()
    if documents.size:
        starts.forget(int(documents.min()))
        assert starts.of(documents).tolist() == wanted[documents].tolist()
