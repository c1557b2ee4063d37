"""What goes over the wire, counted at the server: one request a block, whatever the order and the
number of shards.
"""

import asyncio
import contextlib
import dataclasses
import gc
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.data import TokenSeqDataset
from headrace.errors import ReadError
from headrace.feed import DataLoader
from headrace.store import CacheLayout, RetryPolicy, TokenCache, files, open_cache, requests, retry
from headrace.store.array import PendingRead, StoredArray
from headrace.store.files import kvstore_spec
from headrace.store.layout import DEFAULT_CHUNK
from headrace.store.ledger import read_ledger
from headrace.store.plain import PlainArray
from headrace.testing import FaultProxy, Faults, web_server, write_cache

# rows of tokens, rows a block, blocks a shard
SEQ = 16
BLOCK = 8
SHARD = 16
ROWS = 40 * SHARD * BLOCK
LAYOUT = CacheLayout("uint16", BLOCK * SEQ, SHARD)


def rows(count=ROWS):
    return [(np.arange(SEQ) + 60 * r) % (1 << 16) for r in range(count)]


def loader(cache, **options):
    one = Mesh(np.array(jax.devices()[:1]), ("data",))
    return DataLoader(TokenSeqDataset(cache, SEQ).shuffle(0), batch_size=32, mesh=one, **options)


def write(remote, blocks):
    """A cache opened from ledger.json alone: ``zarr.json`` and indices are asked for."""
    write_cache(remote.root, [rows(blocks * BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    return TokenCache(remote.root, read_ledger(remote.root))


def data_gets(proxy):
    """Requests for shards: their data and their indices."""
    return proxy.count("GET", "data%2Fc%2F") + proxy.count("GET", "/data/c/")


def test_an_epoch_in_braid_order_asks_once_for_each_block(remote):
    """40 shards. With indices and chunks in one small pool it was up to two requests a block."""
    cache = write(remote, ROWS // BLOCK)
    remote.proxy.clear()
    before = retry.request_counts()
    assert sum(b.batch_size for b in loader(cache)) == ROWS
    blocks = ROWS // BLOCK
    shards = ROWS // BLOCK // SHARD
    assert shards == 40
    assert data_gets(remote.proxy) == blocks + shards <= 1.1 * blocks
    spent = retry.request_counts() - before
    assert (spent.requests, spent.index_requests) == (
        blocks + shards + 1,
        shards + 1,
    )  # and zarr.json
    assert (spent.retries, spent.hedges) == (0, 0)
    remote.proxy.clear()
    assert sum(b.batch_size for b in loader(cache)) == ROWS
    assert data_gets(remote.proxy) == blocks  # the indices are known


def test_with_ledger_bin_an_epoch_asks_for_blocks_alone(remote):
    write_cache(remote.root, [rows()], vocab_size=1 << 16, layout=LAYOUT)
    cache = open_cache(remote.root)
    remote.proxy.clear()
    before = retry.request_counts()
    assert sum(b.batch_size for b in loader(cache)) == ROWS
    spent = retry.request_counts() - before
    assert (spent.requests, spent.index_requests) == (ROWS // BLOCK, 0)
    assert data_gets(remote.proxy) == len(remote.proxy.log) == ROWS // BLOCK


def test_neighbouring_chunks_are_one_request(remote):
    written = np.concatenate(rows(2 * SHARD * BLOCK))
    cache = write(remote, 2 * SHARD)
    remote.proxy.clear()
    assert np.array_equal(cache.tokens(0, cache.num_tokens), written)
    assert data_gets(remote.proxy) == 2 + 2  # an index and one run of chunks a shard
    remote.proxy.clear()
    chunk = LAYOUT.chunk_elements
    assert np.array_equal(cache.tokens(3 * chunk, 5 * chunk), written[3 * chunk : 5 * chunk])
    assert data_gets(remote.proxy) == 1


def test_parts_of_a_chunk_are_asked_for_once(remote):
    array = write(remote, 1).parts[0].data
    remote.proxy.clear()
    reads = [array.read(k, k + 5) for k in range(100)]  # in flight together
    assert [int(r.result()[0]) for r in reads] == [k % SEQ + 60 * (k // SEQ) for k in range(100)]
    assert array.read(7, 9).result().tolist() == [7, 8]
    assert data_gets(remote.proxy) == 2
    whole = array.read_into(np.empty(BLOCK * SEQ, np.uint16), 0).result()
    assert np.array_equal(whole, np.concatenate(rows(BLOCK)))
    assert data_gets(remote.proxy) == 2


def test_opening_is_asked_for_once_by_reads_that_begin_together(remote):
    cache = write(remote, 4)
    remote.proxy.clear()
    remote.proxy.faults = Faults(latency_s=0.05)
    outs = [np.empty(BLOCK * SEQ, np.uint16) for _ in range(4)]
    reads = [cache.parts[0].data.read_into(out, k * BLOCK * SEQ) for k, out in enumerate(outs)]
    for read in reads:
        read.result()
    assert np.array_equal(np.concatenate(outs), np.concatenate(rows(4 * BLOCK)))
    assert remote.proxy.count("GET", "zarr.json") == 1
    assert data_gets(remote.proxy) == 5


def test_a_read_that_begins_just_as_the_array_is_open_does_not_open_it_again(remote, monkeypatch):
    array = write(remote, 4).parts[0].data
    remote.proxy.clear()
    late = []
    really = StoredArray._open_over_http

    async def open_over_http(self):
        opened = await really(self)
        asyncio.get_running_loop().call_soon(
            lambda: late.append(asyncio.ensure_future(self._opened_over_http()))
        )
        return opened  # that runs before those who wait for this one do

    monkeypatch.setattr(StoredArray, "_open_over_http", open_over_http)
    assert array.read(0, 5).result().tolist() == [0, 1, 2, 3, 4]
    assert array.read(1, 5).result().tolist() == [1, 2, 3, 4]
    assert len(late) == 1
    assert remote.proxy.count("GET", "zarr.json") == 1
    assert data_gets(remote.proxy) == 2


def test_no_more_requests_in_flight_than_the_policy_says(remote, monkeypatch):
    write_cache(remote.root, [rows(SHARD * BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    array = open_cache(remote.root).parts[0].data
    array.read(0, 1).result()
    most = 0
    now = 0
    really = requests._start_read

    def counted(*args):
        nonlocal most, now
        now += 1
        most = max(most, now)
        answer = really(*args)
        answer.add_done_callback(over)
        return answer

    def over(_):
        nonlocal now
        now -= 1

    monkeypatch.setattr(requests, "_start_read", counted)
    remote.proxy.faults = Faults(latency_s=0.02)
    chunk = LAYOUT.chunk_elements
    before = retry.policy()
    for allowed in (3, 2):  # of the policy that is in force when a read begins
        most = 0
        try:
            retry.use_policy(dataclasses.replace(before, concurrency=allowed))
            for read in [
                array.read_into(np.empty(chunk, np.uint16), k * chunk) for k in range(1, 13)
            ]:
                read.result()
        finally:
            retry.use_policy(before)
        assert most == allowed


def test_a_time_limit_of_the_stores_own_is_an_error_and_not_waited_for(tmp_path):
    array = write_cache(tmp_path, [rows(BLOCK)], vocab_size=1 << 16, layout=LAYOUT).parts[0].data
    future: Future[None] = Future()
    read = PendingRead(future, array, 0, BLOCK)
    with pytest.raises(TimeoutError):
        read.result(0.01)
    future.set_exception(TimeoutError(110, "Connection timed out"))
    with pytest.raises(ReadError, match="chunk 0 cannot be read"):
        read.result(0.01)


def test_the_background_thread_ends_when_nothing_is_read(remote, monkeypatch):
    write_cache(remote.root, [rows(BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    monkeypatch.setattr(requests, "IDLE_S", 0.05)
    cache = open_cache(remote.root)
    for begin in (0, 1):  # and begins again
        assert cache.tokens(begin, begin + 1).tolist() == [begin]
        assert ended()


def running():
    return [t for t in threading.enumerate() if t.name == "store-requests"]


def ended():
    """Waits until the background thread has ended."""
    for thread in running():
        thread.join()
    return not running()


@pytest.fixture
def restless(monkeypatch):
    """The background thread ends as soon as it may, and threads take turns as often as they can."""
    assert ended()
    monkeypatch.setattr(requests, "IDLE_S", 0.001)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    assert ended()


class Answer:
    """Behaves as a future of TensorStore: done in some thread of its own, perhaps before anybody
    waits for it.
    """

    def __init__(self, pool, value, seconds):
        self.lock = threading.Lock()
        self.calls = []
        self.there = False
        self.value = value
        pool.submit(self.arrive, seconds)

    def arrive(self, seconds):
        time.sleep(seconds)
        with self.lock:
            self.there = True
            calls = self.calls
        for call in calls:
            call(self)

    def add_done_callback(self, call):
        with self.lock:
            if not self.there:
                self.calls.append(call)
                return
        call(self)

    def result(self):
        assert self.there
        return self.value


@pytest.mark.usefixtures("restless")
def test_no_read_is_lost_while_the_thread_ends_and_begins_again(monkeypatch):
    """The thread begins hundreds of times, and reads come at all moments of its end."""
    began = []
    really = requests._Loop.__init__
    monkeypatch.setattr(requests._Loop, "__init__", lambda self: began.append(1) or really(self))

    def ask(number, pool):
        chance = random.Random(number)
        for k in range(400):

            async def read(k=k):
                return await requests.arrived(Answer(pool, k, chance.choice((0, 0, 0.0005))), 20)

            assert requests.submit(read).result() == k
            time.sleep(chance.choice((0, 0.001, 0.0015, 0.002, 0.003)))

    with ThreadPoolExecutor(8) as pool, ThreadPoolExecutor(3) as readers:
        for done in [readers.submit(ask, n, pool) for n in range(3)]:
            done.result()
    assert len(began) > 50


@pytest.mark.usefixtures("restless")
def test_reads_dropped_at_any_moment_are_over():
    async def read():
        await asyncio.sleep(0.002)
        return 1

    def ask(number):
        chance = random.Random(number)
        found = 0
        for _ in range(500):
            future = requests.submit(read)
            time.sleep(chance.choice((0, 0, 0.001, 0.003)))
            future.cancel()
            with contextlib.suppress(CancelledError):
                found += future.result()
        return found

    with ThreadPoolExecutor(3) as readers:
        assert 0 < sum(readers.map(ask, range(3))) < 1500
    assert ended()  # none is still counted


def test_a_lost_wake_up_costs_a_moment(remote):
    """As if Ctrl-C came between a note that the loop was told and the telling."""

    async def nothing():
        return 7

    assert requests.submit(nothing).result() == 7
    requests._current._told = True
    assert requests.submit(nothing).result() == 7


def test_when_the_thread_breaks_its_reads_fail_and_the_next_begins_another(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    async def forever():
        await asyncio.sleep(1000)

    async def breaks():
        raise SystemExit

    reads = [requests.submit(forever) for _ in range(3)]
    thread = requests._current.thread
    broken = requests.submit(breaks)
    assert len(wait([*reads, broken]).not_done) == 0
    assert {type(r.exception()) for r in reads} == {requests._EndedError}
    thread.join()

    async def nothing():
        return 7

    assert requests.submit(nothing).result() == 7
    assert requests._current.thread is not thread


def test_what_nobody_waits_for_any_more_keeps_the_thread(remote, monkeypatch):
    """An index on its way when its reader was dropped, for longer than the thread may idle: whoever
    comes next gets it (and no task of a loop that is gone).
    """
    cache = write(remote, 1)
    monkeypatch.setattr(requests, "IDLE_S", 0.05)
    assert ended()
    array = cache.parts[0].data
    remote.proxy.clear()
    remote.proxy.faults = Faults(latency_s=0.3)
    for asked in (lambda: remote.proxy.count("GET", "zarr.json"), lambda: data_gets(remote.proxy)):
        dropped = array.read(0, 5)
        while not asked():  # it is on its way
            time.sleep(0.005)
        del dropped
    time.sleep(0.1)
    assert array.read(2, 5).result().tolist() == [2, 3, 4]
    assert (remote.proxy.count("GET", "zarr.json"), data_gets(remote.proxy)) == (1, 2)
    assert ended()


@pytest.mark.usefixtures("restless")
def test_reads_from_several_threads_while_the_thread_ends_and_begins_again(remote):
    write_cache(remote.root, [rows(8 * BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    array = open_cache(remote.root).parts[0].data
    wanted = np.concatenate(rows(8 * BLOCK))
    chunk = LAYOUT.chunk_elements

    def ask(number):
        chance = random.Random(number)
        for _ in range(100):
            at = chance.randrange(8) * chunk
            found = array.read_into(np.empty(chunk, np.uint16), at).result()
            assert np.array_equal(found, wanted[at : at + chunk])
            time.sleep(chance.choice((0, 0.002)))

    with ThreadPoolExecutor(3) as readers:
        for done in [readers.submit(ask, n) for n in range(3)]:
            done.result()


@pytest.mark.usefixtures("restless")
def test_readers_of_the_same_chunks_give_up_while_answers_fail_and_the_policy_changes(remote):
    """More reads than there is room for; requests that are late, fail, are refused or damaged."""
    write_cache(remote.root, [rows(8 * BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    array = open_cache(remote.root).parts[0].data
    wanted = np.concatenate(rows(8 * BLOCK))
    chunk = LAYOUT.chunk_elements
    array.read(0, 1).result()  # it is open: from here on any thread sends
    policy = RetryPolicy(
        first_delay_s=0.001,
        max_delay_s=0.01,
        timeout_s=0.3,
        hedge_after_s=0.1,
        concurrency=4,
        damaged_attempts=50,
        refused_attempts=50,
    )
    retry.use_policy(policy)
    kinds = ("error", "cut", "close", "hang", "flip", "page", "whole")
    statuses = (403, 500, 503)
    faults = Faults(error_status=statuses, **{f"{kind}_rate": 0.01 for kind in kinds})
    remote.proxy.faults = dataclasses.replace(faults, spike_rate=0.02, spike_s=0.2)
    before = retry.request_counts()

    def ask(number):
        chance = random.Random(number)
        given_up = 0
        for _ in range(12):
            places = [chance.randrange(8) * chunk for _ in range(8)]
            reads = [array.read_into(np.empty(chunk, np.uint16), at) for at in places]
            retry.use_policy(dataclasses.replace(policy, concurrency=chance.randint(2, 6)))
            for at, read in zip(places, reads, strict=True):
                if chance.random() < 0.2:
                    assert isinstance(read, PendingRead)
                    read.future.cancel()
                    assert wait([read.future]).done
                    given_up += 1
                else:
                    assert np.array_equal(read.result(), wanted[at : at + chunk])
        return given_up

    with ThreadPoolExecutor(6) as readers:
        assert sum(readers.map(ask, range(6))) > 0
    spent = retry.request_counts() - before
    assert spent.retries > 0
    assert spent.damaged > 0
    assert spent.hedges > 0
    assert ended()  # no read is still counted
    assert requests._room._taken == 0
    assert not requests._room._waiting


class Sleepy(dict):
    """As if the process were stopped when a request has been sent: the loop wakes up first."""

    def __setitem__(self, read, value):
        super().__setitem__(read, value)
        while not read.done():
            time.sleep(0.001)


def test_a_request_that_is_late_before_its_sender_goes_on(remote):
    write_cache(remote.root, [rows(BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    array = open_cache(remote.root).parts[0].data
    array.read(0, 1).result()  # it is open: from here on any thread sends
    array.forget()
    retry.use_policy(RetryPolicy(hedge_after_s=0.001))
    requests._current.direct = Sleepy()
    out = np.empty(BLOCK * SEQ, np.uint16)
    assert np.array_equal(array.read_into(out, 0).result(), np.concatenate(rows(BLOCK)))
    requests._current.direct = {}


LEAVES = """
import sys
import numpy as np
from headrace.store import TokenCache, open_cache
array = open_cache(sys.argv[1]).parts[0].data
array.read(0, 1).result()
reads = [array.read_into(np.empty(128, np.uint16), 128 * k) for k in range(1, 16) for _ in range(9)]
reads[int(sys.argv[2])].result()
"""


def test_a_process_ends_while_answers_arrive(tmp_path):
    write_cache(tmp_path, [rows(SHARD * BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        proxy.faults = Faults(latency_s=0.01)
        for answers in (0, 40):
            given = [sys.executable, "-c", LEAVES, proxy.url, str(answers)]
            done = subprocess.run(given, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")


def test_the_error_of_a_hedge_is_no_noise_when_the_other_answers():
    heard = []

    async def good():
        return "good"

    async def bad():
        raise ValueError

    async def both():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: heard.append(context["message"]))
        return await requests._first_good([good(), bad()])

    for _ in range(20):  # which of them is looked at first is chance
        assert asyncio.run(both()) == "good"
    gc.collect()
    assert heard == []


READS_ON = """
import atexit, sys
def read_on():
    try:
        array.read_into(np.empty(128, np.uint16), 0)
    except OSError as error:
        print(error)
atexit.register(read_on)  # what is registered first comes last, where only a daemon thread reads
import numpy as np
from headrace.store import TokenCache, open_cache
array = open_cache(sys.argv[1]).parts[0].data
array.read(128, 129).result()
"""


def test_nothing_is_read_any_more_when_a_process_has_ended(tmp_path):
    """Python would abort: "terminate called without an active exception"."""
    write_cache(tmp_path, [rows(SHARD * BLOCK)], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server:
        given = [sys.executable, "-c", READS_ON, server]
        done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the thread that reads has ended" in done.stdout


def test_requests_without_an_answer_are_failed_ones(remote):
    url = f"{remote.root}/a"
    files.write_atomic(url, b"abc")
    store = requests.Store(kvstore_spec(remote.root), remote.root)
    retry.use_policy(RetryPolicy(first_delay_s=0.001, max_delay_s=0.01))

    async def decode(data):
        return data

    for fate in ("error", "cut"):
        remote.proxy.clear()
        sent = retry.wire()
        remote.proxy.next(fate)
        read = requests.submit(lambda: requests.get(store, "a", slice(0, 3), decode))
        assert read.result() == b"abc"
        assert retry.wire() - sent == retry.Wire(len(remote.proxy.log), 1)


def test_a_plain_file_is_not_mistaken_for_the_shards_of_an_array_beside_it(remote):
    """Nothing in a plain file tells whose bytes came: the same size would do."""
    plain = np.arange(3 * DEFAULT_CHUNK + 5, dtype=np.uint16)
    place = f"{remote.root}/tokens.bin"
    files.write_atomic(place, plain.tobytes())
    for name in ("c/0", "tokens.bin/c/0", "tokens.bin/c/1"):
        files.write_atomic(f"{remote.root}/{name}", (plain + 1).tobytes())
    array = PlainArray(place, plain.size, "uint16")
    for _ in range(2):  # the second time it is open
        for at in range(0, plain.size, array.chunk_elements):
            wanted = plain[at : at + array.chunk_elements]
            assert np.array_equal(array.read_into(np.empty_like(wanted), at).result(), wanted)
