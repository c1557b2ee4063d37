"""Every way to a store over HTTP, through a proxy that is late and loses answers: build, open,
inspect, read, load.
"""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import jax
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import Mesh

from headrace.cli import main
from headrace.data import TokenSeqDataset
from headrace.errors import CacheError
from headrace.feed import DataLoader
from headrace.store import CacheLayout, TokenCache, files, open_cache, retry, sharded
from headrace.store.array import StoredArray
from headrace.store.files import kvstore_spec
from headrace.store.ledger import read_ledger
from headrace.testing import FaultProxy, Faults, web_server, write_cache
from headrace.testing.caches import random_documents

LAYOUT = CacheLayout("uint8", chunk_elements=64, shard_chunks=4, compression="zstd")
DOCUMENTS = random_documents(120, seed=1)
FAULTS = Faults(latency_s=0.005, error_rate=0.08, cut_rate=0.05, spike_rate=0.05, spike_s=0.05)


@pytest.fixture(autouse=True)
def fast() -> Iterator[None]:
    before = retry.use_policy(
        retry.RetryPolicy(first_delay_s=0.005, max_delay_s=0.05, timeout_s=10.0, hedge_p95=None)
    )
    yield
    retry.use_policy(before)


def tokens_of(cache):
    one = Mesh(np.array(jax.devices()[:1]), ("data",))
    return [
        np.asarray(b.tokens)
        for b in DataLoader(TokenSeqDataset(cache, 16).shuffle(0), batch_size=8, mesh=one)
    ]


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert left.value.code in (0, None), err
    return out


def test_the_command_line_builds_and_inspects_there(remote, tmp_path, monkeypatch, capsys):
    source = tmp_path / "texts.jsonl"
    source.write_text(
        "".join(json.dumps({"text": f"line {k} " * (k % 7)}) + "\n" for k in range(60))
    )
    common = [
        "build",
        str(source),
        "--part-bytes",
        "1000",
        "--engine",
        "inline",
        "--json",
        "--tokenizer",
        "bytes",
    ]
    remote.proxy.faults = Faults(
        latency_s=0.001, error_rate=0.03, methods=("GET", "HEAD", "PUT", "POST")
    )
    run(monkeypatch, capsys, *common, "--output", remote.root)
    run(monkeypatch, capsys, *common, "--output", str(tmp_path / "here"))
    here = open_cache(tmp_path / "here")
    remote.proxy.faults = FAULTS
    remote.proxy.next("error", times=2)
    told = json.loads(run(monkeypatch, capsys, "cache", "inspect", remote.root, "--json"))
    assert (told["documents"], told["tokens"]) == (60, here.num_tokens)
    remote.proxy.next("cut", times=2)
    there = open_cache(remote.root)
    assert there.fingerprint == here.fingerprint
    assert np.array_equal(there.tokens(0, there.num_tokens), here.tokens(0, here.num_tokens))
    assert there.document(13).tolist() == here.document(13).tolist()
    assert there.lengths().tolist() == here.lengths().tolist()
    assert remote.proxy.count(fate="error") >= 2
    assert remote.proxy.count(fate="cut") >= 2


def test_web_servers_through_faults(tmp_path):
    here = write_cache(tmp_path / "cache", [DOCUMENTS], layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server, FAULTS) as proxy:
        there = open_cache(f"{proxy.url}/cache")
        assert all(map(np.array_equal, tokens_of(there), tokens_of(here)))
        assert there.lengths().tolist() == here.lengths().tolist()
        before = retry.request_counts()
        proxy.clear()
        assert all(map(np.array_equal, tokens_of(there), tokens_of(here)))
        spent = retry.request_counts() - before
        assert spent.requests == proxy.count("GET")
        assert spent.retries == proxy.count(fate="error") + proxy.count(fate="cut") > 0


def test_indices_that_do_not_all_fit_are_asked_for_again(remote, monkeypatch):
    layout = CacheLayout("uint8", chunk_elements=16, shard_chunks=2)
    here = np.arange(256, dtype=np.uint8)
    write_cache(remote.root, [[here]], layout=layout)
    monkeypatch.setattr(sharded, "_indices", sharded._Kept(3 * 32))  # room for three of eight
    # opened from ledger.json alone: with ledger.bin, no index is asked for
    array = TokenCache(remote.root, read_ledger(remote.root)).parts[0].data
    for _ in range(2):
        for k in range(16):
            out = array.read_into(np.empty(16, np.uint8), 16 * k).result()
            assert np.array_equal(out, here[16 * k : 16 * k + 16])
    assert sharded._indices._bytes <= 3 * 32
    assert remote.proxy.count("GET", "data/c/") + remote.proxy.count("GET", "data%2Fc%2F") == 2 * (
        16 + 8
    )


class Sparse(StoredArray):
    """Of another writer: what is zero everywhere is not written."""

    missing_is_zero = True


def test_what_was_never_written_reads_as_zeros_where_that_is_so(remote):
    values = np.zeros(1000, np.uint8)
    values[[130, 700]] = 7
    layout = CacheLayout("uint8", 64, 4)
    spec = {
        "driver": "zarr3",
        "kvstore": kvstore_spec(remote.root),
        "metadata": layout.zarr_metadata(1000),
    }
    ts.open(spec, create=True).result().write(values).result()
    array = Sparse(remote.root, 1000, layout)
    assert np.array_equal(
        array.read(0, 1000).result(), values
    )  # chunk 2 and 10 exist, in shards 0 and 2 of 4
    assert array.read(190, 195).result().tolist() == [0] * 5
    assert array.read(520, 530).result().tolist() == [0] * 10
    strict = StoredArray(remote.root, 1000, layout)
    assert strict.read(128, 192).result()[2] == 7
    with pytest.raises(Exception, match=r"NOT_FOUND: chunk 3 is missing, shard file .*/c/0"):
        strict.read(192, 256).result()


def test_arrays_that_are_not_sharded_are_read_by_tensorstore(remote):
    values = np.arange(1000, dtype=np.uint16)
    grid = {"name": "regular", "configuration": {"chunk_shape": [100]}}
    metadata = {"shape": [1000], "data_type": "uint16", "chunk_grid": grid, "fill_value": 0}
    spec = {"driver": "zarr3", "kvstore": kvstore_spec(remote.root), "metadata": metadata}
    ts.open(spec, create=True).result().write(values).result()
    remote.proxy.faults = FAULTS
    array = StoredArray(remote.root, 1000, CacheLayout("uint16", 100, 1))
    out = np.empty(300, np.uint16)
    assert array.read_into(out, 50).result() is not None
    assert np.array_equal(out, values[50:350])
    assert np.array_equal(array.read(0, 1000).result(), values)
    with pytest.raises(CacheError, match="holds 1000 elements of uint16, but the ledger has 999"):
        StoredArray(remote.root, 999, CacheLayout("uint16", 100, 1)).read(0, 9).result()


def test_a_build_of_another_length_is_told(remote):
    cache = write_cache(remote.root, [DOCUMENTS], layout=LAYOUT)
    with pytest.raises(CacheError, match="but the ledger has 5 elements"):
        StoredArray(cache.parts[0].data.url, 5, LAYOUT).read(0, 5).result()
    files.write_atomic(files.join(cache.parts[0].data.url, "zarr.json"), b"[")
    # opened from ledger.json alone: with ledger.bin, zarr.json is not asked for
    with pytest.raises(CacheError, match="cannot be opened"):
        TokenCache(remote.root, read_ledger(remote.root)).tokens(0, 1)


def test_a_process_ends_with_reads_under_way(tmp_path):
    """It prints nothing and does not wait for a store that hangs."""
    write_cache(tmp_path / "cache", [DOCUMENTS], layout=LAYOUT)
    script = """
        import sys, numpy as np
        from headrace.store import open_cache
        cache = open_cache(sys.argv[1])
        reads = [cache.parts[0].data.read(k, k + 1) for k in range(0, 1000, 64)]
        reads[0].result() if sys.argv[2] == "answers" else None
    """
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        for how in ("answers", "hangs"):
            if how == "hangs":
                proxy.faults = Faults(hang_rate=1.0, path_contains="data/c")
            command = [sys.executable, "-c", textwrap.dedent(script), f"{proxy.url}/cache", how]
            done = subprocess.run(command, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")
