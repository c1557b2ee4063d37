"""Over HTTP chunks are held against ``ledger.bin``, which is read page by page; requests are
counted.
"""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ReadError
from headrace.store import CacheLayout, RetryPolicy, open_cache, use_policy
from headrace.store.retry import own_counts
from headrace.testing import web_server, write_cache
from headrace.testing.caches import random_documents


@pytest.fixture(autouse=True)
def quick():
    before = use_policy(RetryPolicy(damaged_attempts=2, first_delay_s=0.001))
    yield
    use_policy(before)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_sound_chunks_in_anothers_place_are_refused(tmp_path, compression):
    documents = [np.arange(k, k + 96, dtype=np.uint8) for k in range(4)]
    layout = CacheLayout("uint8", 16, 3, compression)
    cache = write_cache(tmp_path / "c", [[document] for document in documents], layout=layout)
    folder = Path(cache.path, "parts")
    shutil.copyfile(folder / "00001/input_ids/data/c/0", folder / "00002/input_ids/data/c/0")
    shutil.copyfile(folder / "00000/input_ids/data/c/1", folder / "00000/input_ids/data/c/0")
    with web_server(tmp_path / "c") as server:
        remote = open_cache(server)
        asked = own_counts().index_requests
        for part in (1, 3):
            array = remote.parts[part].data
            assert np.array_equal(array.read(0, 96).result(), documents[part])
            again = pickle.loads(pickle.dumps(array))
            assert np.array_equal(again.read(90, 96).result(), documents[part][90:])
        assert (own_counts().index_requests == asked) == (compression == "none")
        for part, shard in ((2, 0), (0, 0)):
            with pytest.raises(ReadError, match="not the one that was written here"):
                remote.parts[part].data.read(48 * shard, 48 * shard + 16).result()
            assert np.array_equal(
                remote.parts[part].data.read(48, 96).result(), documents[part][48:]
            )


def test_a_page_that_is_not_at_hand_is_one_request(tmp_path):
    parts = [random_documents(40, seed=k) for k in range(3)]
    cache = write_cache(tmp_path / "c", parts, layout=CacheLayout("uint8", 1, 1 << 14))
    held = cache.num_tokens
    while held < 1 << 15:  # more chunks than the first 64 KiB of ledger.bin name
        parts = [[*part, *part] for part in parts]
        held *= 2
    shutil.rmtree(cache.path)
    cache = write_cache(tmp_path / "c", parts, layout=CacheLayout("uint8", 1, 1 << 14))
    with web_server(tmp_path / "c") as server:
        remote = open_cache(server)
        asked = own_counts().index_requests
        last = cache.num_tokens
        assert np.array_equal(remote.tokens(0, 50), cache.tokens(0, 50))
        assert np.array_equal(remote.tokens(last - 50, last), cache.tokens(last - 50, last))
        assert own_counts().index_requests == asked + 1
        ((_, pages),) = remote.leaf("input_ids").arrays.page_requests(np.array([0, 2]))
        assert pages.tolist() == [0]
