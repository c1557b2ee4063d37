"""Reading rows with few requests: as asked, whatever the order and the repeats."""

import asyncio
import functools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import TokenSeqDataset
from headrace.data.rows import Rows, read_rows
from headrace.errors import ReadError
from headrace.metrics import ReadStats
from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.caches import CountingArray, random_documents, with_arrays


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Documents and their cache by its number, parts and dtype: few, for many examples."""
    root = tmp_path_factory.mktemp("caches")

    @functools.cache
    def written(number, parts, dtype):
        documents = [random_documents(30, seed=10 * number + p) for p in range(parts)]
        layout = CacheLayout(dtype, 50, 3)
        return documents, write_cache(root / f"{number}-{parts}-{dtype}", documents, layout=layout)

    return written


@given(
    rows=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    parts=st.integers(1, 3),
    seq_len=st.integers(2, 60),
    dtypes=st.permutations(["uint8", "uint16", "uint32"]),
)
def test_rows_of_several_sources_in_any_order(caches, rows, parts, seq_len, dtypes):
    """The number of requests is that of the runs of neighbouring rows, counted by hand."""
    datasets = []
    tables = []
    for k, dtype in enumerate(dtypes):
        documents, cache = caches(k, parts, dtype)
        datasets.append(TokenSeqDataset(with_arrays(cache, CountingArray), seq_len))
        tables.append(slow_rows(documents, seq_len))
    sources = [d.sources[0] for d in datasets]
    source = np.array([r % 3 for r in rows], np.int64)
    row = np.array([r % len(tables[r % 3]) for r in rows], np.int64)
    stats = ReadStats()
    found = asyncio.run(read_rows(sources, Rows(source, row, np.zeros(len(rows))), stats))
    wanted = [tables[s][r][1] for s, r in zip(source, row, strict=True)]
    assert found.dtype == np.uint32  # the widest, whichever rows were asked for
    assert np.array_equal(found, wanted)
    distinct = sorted(
        {(s, tables[s][r][0], r) for s, r in zip(source.tolist(), row.tolist(), strict=True)}
    )
    runs = 1 + sum(b != (a[0], a[1], a[2] + 1) for a, b in pairwise(distinct))
    assert stats.tensorstore_reads_issued == stats.coalesced_ranges == runs
    assert sum(a.reads for s in sources for a in s.arrays if isinstance(a, CountingArray)) == runs
    assert (stats.examples_requested, stats.unique_examples) == (len(rows), len(distinct))
    itemsizes = [np.dtype(d).itemsize for d in dtypes]
    assert stats.bytes_read == sum(seq_len * itemsizes[s] for s, _, _ in distinct)


def slow_rows(documents, seq_len):
    """(part, tokens) of every row."""
    rows = []
    for part, of_part in enumerate(documents):
        stream = [t for document in of_part for t in document.tolist()]
        rows += [
            (part, stream[a : a + seq_len]) for a in range(0, len(stream) - seq_len + 1, seq_len)
        ]
    return rows


def test_damage_reaches_the_caller_as_an_error(tmp_path):
    cache = write_cache(tmp_path, [random_documents(60)], layout=CacheLayout("uint8", 64, 2))
    (tmp_path / "parts" / "00000" / "input_ids" / "data" / "c" / "1").unlink()
    dataset = TokenSeqDataset(cache, 32)
    assert dataset.read([0, 1, 2, 3]).tokens.shape == (4, 32)
    with pytest.raises(ReadError, match="chunk 2 cannot be read") as caught:
        dataset.read([1, 4])
    assert caught.value.value == cache.parts[0].data.url
