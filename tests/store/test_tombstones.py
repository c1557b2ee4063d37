"""Tombstones of caches: generations that add up, one file that is old or new, and what is damaged
is refused.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.mixture import mixture_of
from headrace.errors import CacheCorruptError, CacheError, ConfigError
from headrace.ingest import reshuffle
from headrace.ingest.reshuffle import ReshuffleConfig
from headrace.order.intervals import Intervals
from headrace.store import TokenCache
from headrace.store.files import filesystem
from headrace.store.lease import LEASE_NAME, lease
from headrace.store.tombstones import (
    TOMBSTONES_NAME,
    Tombstones,
    parse_tombstones,
    remove_documents,
    tombstones_of,
    tombstones_problem,
)
from headrace.testing import tiny_cache


def numbers(*documents: int) -> Intervals:
    return Intervals.of_numbers(np.array(documents, np.int64))


def digests(root: str) -> dict[str, str]:
    """Of all files but the tombstones, and the lease of who writes them."""
    passing = (TOMBSTONES_NAME, LEASE_NAME)
    files = (
        path
        for path in sorted(Path(root).rglob("*"))
        if path.is_file() and not path.name.startswith(passing)
    )
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def opened():
    return tiny_cache(documents=50)


@given(removals=st.lists(st.lists(st.integers(0, 49), max_size=6), max_size=5))
@settings(max_examples=40)
def test_generations_add_up_and_read_back(opened, removals):
    stones = Tombstones(opened.fingerprint)
    removed = set[int]()
    sizes = [0]
    for documents in removals:
        fresh = numbers(*documents).without(stones.documents())
        assert set(fresh.numbers(np.arange(fresh.total)).tolist()) == set(documents) - removed
        removed |= set(documents)
        if fresh.total:
            stones = Tombstones(opened.fingerprint, (*stones.generations, fresh))
            sizes.append(len(removed))
        back = parse_tombstones(opened, stones.to_bytes())
        assert back.generations == stones.generations
        assert [back.documents(n).total for n in range(len(back) + 1)] == sizes
        assert back.documents() == numbers(*removed)
        assert back.to_bytes() == stones.to_bytes()


def test_data_and_ledger_stay_as_they_are(tmp_path):
    cache = tiny_cache(tmp_path / "c", documents=30)
    before = digests(cache.path)
    stones, fresh = remove_documents(cache, numbers(3, 7))
    assert (len(stones), fresh) == (1, numbers(3, 7))
    raw = (tmp_path / "c" / TOMBSTONES_NAME).read_bytes()
    assert remove_documents(cache, numbers(7)) == (
        stones,
        Intervals.empty(),
    )  # nothing new: the same file
    assert (tmp_path / "c" / TOMBSTONES_NAME).read_bytes() == raw
    assert len(remove_documents(cache, numbers(7, 8))[0]) == 2
    assert digests(cache.path) == before
    assert tombstones_problem(cache) == ""


def test_every_damaged_byte_is_refused(opened):
    raw = Tombstones(opened.fingerprint, (numbers(3, 9), numbers(20))).to_bytes()
    for at in range(len(raw) - 1):
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(CacheCorruptError) as error:
            parse_tombstones(opened, damaged)
        assert error.value.field == "tombstones"
        assert f"headrace cache remove {opened.path}" in str(error.value.cure)
    for cut in range(1, len(raw) - 1):
        with pytest.raises(CacheCorruptError):
            parse_tombstones(opened, raw[:cut])


def test_tombstones_of_another_cache_are_refused(tmp_path):
    one, other = (tiny_cache(tmp_path / name, documents=30, seed=n) for n, name in enumerate("ab"))
    remove_documents(one, numbers(3))
    (tmp_path / "b" / TOMBSTONES_NAME).write_bytes((tmp_path / "a" / TOMBSTONES_NAME).read_bytes())
    with pytest.raises(CacheCorruptError, match="is of another cache"):
        tombstones_of(other)
    with pytest.raises(CacheCorruptError):  # nothing is written over them
        remove_documents(other, numbers(4))


def test_documents_that_the_cache_has_not_are_refused(opened):
    beyond = Tombstones(
        opened.fingerprint, (numbers(opened.num_documents - 1, opened.num_documents),)
    )
    with pytest.raises(
        CacheCorruptError, match=f"names document {opened.num_documents}, and the cache has"
    ):
        parse_tombstones(opened, beyond.to_bytes())
    last = Tombstones(opened.fingerprint, (numbers(opened.num_documents - 1),))
    assert parse_tombstones(opened, last.to_bytes()).documents() == last.documents()


def test_who_else_writes_is_waited_for_by_an_error(tmp_path):
    cache = tiny_cache(tmp_path / "c", documents=30)
    with lease(cache.path), pytest.raises(CacheError, match="is being written by"):
        remove_documents(cache, numbers(1))
    web = TokenCache("https://example.org/c", cache.ledger)
    with pytest.raises(ConfigError, match="can be read from, not written to"):
        remove_documents(web, numbers(1))


REMOVER = """
import sys, numpy as np
from headrace.order.intervals import Intervals
from headrace.store.cache import TokenCache
from headrace.store.tombstones import remove_documents
cache = TokenCache.open(sys.argv[1])
print("begun", flush=True)
for first in range(0, 600, 3):  # what is removed already makes no generation
    remove_documents(cache, Intervals.of_numbers(np.array([first, first + 2])))
"""


@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.soak)]
)
def test_killed_removals_leave_the_file_before_or_after_and_go_on(tmp_path, kills):
    cache = tiny_cache(tmp_path / "c", documents=700, parts=4)
    rng = np.random.default_rng(0)
    hits = 0
    before = digests(cache.path)
    file = tmp_path / "c" / TOMBSTONES_NAME
    steps = [Intervals.of_numbers(np.array([n, n + 2])) for n in range(0, 600, 3)]
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", REMOVER, cache.path], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.08)))
        hits += child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        stones = tombstones_of(cache)
        assert list(stones.generations) == steps[: len(stones)]
        assert digests(cache.path) == before
    subprocess.run(
        [sys.executable, "-c", REMOVER, cache.path], check=True, stdout=subprocess.DEVNULL
    )
    undisturbed = Tombstones(cache.fingerprint, tuple(steps))
    assert file.read_bytes() == undisturbed.to_bytes()
    assert hits >= kills // 2


def test_copies_keep_what_was_removed(tmp_path):
    cache = tiny_cache(tmp_path / "c", documents=30)
    remove_documents(cache, numbers(4, 5))
    reshuffle(
        cache, str(tmp_path / "shuffled"), ReshuffleConfig(seed=3), engine="inline", progress=False
    )
    assert tombstones_of(TokenCache.open(tmp_path / "shuffled")).documents() == numbers(4, 5)


def test_on_object_stores(root, tmp_path):
    cache = tiny_cache(tmp_path / "c", documents=40)
    place, _ = filesystem(root)
    for path in sorted(Path(cache.path).rglob("*")):
        if path.is_file():
            place.pipe_file(f"{root}/{path.relative_to(cache.path)}", path.read_bytes())
    far = TokenCache.open(root)
    assert len(tombstones_of(far)) == 0
    remove_documents(far, numbers(5, 6))
    stones, _ = remove_documents(far, numbers(30))
    assert tombstones_of(TokenCache.open(root)).generations == stones.generations
    near, gone = (
        LmDataConfig({"a": ComponentConfig(path)}, seq_len=16, batch_size=8).dataset()
        for path in (cache.path, root)
    )
    mixture = mixture_of(near)
    assert mixture is not None
    rows = np.arange(len(mixture.components[0].caches()[0].lengths()))
    ours = near.read(rows)
    theirs = gone.at_step(0)[0].read(rows)
    changed = (np.asarray(ours.tokens) != np.asarray(theirs.tokens)).any(axis=1)
    assert changed.any()
    assert not changed.all()
    assert np.array_equal(changed, ~(np.asarray(theirs.token_mask) != 0).all(axis=1))
