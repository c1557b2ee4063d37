"""A store shuffled on object stores: the same parts as on a local disk, and nothing left behind."""

import tempfile

import pytest

from headrace.errors import CacheUnfinishedError
from headrace.ingest import ReshuffleConfig, reshuffle, shuffle_plan
from headrace.ingest.shuffle_plan import sizes_of
from headrace.store import CacheLayout, files, open_cache, verify
from headrace.testing import Faults, write_cache
from headrace.testing.caches import random_documents

LAYOUT = CacheLayout("uint8", chunk_elements=128, shard_chunks=3)
PARTS = [random_documents(60, seed=k) for k in range(2)]


@pytest.fixture
def little(monkeypatch):
    """As if the interpreter took nothing, so that there are several runs and slices; and a cache
    with its settings.
    """
    monkeypatch.setattr(shuffle_plan, "BASE_BYTES", 0)
    monkeypatch.setattr(shuffle_plan, "_LEAST_DOCUMENTS", 1)
    with tempfile.TemporaryDirectory() as folder:
        here = write_cache(f"{folder}/cache", PARTS, layout=LAYOUT)
        how = ReshuffleConfig(3, part_bytes=2_000)
        sizes = sizes_of(here, how)
        how = ReshuffleConfig(3, memory=sizes.writer_bytes + 6_000, part_bytes=2_000)
        report = reshuffle(here, f"{folder}/copy", how, engine="inline", progress=False)
        assert report.runs_dealt > 2
        assert report.parts_built > 1
        yield open_cache(f"{folder}/copy"), how


class StoppedError(Exception):
    pass


def test_a_remote_cache_is_shuffled_into_a_remote_one(little, remote, monkeypatch):
    expected, how = little
    there = write_cache(files.join(remote.root, "cache"), PARTS, layout=LAYOUT)
    output = files.join(remote.root, "copy")
    really = files.write_atomic
    calls = []

    def dying(url, *given, **named):
        calls.append(url)
        if len(calls) == 7:
            raise StoppedError
        really(url, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", dying)
        with pytest.raises(StoppedError):
            reshuffle(there, output, how, engine="inline", progress=False)
    assert files.exists(files.join(output, "runs"))
    with pytest.raises(CacheUnfinishedError):
        open_cache(output)
    remote.proxy.faults = Faults(error_rate=0.05)
    reshuffle(there, output, how, engine="inline", progress=False)
    remote.proxy.faults = Faults()
    copy = open_cache(output)
    assert copy.fingerprint == expected.fingerprint
    assert [*copy.ledger.parts] == [*expected.ledger.parts]
    assert verify(output, deep=True).damages == []
    assert not files.exists(files.join(output, "runs"))
    assert not files.exists(files.join(output, "lease.json"))
