"""Opening a cache costs the same whatever the number of documents: counted in reads and bytes, not
in seconds.
"""

import gc
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
import tensorstore as ts

from headrace.data import TokenSeqDataset
from headrace.errors import CacheCorruptError
from headrace.store import CacheLayout, TokenCache, files, open_cache
from headrace.store.files import kvstore_spec
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ledger_table import PartRecord
from headrace.store.ragged import data_url, offsets_url
from headrace.testing import tiny_cache

LAYOUT = CacheLayout("uint16")
MEAN = 600  # tokens per document


def sparse(root, documents, parts=1):
    """A cache of so many documents of which only the last one is really stored."""
    records = []
    for k in range(parts):
        name = f"{k:05d}"
        each = documents // parts
        records.append(PartRecord(name, each, each * MEAN, f"sha256:{k}"))
    last = records[-1]
    for url, layout, length, values in (
        (data_url(root, last.name), LAYOUT, last.tokens, np.arange(MEAN)),
        (
            offsets_url(root, last.name),
            LAYOUT.offsets(),
            last.documents + 1,
            [last.tokens - MEAN, last.tokens],
        ),
    ):
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore_spec(url),
            "metadata": layout.zarr_metadata(length),
        }
        ts.open(spec, create=True).result()[length - len(values) :].write(
            np.array(values, layout.dtype)
        ).result()
    write_ledger(root, Ledger(False, {"vocab_size": 1000}, LAYOUT.to_dict()).complete(records))
    return root


def reads():
    found = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/")
    values = {
        m["name"].rsplit("/", 1)[-1]: m["values"][0].get("value", 0)
        for m in found
        if "value" in m["values"][0]
    }
    return np.array([values.get(name, 0) for name in ("read", "batch_read", "bytes_read")])


def cost(root):
    """Reads of arrays and their bytes, and the peak of memory: to open it, plan rows over it, and
    read a document.
    """
    tracemalloc.start()
    before = reads()
    cache = TokenCache.open_member(root)
    dataset = TokenSeqDataset(cache, 1024)
    opened = reads() - before
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cache.num_documents * MEAN == cache.num_tokens
    assert len(dataset) > cache.num_tokens // 1024 - len(cache.parts)
    assert np.array_equal(cache.document(cache.num_documents - 1), np.arange(MEAN))
    return opened, reads() - before, peak


@pytest.mark.parametrize("parts", [1, 8])
def test_reads_bytes_and_memory_do_not_grow(tmp_path, parts):
    cost(sparse(f"{tmp_path}/warm", 8000, parts))
    (opened, all_, peak), *larger = [
        cost(sparse(f"{tmp_path}/{n}", n, parts)) for n in (10**6, 10**8, 10**9)
    ]
    assert opened.tolist() == [0, 0, 0]
    assert all_[2] > 0
    for other_opened, other_all, other_peak in larger:
        assert other_opened.tolist() == [0, 0, 0]
        assert other_all[:2].tolist() == all_[:2].tolist()
        assert (
            abs(int(other_all[2] - all_[2])) <= 100
        )  # digits in the ledger's numbers, in zarr.json
        assert other_peak < peak + 4096


def calls_to_open(root):
    """A cache, and how many functions were called to open it."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        cache = open_cache(root)
    finally:
        sys.setprofile(None)
    return cache, calls


def test_work_grows_no_faster_than_the_number_of_parts(tmp_path):
    calls_to_open(sparse(f"{tmp_path}/warm", 8 * 250_000, parts=8))
    _, few = calls_to_open(sparse(f"{tmp_path}/few", 256 * 250_000, parts=256))
    cache, many = calls_to_open(sparse(f"{tmp_path}/many", 4096 * 250_000, parts=4096))
    assert many < 1.1 * 16 * few
    assert cache.num_documents == 4096 * 250_000
    assert cache.document(cache.num_documents - 1).size == MEAN


def test_opening_works_nothing_out_for_an_array(tmp_path, monkeypatch):
    """A run may open a million arrays, and read few of them."""
    root = sparse(str(tmp_path), documents=64, parts=16)
    asked = []
    monkeypatch.setattr(files, "kvstore_spec", lambda url: asked.append(url) or kvstore_spec(url))
    cache = open_cache(root)
    dataset = TokenSeqDataset(cache, 1024)
    assert len(dataset) > 0
    assert not asked
    cache.document(cache.num_documents - 1)
    assert len(asked) == 2  # of the tokens and of the offsets


@pytest.mark.parametrize(
    ("section", "value", "problem"),
    [
        ("layout", {"dtype": "uint16", "chunk_elements": 1 << 36}, "chunk_elements"),
        ("layout", {"dtype": "uint16", "chunk_elements": "many"}, "chunk_elements"),
        ("layout", {"dtype": "float128"}, "dtype"),
        ("tokenizer", {}, "vocab_size"),
        ("tokenizer", {"vocab_size": -1}, "vocab_size"),
        ("leaves", [{"name": "../x", "dtype": "uint8", "kind": "ragged"}], "leaf"),
        ("leaves", [{"dtype": "uint8"}], "name"),
    ],
)
def test_sections_of_a_ledger_are_not_trusted(tmp_path, section, value, problem):
    ledger = {"tokenizer": {"vocab_size": 9}, "layout": LAYOUT.to_dict(), "leaves": []} | {
        section: value
    }
    write_ledger(str(tmp_path), Ledger(True, **ledger))
    with pytest.raises(
        CacheCorruptError, match=f"ledger whose {section} cannot be used .*{problem}"
    ):
        open_cache(str(tmp_path))


def test_threads_open_caches_at_once_in_a_new_process(tmp_path):
    """msgspec works a type out where it is first used, and a process in which two threads do so at
    once dies.
    """
    cache = tiny_cache(str(tmp_path / "cache"))
    program = """
        import importlib, sys, threading
        from headrace.store import cache, ledger

        sys.setswitchinterval(1e-6)
        for _ in range(60):
            importlib.reload(ledger)
            importlib.reload(cache)  # types that nothing has used yet
            threads = [threading.Thread(target=cache.TokenCache.open_member, args=[sys.argv[1]]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), cache.path], check=True)


def test_a_pass_over_the_lengths_of_all_parts_keeps_nothing(tmp_path):
    """Neither the arrays that it opened nor what TensorStore would leave of each."""
    parts = 60
    cache = tiny_cache(tmp_path / "c", documents=4 * parts, parts=parts)
    expected = cache.lengths().tolist()  # what is imported and worked out once
    tracemalloc.start()
    kept = []
    for _ in range(4):
        assert open_cache(cache.path).lengths().tolist() == expected
        gc.collect()
        kept.append(tracemalloc.get_traced_memory()[0])
    assert kept[-1] - kept[-2] < 1000 * parts
    opened = open_cache(cache.path)
    opened.lengths()
    assert opened.leaf("input_ids").parts._made == {}
    tracemalloc.stop()
