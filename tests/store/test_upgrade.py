"""``ledger.bin`` beside caches of earlier releases, stale ones, and chunks that do not lie where it would promise."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from msgspec.structs import replace

from headrace.errors import CacheCorruptError, CacheMissingError, CacheUnfinishedError
from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout
from headrace.store.ledger import read_ledger, write_ledger
from headrace.store.upgrade import upgrade
from headrace.testing import random_documents, write_cache

LAYOUT = CacheLayout("uint8", 64, 4)


@pytest.fixture
def cache(tmp_path):
    return write_cache(
        tmp_path / "c", [random_documents(9, seed=k) for k in range(12)], layout=LAYOUT
    )


def test_earlier_caches_are_read_as_ever_and_upgraded_beside(cache):
    names = {path: path.read_bytes() for path in Path(cache.path).rglob("*") if path.is_file()}
    table = Path(cache.path, "ledger.bin")
    table.unlink()
    earlier = TokenCache.open(cache.path)
    assert earlier.ledger.format_version == 1
    assert upgrade(cache.path)
    later = TokenCache.open(cache.path)
    assert later.ledger.format_version == 2
    assert {
        path: path.read_bytes() for path in Path(cache.path).rglob("*") if path.is_file()
    } == names
    assert (
        earlier.fingerprint,
        earlier.num_tokens,
        earlier.vocab_size,
        earlier.layout,
        earlier.leaves,
    ) == (
        later.fingerprint,
        later.num_tokens,
        later.vocab_size,
        later.layout,
        later.leaves,
    )
    assert list(later.ledger.parts) == list(read_ledger(cache.path).parts)
    assert list(later.ledger.sources) == list(earlier.ledger.sources)
    assert np.array_equal(earlier.tokens(0, earlier.num_tokens), later.tokens(0, later.num_tokens))


def test_what_was_written_again_by_an_earlier_release_is_refused(cache):
    table = Path(cache.path, "ledger.bin")
    stale = table.read_bytes()
    write_ledger(cache.path, replace(read_ledger(cache.path), metadata={"a": 1}))
    table.write_bytes(stale)
    with pytest.raises(CacheCorruptError, match=r"is of another ledger\.json") as caught:
        TokenCache.open(cache.path)
    assert caught.value.cure.endswith(f"headrace upgrade {cache.path}")
    assert upgrade(cache.path)
    assert TokenCache.open(cache.path).fingerprint == cache.fingerprint
    write_ledger(cache.path, replace(read_ledger(cache.path), finished=False, parts=[]))
    with pytest.raises(CacheUnfinishedError):
        TokenCache.open(cache.path)
    with pytest.raises(CacheUnfinishedError):
        upgrade(cache.path)
    with pytest.raises(CacheMissingError):
        upgrade(f"{cache.path}/parts")


def test_chunks_in_another_order_are_not_promised(tmp_path):
    """Two sound chunks of one size, of which each would be taken for the other: the index alone tells."""
    cache = write_cache(tmp_path / "c", [random_documents(40, seed=1)], layout=LAYOUT)
    right = cache.tokens(0, cache.num_tokens)
    file = Path(cache.path, "parts/00000/input_ids/data/c/0")
    raw = file.read_bytes()
    index = np.frombuffer(raw[-68:-4], "<u8").reshape(4, 2)[[1, 0, 2, 3]].tobytes()
    file.write_bytes(
        raw[68:136]
        + raw[:68]
        + raw[136:-68]
        + index
        + google_crc32c.value(index).to_bytes(4, "little")
    )
    Path(cache.path, "ledger.bin").unlink()
    with pytest.raises(
        CacheCorruptError, match="does not have its chunks where headrace writes them"
    ) as caught:
        upgrade(cache.path)
    assert caught.value.value == str(file)
    read = TokenCache.open(cache.path)
    assert np.array_equal(read.tokens(0, read.num_tokens), right)
    file.unlink()
    with pytest.raises(CacheCorruptError, match="does not have its chunks"):
        upgrade(cache.path)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_nothing_to_check(tmp_path, compression):
    cache = write_cache(tmp_path / "c", [], layout=CacheLayout("uint8", 64, 4, compression))
    Path(cache.path, "ledger.bin").unlink()
    assert upgrade(cache.path)
    assert TokenCache.open(cache.path).num_tokens == 0
