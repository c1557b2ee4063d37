"""Loaders that begin and end hundreds of times, in every way, leave no thread, no descriptor and no
map behind.

Fifty of each kind run always; five hundred, and half an hour of all kinds together, with the marker ``soak``::

    pytest -m soak tests/feed/test_loader_soak.py      # HEADRACE_SOAK_SECONDS=60 for a shorter one
"""

import contextlib
import gc
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.data import TokenSeqDataset
from headrace.feed import DataLoader
from headrace.feed.prefetch import Prefetched
from headrace.store import CacheLayout, mapped, open_cache, requests, retry
from headrace.testing import FaultProxy, Faults, web_server, write_cache

SEQ = 16
BLOCK = 8
SHARD = 4
ROWS = 256
BATCH = 8
STEPS = ROWS // BATCH
AT_A_TIME = 2
CONNECTIONS = 32  # TensorStore keeps at most 28 with two reads at a time, after 10 loaders or 200
FAULTS = Faults(latency_s=0.002, error_rate=0.01, cut_rate=0.01, spike_rate=0.01, spike_s=0.1)
SOAK_S = float(os.environ.get("HEADRACE_SOAK_SECONDS", "1800"))
ENDS = (
    "unused",
    "break",
    "error",
    "Ctrl-C",
    "Ctrl-C while it waits",
    "closed",
    "dropped",
    "collected",
    "to the end",
)


class Store(NamedTuple):
    """A cache, the options of its loaders, and the proxy on the way to it, if there is one."""

    path: str
    memory_map: bool = True
    proxy: FaultProxy | None = None


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soak")
    rows = [np.arange(SEQ) + SEQ * r for r in range(ROWS)]
    for name, compression in (("plain", "none"), ("zstd", "zstd")):
        layout = CacheLayout("uint16", BLOCK * SEQ, SHARD, compression=compression)
        write_cache(folder / name, [rows[:100], rows[100:]], vocab_size=1 << 16, layout=layout)
    with web_server(folder) as server, FaultProxy(server) as proxy:
        yield {
            "mapped": Store(str(folder / "plain")),
            "read": Store(str(folder / "plain"), memory_map=False),
            "zstd": Store(str(folder / "zstd")),
            "http": Store(f"{proxy.url}/plain", proxy=proxy),
            "http, zstd": Store(f"{proxy.url}/zstd", proxy=proxy),
        }


@pytest.fixture(scope="module")
def wanted(stores):
    return [np.asarray(b.tokens) for b in loader_of(stores["mapped"])]


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Retries without delay, a background thread that ends between loaders, and a Ctrl-C that is
    one.

    Few requests at a time, as TensorStore keeps a connection for each.
    """
    monkeypatch.setattr(requests, "IDLE_S", 0.02)
    policy = retry.RetryPolicy(
        first_delay_s=0.005, max_delay_s=0.05, timeout_s=5.0, concurrency=AT_A_TIME
    )
    before = retry.use_policy(policy)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)
    retry.use_policy(before)


def loader_of(store):
    one = Mesh(np.array(jax.devices()[:1]), ("data",))
    dataset = TokenSeqDataset(open_cache(store.path), SEQ).shuffle(0)
    return DataLoader(dataset, BATCH, mesh=one, memory_map=store.memory_map)


def take(loader, wanted, first, count, how):
    """Takes batches, each held against what is wanted, and leaves the loop in some way."""
    for step, batch in enumerate(loader.iter_from_step(first), first):
        assert np.array_equal(batch.tokens, wanted[step]), (step, how)
        if step - first == count:
            if how == "break":
                break
            if how == "error":
                raise ZeroDivisionError
            if how == "Ctrl-C":
                signal.raise_signal(signal.SIGINT)


def interrupted_while_it_waits(store, loader, first):
    """Ctrl-C comes from outside while the main thread waits for a batch."""
    main = threading.main_thread().ident
    assert main is not None
    if store.proxy is not None:
        store.proxy.faults = Faults(latency_s=0.05)
    interrupt = threading.Timer(0.02, signal.pthread_kill, (main, signal.SIGINT))
    try:
        interrupt.start()
        for _ in loader.iter_from_step(first):
            pass
        interrupt.join()
        time.sleep(0.1)
    except KeyboardInterrupt:
        return
    finally:
        interrupt.join()
        if store.proxy is not None:
            store.proxy.faults = FAULTS
    raise AssertionError("Ctrl-C did not come")


def begin_and_end(store, wanted, chance, how):
    """The life of one loader."""
    loader = loader_of(store)
    first = chance.randrange(STEPS)
    if how == "Ctrl-C while it waits":
        interrupted_while_it_waits(store, loader, first)
    elif how in ("unused", "closed", "dropped", "collected"):
        batches = loader.iter_from_step(first)
        if how != "unused":
            assert np.array_equal(next(batches).tokens, wanted[first])
        if how in ("unused", "closed"):
            loader.close()
        if how == "collected":  # by the garbage collector, in whichever thread that runs
            cycle = [batches, loader]
            cycle.append(cycle)
    else:
        count = STEPS if how == "to the end" else chance.randrange(3) if first + 3 < STEPS else 0
        with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt):
            take(loader, wanted, first, count, how)
            assert how in ("break", "to the end")


class Held(NamedTuple):
    """What this process holds that loaders could leave behind."""

    threads: Counter[str]
    maps: int
    files: int  # descriptors that are no sockets: those of the servers of the test come and go
    sockets: int
    tasks: int


def background():
    return Counter(
        t.name for t in threading.enumerate() if t.name.startswith(("headrace", "store-requests"))
    )


def held():
    """What is held once all background work is over."""
    gc.collect()
    while names := background():
        time.sleep(0.01)
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    sockets = sum(link.startswith("socket:") for link in links)
    return Held(
        names, mapped._maps, len(links) - sockets, sockets, len(os.listdir("/proc/self/task"))
    )


def check_nothing_left(before, after):
    assert not after.threads
    assert after.maps <= before.maps
    assert after.files <= before.files
    # TensorStore keeps connections, and may have opened most only now. Each has four ends in this
    # process, as the proxy and the server are here too, and two threads, one of each. Fifty loaders
    # that left a connection each would come to more.
    assert after.sockets <= before.sockets + 4 * CONNECTIONS
    assert after.tasks <= before.tasks + 2 * CONNECTIONS


def check_many(store, wanted, count, ends):
    """Each way to end in turn, the first round before anything is counted."""
    chance = random.Random(count)
    if store.proxy is not None:
        store.proxy.faults = FAULTS
    try:
        for how in ends:
            begin_and_end(store, wanted, chance, how)
        before = held()
        for how in itertools.islice(itertools.cycle(ends), count):
            begin_and_end(store, wanted, chance, how)
        check_nothing_left(before, held())
    finally:
        if store.proxy is not None:
            store.proxy.faults = Faults()


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux lists them"
)
@pytest.mark.parametrize("kind", ["mapped", "read", "http"])
@pytest.mark.slow
def test_fifty_loaders_leave_nothing(stores, wanted, kind):
    check_many(stores[kind], wanted, 50, ENDS)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["mapped", "read", "zstd", "http", "http, zstd"])
def test_five_hundred_loaders_leave_nothing(stores, wanted, kind):
    check_many(stores[kind], wanted, 500, ENDS)


def test_a_finaliser_in_the_thread_that_the_background_work_waits_for():
    """Else both wait for ever, and no garbage is collected in this process any more."""
    done = threading.Event()

    def source():
        done.wait()
        yield [1]

    kept = [Prefetched(source, 1)]
    thread = kept[0].thread
    kept.clear()
    assert thread.is_alive()
    done.set()  # what this thread would have done next
    thread.join()


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 600)
def test_half_an_hour_of_loaders_of_all_kinds(stores, wanted):
    """All stores by turns, and several loaders at once in some rounds; neither threads nor memory
    grow.
    """
    chance = random.Random(0)
    ends = Counter()
    rounds = 0
    stores["http"].proxy.faults = FAULTS
    until = time.monotonic() + SOAK_S
    before = None
    memory = 0.0
    while time.monotonic() < until:
        rounds += 1
        store = stores[chance.choice(list(stores))]
        how = chance.choice(ENDS)
        begin_and_end(store, wanted, chance, how)
        ends[how] += 1
        if rounds % 20 == 0:
            jobs = [(loader_of(s), wanted, 0, STEPS, "to the end") for s in stores.values()]
            others = [threading.Thread(target=take, args=job) for job in jobs]
            for thread in others:
                thread.start()
            for thread in others:
                thread.join()
        if rounds % 100 == 0:
            stores["http"].proxy.clear()
            now = held()
            if before is None:
                before = now
                memory = resident_mib()
            check_nothing_left(before, now)
            assert resident_mib() < memory + 64
    print(
        f"{rounds} rounds in {SOAK_S:g} s, {dict(ends)}, {memory:.0f} MiB, then"
        f" {resident_mib():.0f} MiB"
    )
    stores["http"].proxy.faults = Faults()
