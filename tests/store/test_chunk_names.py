"""The list of all chunks' checksums: it is what the arrays name, in their order; pages know their
number.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store import CacheLayout
from headrace.store.layout import LeafSpec, named_in
from headrace.store.ledger import chunk_names
from headrace.store.ledger_table import (
    PAGE_BYTES,
    PAGE_CHUNKS,
    PartTable,
    chunks_of,
    from_page,
    pages_of,
    to_pages,
)
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

SCORE = LeafSpec("score", "float32", "fixed")


@pytest.fixture
def cache(tmp_path):
    return write_cache(
        tmp_path / "c",
        [random_documents(7, seed=k) for k in range(5)],
        layout=CacheLayout("uint8", 64, 4),
        leaves={SCORE: lambda document: np.zeros(1)},
    )


def names(cache):
    return chunk_names(cache.path, cache.ledger)


def test_all_chunks_are_named_kind_by_kind(cache):
    found = names(cache)
    assert found.described
    kinds = chunks_of(PartTable.of(cache.ledger.parts), cache.layout, [SCORE])
    assert [(kind.leaf, kind.folder) for kind in kinds] == [
        ("input_ids", "data"),
        ("input_ids", "offsets"),
        ("score", "data"),
    ]
    for kind in kinds:
        for part, record in enumerate(cache.ledger.parts):
            file = Path(cache.path, "parts", record.name, kind.leaf, kind.folder, "zarr.json")
            _, named = named_in(json.loads(file.read_bytes()))
            assert np.array_equal(found.checksums[kind.first[part] : kind.first[part + 1]], named)
    assert kinds[-1].first[-1] == found.checksums.size


@pytest.mark.parametrize(("lost", "described"), [("00002", False), ("*", True)])
def test_all_are_named_or_none(cache, lost, described):
    """Where some arrays name their chunks they have to be asked; arrays of earlier releases name
    none.
    """
    for file in Path(cache.path, "parts").glob(f"{lost}/*/*/zarr.json"):
        metadata = json.loads(file.read_bytes())
        del metadata["attributes"]
        file.write_text(json.dumps(metadata))
    found = names(cache)
    assert (found.checksums.size, found.described) == (0, described)


@given(
    st.sampled_from([0, 1, 5, PAGE_CHUNKS - 1, PAGE_CHUNKS, 2 * PAGE_CHUNKS + 3]), st.integers(0, 9)
)
def test_pages(chunks, seed):
    checksums = np.random.default_rng(seed).integers(0, 1 << 32, chunks).astype(np.uint32)
    stored = to_pages(checksums).tobytes()
    assert len(stored) == 4 * (chunks + pages_of(chunks))
    pages = [stored[at : at + PAGE_BYTES] for at in range(0, len(stored), PAGE_BYTES)]
    assert np.array_equal(
        np.concatenate([checksums[:0], *map(from_page, range(len(pages)), pages)]), checksums
    )
    for number, page in enumerate(pages):
        for wrong, content in (
            (number + 1, page),
            (number, page[:-1]),
            (number, bytes([page[0] ^ 1]) + page[1:]),
        ):
            with pytest.raises(ValueError, match="DATA_LOSS"):
                from_page(wrong, content)
