"""Stores that answer badly: asked again within bounds, then an error that names what, where and as
whom. Never data.
"""

import contextlib
import dataclasses
import math
import os
import time
from collections import Counter

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.data import TokenSeqDataset
from headrace.errors import CacheError, CacheMissingError, ReadError
from headrace.feed import DataLoader
from headrace.store import CacheLayout, TokenCache, files, open_cache, requests, retry
from headrace.store.ledger import read_ledger
from headrace.store.ragged import data_url
from headrace.store.remote import delete_keys
from headrace.testing import FaultProxy, Faults, web_server, write_cache

SEQ = 16
BLOCK = 4
SHARD = 8
ROWS = 1024
BATCH = 16
LAYOUT = CacheLayout("uint16", BLOCK * SEQ, SHARD)
CHUNK = LAYOUT.chunk_elements
POLICY = retry.RetryPolicy(first_delay_s=0.005, max_delay_s=0.05, timeout_s=60.0, hedge_p95=None)
# With 5 % of each fault, a fifth of all answers is damaged: six in a row for one read in 4,000.
PATIENT = dataclasses.replace(POLICY, damaged_attempts=30, refused_attempts=30)


def rows(count=ROWS):
    return [np.arange(SEQ) + SEQ * r for r in range(count)]


@pytest.fixture(scope="module")
def written():
    """Where caches lie that are only read."""
    return set()


@pytest.fixture
def cache(remote, written):
    root = files.join(remote.root.rsplit("/", 1)[0], "read-only")
    if root not in written:
        write_cache(root, [rows()], vocab_size=1 << 16, layout=LAYOUT)
        written.add(root)
    opened = open_cache(root)
    remote.proxy.clear()
    return opened


@pytest.fixture
def own_cache(remote):
    write_cache(remote.root, [rows()], vocab_size=1 << 16, layout=LAYOUT)
    remote.proxy.clear()
    return open_cache(remote.root)


@pytest.fixture
def policy():
    """Puts policies in force until the test ends."""
    before = retry.use_policy(POLICY)
    yield retry.use_policy
    retry.use_policy(before)


def loader(cache, **options):
    one = Mesh(np.array(jax.devices()[:1]), ("data",))
    return DataLoader(TokenSeqDataset(cache, SEQ).shuffle(0), batch_size=16, mesh=one, **options)


def wait_until(condition):
    while not condition():
        time.sleep(0.002)


def faulty(proxy):
    return [r for r in proxy.log if r.fate != "ok"]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_errors_that_pass_are_asked_again(remote, cache, policy, status):
    before = retry.request_counts()
    remote.proxy.next("error", times=5, status=status)
    assert np.array_equal(cache.tokens(0, CHUNK), np.arange(CHUNK))
    assert len(faulty(remote.proxy)) == 5 == (retry.request_counts() - before).retries


def test_cut_answers_are_asked_for_again(remote, cache, policy):
    cache.tokens(CHUNK, CHUNK + 1)  # the index is there: the next request is for data
    before = retry.request_counts()
    remote.proxy.next("cut", times=3)
    assert np.array_equal(cache.tokens(0, CHUNK), np.arange(CHUNK))
    spent = retry.request_counts() - before
    assert (spent.retries, spent.requests) == (3, 4)
    assert len(faulty(remote.proxy)) == 3


def test_closed_connections_are_asked_again(remote, cache, policy):
    """curl asks again by itself, telling nobody, if the connection was kept from another request:
    so many requests are in the log and not in the counters, and no others.
    """
    before = retry.request_counts()
    remote.proxy.next("close", times=3)
    assert np.array_equal(cache.tokens(0, CHUNK), np.arange(CHUNK))
    assert len(faulty(remote.proxy)) == 3
    untold = sum(request.reused for request in faulty(remote.proxy))
    spent = retry.request_counts() - before
    assert spent.retries == 3 - untold
    assert spent.requests == len(remote.proxy.log) - untold


@contextlib.contextmanager
def botocore_requests(proxy):
    """What tells a request of botocore from another, for each that the proxy sees in the block:
    aiohttp, which it uses, sends one again whose connection closes, and tells nobody.
    """
    seen = []
    decide = proxy.decide

    def noting(head):
        if "amz-sdk-invocation-id" in head.headers:
            seen.append((head.headers["amz-sdk-invocation-id"], head.headers["amz-sdk-request"]))
        return decide(head)

    proxy.decide = noting
    try:
        yield seen
    finally:
        del proxy.decide


def check_count_of_a_probe(proxy, cache, fate, failures):
    """A store that fails for a while is asked for its Retry-After, with a request that has a fate
    of its own.
    """
    cache.tokens(CHUNK, CHUNK + 1)
    proxy.clear()
    before = retry.request_counts()
    proxy.next("error", times=failures, status=503)
    if fate != "ok":
        proxy.next(fate)
    with botocore_requests(proxy) as seen:
        assert np.array_equal(cache.tokens(0, CHUNK), np.arange(CHUNK))
    assert proxy.log[failures].range == "bytes=0-0"
    assert proxy.log[failures].fate == fate
    untold = len(seen) - len(set(seen))
    spent = retry.request_counts() - before
    assert spent.requests == len(proxy.log) - untold
    assert spent.retries == spent.requests - 1


PROBE_FATES = pytest.mark.parametrize(
    "fate", ["ok", "error", "cut", "close", "head", "page", "whole"]
)


@PROBE_FATES
def test_a_probe_is_counted_as_often_as_it_is_sent(remote, cache, policy, monkeypatch, fate):
    monkeypatch.setattr(requests, "_looked_at", {})
    check_count_of_a_probe(remote.proxy, cache, fate, 6)  # TensorStore asks twice each time


@PROBE_FATES
def test_a_probe_of_a_web_server_too(tmp_path, policy, monkeypatch, fate):
    monkeypatch.setattr(requests, "_looked_at", {})
    write_cache(tmp_path / "cache", [rows()], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        check_count_of_a_probe(proxy, open_cache(f"{proxy.url}/cache"), fate, 3)


def test_requests_for_small_files_are_counted_if_their_connection_is_closed(tmp_path):
    """aiohttp, too, asks again by itself."""
    (tmp_path / "file").write_bytes(b"abc")
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        before = retry.wire()
        for _ in range(4):
            assert files.read_bytes(f"{proxy.url}/file") == b"abc"
            proxy.next("close", path_contains="file")
        assert [request.reused for request in proxy.log] == [False, *[True, False] * 3]
        assert retry.wire() - before == retry.Wire(len(proxy.log))


def test_a_request_that_hangs_is_given_up_and_asked_again(remote, cache, policy):
    policy(retry.RetryPolicy(timeout_s=0.3, first_delay_s=0.01))
    before = retry.request_counts()
    remote.proxy.next("hang", times=2)
    assert np.array_equal(cache.tokens(0, CHUNK), np.arange(CHUNK))  # nobody releases them
    assert remote.proxy.count(fate="hang") == 2
    spent = retry.request_counts() - before
    assert spent.retries + spent.hedges >= 2  # a busy machine may be late with a third


def test_a_request_that_hangs_holds_up_nothing_else(remote, cache, policy):
    """The other read ends while this one hangs, which is given up by nobody."""
    policy(retry.RetryPolicy(timeout_s=3600.0))
    assert cache.tokens(0, 1).tolist() == [0]
    remote.proxy.next("hang")
    array = cache.parts[0].data
    stuck = array.read_into(np.empty(CHUNK, np.uint16), CHUNK)
    wait_until(lambda: remote.proxy.count(fate="hang") == 1)
    assert array.read_into(np.empty(CHUNK, np.uint16), 2 * CHUNK).result()[0] == 2 * CHUNK
    with pytest.raises(TimeoutError):
        stuck.result(0)


def test_small_files_are_asked_for_again_too(remote, cache, policy):
    for fate in ("error", "cut", "close"):
        remote.proxy.next(fate, path_contains="ledger.json", status=503)
        assert open_cache(cache.path).num_tokens == ROWS * SEQ
    assert len(faulty(remote.proxy)) == 3


def test_small_files_of_web_servers_too(tmp_path, policy):
    write_cache(tmp_path / "cache", [rows()], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        for fate in ("error", "cut", "close"):
            proxy.next(fate, times=2, path_contains="ledger.json", status=503)
            assert open_cache(f"{proxy.url}/cache").num_tokens == ROWS * SEQ
        assert len(faulty(proxy)) == 6


def test_a_build_goes_through_faults(remote, tmp_path, policy):
    """Writes too; the second file is the same as the first."""
    remote.proxy.faults = Faults(
        error_rate=0.1, close_rate=0.05, methods=("GET", "HEAD", "PUT", "POST")
    )
    there = write_cache(remote.root, [rows()], vocab_size=1 << 16, layout=LAYOUT)
    remote.proxy.faults = Faults()
    here = write_cache(tmp_path / "here", [rows()], vocab_size=1 << 16, layout=LAYOUT)
    assert open_cache(remote.root).fingerprint == here.fingerprint
    assert np.array_equal(there.tokens(0, there.num_tokens), here.tokens(0, here.num_tokens))
    assert faulty(remote.proxy)


def test_a_late_answer_gets_company(remote, cache, policy):
    cache.tokens(0, 1)
    policy(retry.RetryPolicy(hedge_after_s=0.1, hedge_share=1.0, timeout_s=3600.0))
    before = retry.request_counts()
    remote.proxy.next("hang")
    assert cache.tokens(CHUNK, 2 * CHUNK)[0] == CHUNK
    spent = retry.request_counts() - before
    assert (spent.hedges, spent.hedges_won, spent.retries, spent.requests) == (1, 1, 0, 2)
    policy(retry.RetryPolicy(hedge_after_s=3600.0, hedge_share=1.0, timeout_s=3600.0))
    assert cache.tokens(2 * CHUNK, 3 * CHUNK)[0] == 2 * CHUNK  # in time: alone
    assert (retry.request_counts() - before).hedges == 1


def test_the_loser_of_a_hedge_writes_nowhere(remote, cache, policy):
    """The first answer is 0.5 s late. Its target is used for something else by then, and must not
    change.
    """
    cache.tokens(0, 1)
    remote.proxy.clear()
    policy(retry.RetryPolicy(hedge_after_s=0.05, hedge_share=1.0, timeout_s=3600.0))
    remote.proxy.faults = Faults(latency_s=0.5)
    out = np.zeros(CHUNK, np.uint16)
    read = cache.parts[0].data.read_into(out, CHUNK)
    wait_until(remote.proxy.count)  # the first is on its way
    remote.proxy.faults = Faults()
    assert read.result()[0] == CHUNK
    out[:] = 7
    wait_until(lambda: all(r.status for r in remote.proxy.log))
    time.sleep(0.1)  # for the client to take it
    assert (out == 7).all()


def test_a_store_that_is_slow_as_a_whole_is_not_asked_twice(remote, cache, policy, monkeypatch):
    cache.tokens(0, 1)
    monkeypatch.setattr(retry._Process, "counts", retry.RequestCounts())
    policy(retry.RetryPolicy(hedge_after_s=0.01, hedge_share=0.1))
    remote.proxy.faults = Faults(latency_s=0.05)
    for k in range(1, 31):
        cache.tokens(k * CHUNK, (k + 1) * CHUNK)
    counts = retry.own_counts()
    assert 1 <= counts.hedges <= 0.1 * counts.requests + 1


def test_hedges_after_a_multiple_of_the_95th_percentile(monkeypatch):
    policy = retry.RetryPolicy(hedge_p95=2.0)
    for seconds, hedge_after in ((0.2, 0.4), (0.001, 0.25)):  # a nearby store is late by chance
        latencies = requests.Latencies()
        monkeypatch.setattr(requests, "_latencies", latencies)
        for _ in range(49):
            latencies.add(seconds)
        assert requests._hedge_after(policy) == math.inf
        latencies.add(seconds)
        assert requests._hedge_after(policy) == pytest.approx(hedge_after)
    assert requests._hedge_after(retry.RetryPolicy(hedge_p95=None)) == math.inf


def test_a_store_that_disappears_is_an_error_after_so_long(remote, cache, policy):
    policy(retry.RetryPolicy(deadline_s=0.3, first_delay_s=0.01))
    batches = loader(cache, prefetch_bytes=16 * CHUNK * 2).iter_from_step(0)
    next(batches)
    remote.proxy.down = True
    remote.proxy.clear()
    with pytest.raises(
        ReadError, match=r"chunk \d+ cannot be read for step \d+ .*given up after \d+ rounds in"
    ) as caught:
        list(batches)
    assert caught.value.value == cache.parts[0].data.url
    assert f"shard file {cache.parts[0].data.url}/c/" in str(caught.value)
    remote.proxy.down = False
    assert loader(cache).batch_at(0).batch_size == 16  # and heals


def test_the_deadline_ends_the_retries(remote, cache, policy):
    policy(retry.RetryPolicy(first_delay_s=0.05, max_delay_s=0.1, deadline_s=0.6))
    remote.proxy.faults = Faults(error_rate=1.0)
    began = time.monotonic()
    with pytest.raises(ReadError, match=r"given up after \d+ rounds in \d+\.\d s"):
        cache.tokens(0, 1)
    assert time.monotonic() - began >= 0.6


def test_permission_refused_says_as_whom_it_asked(remote, cache, policy, monkeypatch):
    who = (
        "the key in AWS_ACCESS_KEY_ID"
        if remote.root.startswith("s3")
        else "nobody .STORAGE_EMULATOR_HOST is set."
    )
    remote.proxy.faults = Faults(error_rate=1.0, error_status=(403,))
    with pytest.raises(ReadError, match=f"cannot be read .*asked as {who}"):
        cache.tokens(0, 1)
    with pytest.raises(CacheError, match=f"asked as {who}") as caught:
        open_cache(cache.path)
    assert "secret" not in str(caught.value)
    assert remote.proxy.count(fate="error") <= 2 * 6 + 1  # not asked again and again
    remote.proxy.faults = Faults()
    cache.tokens(0, 1)
    remote.proxy.faults = Faults(error_rate=1.0, error_status=(401,))
    with pytest.raises(ReadError, match=rf"for step 0 .*asked as {who}"):
        loader(cache).batch_at(0)


def rewrite(cache, change):
    """Changes the bytes of the first shard."""
    url = files.join(data_url(cache.path, "00000"), "c", "0")
    content = bytearray(files.read_bytes(url) or b"")
    files.write_atomic(url, bytes(change(content)))
    return url


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda c: c[:40] + bytes([c[40] ^ 4]) + c[41:],
            "chunk 0 cannot be read for step .*[Dd]igest mismatch",
        ),
        (lambda c: c[:-9] + bytes([c[-9] ^ 4]) + c[-8:], "its index: .*[Dd]igest mismatch"),
        (lambda c: c[:-200], "its index: "),
        (lambda c: c[:20], "its index|shorter than it was written"),
    ],
)
def test_a_damaged_shard_is_named_with_array_chunk_and_step(own_cache, policy, change, why):
    url = rewrite(own_cache, change)
    # opened from ledger.json alone: with ledger.bin, indices are asked for where chunks are not
    of_json = TokenCache(own_cache.path, read_ledger(own_cache.path))
    with pytest.raises(ReadError, match=why) as caught:
        list(loader(of_json))
    assert f"shard file {url}" in str(caught.value)
    assert caught.value.value == own_cache.parts[0].data.url
    assert "for step" in str(caught.value)


def test_with_ledger_bin_what_is_lost_is_named_too_and_an_index_is_not_missed(own_cache, policy):
    url = rewrite(own_cache, lambda c: c[:-9] + bytes([c[-9] ^ 4]) + c[-8:])
    assert sum(batch.batch_size for batch in loader(own_cache)) == ROWS
    rewrite(own_cache, lambda c: c[:-200])
    with pytest.raises(
        ReadError, match=r"cannot be read for step .*shorter than it was written"
    ) as caught:
        list(loader(open_cache(own_cache.path)))
    assert f"shard file {url}" in str(caught.value)


def test_a_lost_shard_is_named(own_cache, policy):
    delete_keys(files.join(data_url(own_cache.path, "00000"), "c", "1"))
    policy(dataclasses.replace(POLICY, deadline_s=0.3))
    with pytest.raises(
        ReadError, match=r"NOT_FOUND: it is missing; given up after .*, shard file .*/c/1\b"
    ):
        list(loader(own_cache))


def test_a_host_that_nobody_answers_at_is_no_missing_folder(policy):
    policy(retry.RetryPolicy(deadline_s=0.05, first_delay_s=0.01))
    with pytest.raises(CacheError, match="cannot be reached") as caught:
        open_cache("http://127.0.0.1:9/cache")
    assert not isinstance(caught.value, CacheMissingError)
    with pytest.raises(CacheError, match="cannot be reached"):
        files.open_read("http://127.0.0.1:9/cache.txt")
    with pytest.raises(CacheError, match="cannot be reached"):
        files.exists("http://127.0.0.1:9/cache")


RATES = (
    "error_rate",
    "cut_rate",
    "close_rate",
    "flip_rate",
    "page_rate",
    "whole_rate",
    "redirect_rate",
    "head_rate",
)


def one_in(share, *without):
    """Every fault on this share of the answers. At a redirect of GCS, TensorStore 0.1.81 ends the
    process.
    """
    rates = {rate: share for rate in RATES if rate not in without}
    return Faults(
        error_status=(401, 403, 429, 500, 503),
        latency_s=0.001,
        spike_rate=share,
        spike_s=0.2,
        **rates,
    )


class _Seen:
    """What a proxy logged, added up bit by bit, so that a long run holds no long log."""

    def __init__(self, proxy):
        self.proxy = proxy
        self.fates = Counter()
        self.requests = 0
        self.untold = 0  # which curl sent again, telling nobody
        self.spikes = 0

    def add(self, under_way=0):
        with self.proxy._lock:
            end = max(len(self.proxy._log) - under_way, 0)
            log = self.proxy._log[:end]
            self.proxy._log = self.proxy._log[end:]
        chunks = [r for r in log if r.range != "bytes=0-0"]  # which asks for Retry-After
        self.fates += Counter("refusal" if r.status in (401, 403) else r.fate for r in chunks)
        self.requests += len(log)
        self.untold += sum(r.reused and r.fate == "close" for r in chunks)
        self.spikes += sum(r.late_s > 0.1 for r in chunks)
        paths = {r.path.replace("%2F", "/") for r in log if r.path != "/sign-in"}
        assert [path for path in paths if "/c/" not in path] == []


def loader_of_epochs(cache, batches):
    one = Mesh(np.array(jax.devices()[:1]), ("data",))
    cache.tokens(0, cache.num_tokens)  # all indices are known from here on
    data = TokenSeqDataset(cache, SEQ)
    epochs = -(-batches * BATCH // len(data))
    data = data.shuffle(0).repeat(epochs).take(batches * BATCH)
    return DataLoader(
        data, batch_size=BATCH, mesh=one, prefetch_bytes=cache.num_tokens
    )  # half of its bytes


def run_under_faults(proxy, there, here, faults, batches, progress=lambda step: None):
    """Batches of a faulty run against those of a local disk, and what was counted against what the
    proxy logged.
    """
    loading = loader_of_epochs(there, batches)
    proxy.clear()
    proxy.faults = faults
    before = retry.request_counts()
    reads_before = loading.stats().reads
    seen = _Seen(proxy)
    step = -1
    with botocore_requests(proxy) as probes:
        for step, (batch, right) in enumerate(
            zip(loading, loader_of_epochs(here, batches), strict=True)
        ):
            assert np.array_equal(batch.tokens, right.tokens), step
            progress(step)
            if step % 250 == 0:
                seen.add(under_way=500)  # the last have no status yet
    spent = retry.request_counts() - before
    seen.add()
    seen.untold += len(probes) - len(set(probes))
    proxy.faults = Faults()
    assert step + 1 == batches
    fates = seen.fates
    print(
        f"{batches} batches, {seen.requests} requests, {dict(fates)}, {seen.spikes} spikes,"
        f" {seen.untold} untold, {spent}"
    )
    assert spent.requests == seen.requests - seen.untold
    assert spent.retries == seen.requests - seen.untold - fates["ok"]
    assert spent.refused == fates["refusal"] + fates["redirect"]
    # What TensorStore makes of half a head differs: a cut answer from GCS and S3, a damaged one
    # from a web server.
    assert 0 <= spent.damaged - fates["flip"] - fates["page"] - fates["whole"] <= fates["head"]
    reads = loading.stats().reads - reads_before
    assert spent.requests - spent.retries - spent.index_requests == reads.block_fetches
    assert (reads.requests, reads.retries, reads.hedges) == (spent.requests, spent.retries, 0)
    assert (reads.damaged, reads.refused) == (spent.damaged, spent.refused)
    return [
        fates["refusal"],
        *(fates[rate.removesuffix("_rate")] for rate in RATES if getattr(faults, rate)),
    ], seen.spikes


def soak(proxy, there, here, share, *without):
    """Ten thousand batches with this share of each fault, in flat memory; with 1 %, in at most
    twice the time of batches without.
    """
    batches = int(os.environ.get("HEADRACE_SOAK_BATCHES", "10000"))
    plain = Faults(latency_s=0.001)
    bad = one_in(share, *without)
    spans = []
    grown = 0.0
    for faults, count in ((plain, batches // 10), (bad, batches), (plain, batches // 10)):
        resident = []
        began = time.monotonic()

        def progress(step, resident=resident, count=count):
            if step in (count // 2, count - 1):
                with open("/proc/self/status") as status:
                    resident.append(
                        int(next(line for line in status if line.startswith("RssAnon")).split()[1])
                        / 1024
                    )

        seen, spikes = run_under_faults(proxy, there, here, faults, count, progress)
        spans.append((time.monotonic() - began) / count)
        if faults is bad:
            assert min(*seen, spikes) >= batches // 200
            grown = resident[1] - resident[0]
    without_s = (spans[0] + spans[2]) / 2
    print(
        f"{without_s * 1e3:.2f} ms a batch without faults, {spans[1] * 1e3:.2f} with; RSS grew by"
        f" {grown:.1f} MiB"
    )
    assert grown < 16
    assert share > 0.01 or spans[1] < 2 * without_s


@pytest.mark.parametrize("share", [0.02, 0.05])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_batches_under_faults_are_those_without(remote, tmp_path, policy, compression, share):
    policy(PATIENT)
    layout = dataclasses.replace(LAYOUT, compression=compression)
    there, here = (
        write_cache(p, [rows()], vocab_size=1 << 16, layout=layout) for p in (remote.root, tmp_path)
    )
    without = ("redirect_rate",) if remote.root.startswith("gs") else ()
    seen, spikes = run_under_faults(remote.proxy, there, here, one_in(share, *without), 150)
    assert min(*seen, spikes) >= 1


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_batches_of_a_web_server_under_faults_too(tmp_path, policy, share):
    policy(PATIENT)
    here = write_cache(tmp_path / "cache", [rows()], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        there = open_cache(f"{proxy.url}/cache")
        seen, spikes = run_under_faults(proxy, there, here, one_in(share), 150)
        assert min(*seen, spikes) >= 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_ten_thousand_batches_under_faults_are_those_without(remote, tmp_path, policy, share):
    policy(PATIENT)
    there, here = (
        write_cache(p, [rows(4 * ROWS)], vocab_size=1 << 16, layout=LAYOUT)
        for p in (remote.root, tmp_path)
    )
    without = ("redirect_rate",) if remote.root.startswith("gs") else ()
    soak(remote.proxy, there, here, share, *without)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_ten_thousand_batches_of_a_web_server_too(tmp_path, policy, share):
    policy(PATIENT)
    here = write_cache(tmp_path / "cache", [rows(4 * ROWS)], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        soak(proxy, open_cache(f"{proxy.url}/cache"), here, share)


@pytest.mark.parametrize("fate", ["flip", "page", "whole", "head", "cut"])
def test_metadata_and_ledgers_heal_too(remote, cache, policy, fate):
    remote.proxy.next(fate, path_contains="zarr.json")
    assert np.array_equal(cache.tokens(0, CHUNK), np.arange(CHUNK))
    remote.proxy.next(fate, path_contains="ledger.json", times=1 if fate == "whole" else 2)
    assert open_cache(cache.path).fingerprint == cache.fingerprint
    assert len(faulty(remote.proxy)) == (2 if fate == "whole" else 3)


def test_what_stays_wrong_says_what_came_and_from_where(remote, cache, policy):
    cache.tokens(CHUNK, CHUNK + 1)
    for faults, asked, said in (  # a flip in the checksum itself reads as another chunk's
        (
            Faults(flip_rate=1.0),
            6,  # the index, too, may say where a damaged chunk is
            r"(igest mismatch|not the one that was written here).*; what came begins with b.*; given up after 3 rounds",
        ),
        (
            Faults(page_rate=1.0),
            6,
            r"shorter than it was written .*size 52.*; given up after 3 rounds",
        ),
        (
            Faults(error_rate=1.0, error_status=(403,)),
            3,
            r"HTTP status 403; given up after 3 rounds .*asked as",
        ),
    ):
        retry.use_policy(dataclasses.replace(POLICY, damaged_attempts=3, refused_attempts=3))
        remote.proxy.clear()
        remote.proxy.faults = faults
        with pytest.raises(ReadError, match=said) as caught:
            cache.tokens(0, CHUNK)
        assert f"shard file {cache.parts[0].data.url}/c/0" in str(caught.value)
        assert len(remote.proxy.log) == asked
        remote.proxy.faults = Faults()
    assert np.array_equal(cache.tokens(0, CHUNK), np.arange(CHUNK))


def test_credentials_that_were_changed_are_taken_up(remote, own_cache, policy, monkeypatch):
    """The key of the environment is another one when the store refuses: the request that is sent
    next has it.
    """
    if remote.root.startswith("gs"):
        pytest.skip("TensorStore reads the token of the emulator once in a process")
    own_cache.tokens(CHUNK, CHUNK + 1)
    signed = []
    decide = remote.proxy.decide
    monkeypatch.setattr(
        remote.proxy,
        "decide",
        lambda head: signed.append(head.headers["authorization"]) or decide(head),
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    own_cache.tokens(2 * CHUNK, 3 * CHUNK)
    remote.proxy.next("error", status=403)
    own_cache.tokens(0, CHUNK)
    assert ["Credential=another/" in header for header in signed] == [False, False, True]
