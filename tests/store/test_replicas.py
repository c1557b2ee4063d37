"""A cache in several places: batches are the same whichever answers; another cache is refused."""

import logging
import pickle
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from headrace import ComponentConfig, LmDataConfig
from headrace.errors import CacheCorruptError, CacheMissingError, ConfigError, ReadError
from headrace.run import RunLock
from headrace.store import (
    CacheLayout,
    RetryPolicy,
    open_cache,
    open_replicas,
    use_policy,
)
from headrace.store.replicas import ReplicatedCache
from headrace.store.retry import own_counts
from headrace.testing import FaultProxy, web_server, write_cache
from headrace.testing.caches import random_documents

LAYOUT = CacheLayout("uint8", 64, 4)


@pytest.fixture(autouse=True)
def soon_given_up():
    before = use_policy(
        RetryPolicy(
            deadline_s=0.3,
            replica_after_s=0.05,
            damaged_attempts=2,
            first_delay_s=0.001,
            max_delay_s=0.002,
        )
    )
    yield
    use_policy(before)


@pytest.fixture
def places(tmp_path):
    """Two copies of a cache of two parts."""
    parts = [random_documents(60, seed=seed) for seed in (1, 2)]
    write_cache(tmp_path / "a", parts, layout=LAYOUT)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return str(tmp_path / "a"), str(tmp_path / "b")


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def config(cache, replicas=(), prefetch_bytes=1 << 20):
    component = ComponentConfig(cache, replicas=[*replicas])
    return LmDataConfig(
        {"a": component}, seq_len=16, batch_size=8, num_steps=30, prefetch_bytes=prefetch_bytes
    )


def test_a_server_that_dies_in_mid_run_changes_no_batch(places, caplog):
    right = [np.asarray(batch.tokens) for batch in config(places[0]).loader()]
    with (
        web_server(places[0]) as server,
        FaultProxy(server) as first,
        web_server(places[1]) as second,
    ):
        loader = config(first.url, [second], prefetch_bytes=4096).loader()
        batches = iter(loader)
        same = [np.array_equal(next(batches).tokens, right[0])]
        first.down = True
        caplog.set_level(logging.WARNING)
        same += [
            np.array_equal(batch.tokens, other)
            for batch, other in zip(batches, right[1:], strict=True)
        ]
        assert same == [True] * 30
        switches = loader.stats().reads.replica_switches
        assert switches > 0
        assert loader.stats().to_dict()["replica_switches"] == switches
        told = [
            record.getMessage() for record in caplog.records if "reads go on" in record.getMessage()
        ]
        assert len(told) == 1
        assert told[0].startswith(f"{first.url}: reads go on at {second}")


@pytest.mark.parametrize("over_http", [False, True])
def test_what_is_damaged_in_one_place_is_read_from_the_other_and_nothing_else_is(
    places, over_http, caplog
):
    right = open_cache(places[0]).tokens(0, 64 * 6)
    flip(Path(places[0], "parts/00000/input_ids/data/c/0"), 70)
    with ExitStack() as servers:
        roots = [servers.enter_context(web_server(p)) for p in places] if over_http else [*places]
        cache = open_replicas(roots)
        assert isinstance(cache, ReplicatedCache)
        before = own_counts().replica_switches
        assert np.array_equal(cache.tokens(0, 64 * 6), right)
        assert own_counts().replica_switches == before + 1
        assert cache.replicas.current == 0
        assert np.array_equal(cache.leaf("input_ids").values(0, 120)[: 64 * 6], right)
        assert sum("what is damaged there is" in r.getMessage() for r in caplog.records) == 1


def test_the_first_that_opens_is_read_and_the_others_are_said(places, tmp_path, caplog):
    cache = open_replicas([str(tmp_path / "lost"), *places])
    assert isinstance(cache, ReplicatedCache)
    assert cache.path == places[0]
    assert [state.state for state in cache.states] == ["unreached", "read", "reached"]
    assert "is not a token cache" in cache.states[0].problem
    with pytest.raises(CacheMissingError, match=r"nor can: .*gone is not a token cache"):
        open_replicas([str(tmp_path / "lost"), str(tmp_path / "gone")])


def test_another_cache_is_refused_by_name(places, tmp_path):
    other = write_cache(tmp_path / "other", [random_documents(60, seed=3)], layout=LAYOUT).path
    with pytest.raises(CacheCorruptError, match=f"replicas = '{other}': is no copy of {places[0]}"):
        open_replicas([*places, other])
    shutil.rmtree(places[1])
    cache = open_replicas(places)
    shutil.copytree(other, places[1])  # put there after the start
    shutil.rmtree(Path(places[0], "parts"))
    with pytest.raises(CacheCorruptError, match=r"is no copy of .*, and none of its replicas"):
        cache.tokens(0, 10)


def test_what_no_place_gives_is_an_error(places):
    for place in places:
        flip(Path(place, "parts/00000/input_ids/data/c/0"), 3)
    with pytest.raises(
        ReadError, match=r"chunk 0 cannot be read .*, and none of its replicas gives it"
    ):
        open_replicas(places).tokens(0, 10)


def test_a_run_is_the_same_whatever_replicas_it_lists(places):
    a, b = places
    of = [
        RunLock.of(c.loader()).fingerprint
        for c in (config(a), config(a, [b]), config(b, [a]), config(b))
    ]
    assert len(set(of)) == 1


def test_it_pickles(places):
    cache = pickle.loads(pickle.dumps(open_replicas(places)))
    assert np.array_equal(cache.document(3), open_cache(places[0]).document(3))


@pytest.mark.parametrize(
    ("cache", "replicas", "problem"),
    [
        (["a", "b"], ["c"], "go with one cache"),
        ("a", ["a"], "is named twice"),
        ("a", ["b", "b"], "is named twice"),
    ],
)
def test_lists_that_mean_nothing_are_refused(cache, replicas, problem):
    with pytest.raises(ConfigError, match=f"components.a.replicas.*{problem}"):
        config(cache, replicas)
