"""Stores that are away for a while, as a run begins and in its middle: the run goes on; if they do
not come back in time, an error says how long it tried.

By default a second of an outage takes a fiftieth of one: all times are settings of the policy.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import get_args

import jax
import numpy as np
import pytest

from headrace import ComponentConfig, LmDataConfig
from headrace.errors import CacheError, HeadraceError, ReadError
from headrace.store import (
    CacheLayout,
    RetryPolicy,
    files,
    open_cache,
    open_replicas,
    retry,
    use_policy,
    verify,
)
from headrace.testing import FaultProxy, Faults, web_server, write_cache
from headrace.testing.faults import Fate, Outage
from headrace.testing.servers import serve

FASTER = 50
USUAL = RetryPolicy()
FAST = RetryPolicy(
    first_delay_s=USUAL.first_delay_s / FASTER,
    max_delay_s=USUAL.max_delay_s / FASTER,
    deadline_s=USUAL.deadline_s / FASTER,
    replica_after_s=USUAL.replica_after_s / FASTER,
)
KINDS = get_args(Outage)
LAYOUT = CacheLayout("uint16", 64, 4)
TOKENS = np.arange(256 * 64, dtype=np.uint16)
STEPS = 120


@pytest.fixture
def fast() -> None:
    use_policy(FAST)  # until the test ends: tests/conftest.py


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache, which tests only read."""
    folder = tmp_path_factory.mktemp("outages")
    write_cache(folder / "cache", [[TOKENS]], vocab_size=1 << 16, layout=LAYOUT)
    return folder


@pytest.fixture(scope="module")
def right(written: Path) -> list[np.ndarray]:
    """The batches without an outage."""
    return batches(str(written / "cache"))


@pytest.fixture
def proxy(written: Path) -> Iterator[FaultProxy]:
    with web_server(written) as server, FaultProxy(server) as proxy:
        yield proxy


def batches(cache: str, begun: Callable[[], None] = lambda: None) -> list[np.ndarray]:
    """The batches of a run with little memory; ``begun`` is called after the first."""
    config = LmDataConfig(
        {"a": ComponentConfig(cache)},
        seq_len=16,
        batch_size=8,
        num_steps=STEPS,
        prefetch_bytes=12288,
    )
    taken: list[np.ndarray] = []
    for batch in config.loader():
        taken.append(np.asarray(batch.tokens))
        if len(taken) == 1:
            begun()
    return taken


def check_outage(right: list[np.ndarray], proxy: FaultProxy, kind: Outage, seconds: float) -> None:
    """A run whose store is away as it begins, and again in its middle, has the usual batches."""
    proxy.outage(kind, seconds)
    same = batches(f"{proxy.url}/cache", lambda: proxy.outage(kind, seconds))
    assert np.array_equal(same, right)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("seconds", [30, 60, 110])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_after_an_outage(
    right: list[np.ndarray], proxy: FaultProxy, kind: Outage, seconds: int
):
    check_outage(right, proxy, kind, seconds / FASTER)


@pytest.mark.slow
def test_a_run_goes_on_after_an_outage_in_real_time(written: Path, right: list[np.ndarray]):
    """With the usual policy: one proxy for each, side by side."""
    jax.devices()  # threads must not be the first to begin with jax
    use_policy(USUAL)
    cases = [(kind, seconds) for kind in KINDS for seconds in (30, 60, 110)]
    with ExitStack() as stack, ThreadPoolExecutor(len(cases)) as pool:
        server = stack.enter_context(web_server(written))
        proxies = [stack.enter_context(FaultProxy(server)) for _ in cases]
        checks = [
            pool.submit(check_outage, right, proxy, kind, seconds)
            for proxy, (kind, seconds) in zip(proxies, cases, strict=True)
        ]
        for check in checks:
            check.result()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_after_two_minutes_it_is_an_error_in_real_time(proxy: FaultProxy, kind: Outage):
    use_policy(USUAL)
    check_given_up(proxy, kind, 150, USUAL.deadline_s)


def check_given_up(proxy: FaultProxy, kind: Outage, seconds: float, deadline_s: float) -> None:
    cache = open_cache(f"{proxy.url}/cache")
    proxy.outage(kind, seconds)
    with ThreadPoolExecutor() as pool:
        attempts = (
            pool.submit(open_cache, cache.path),
            pool.submit(cache.tokens, 0, 64),
        )
        failures = [attempt.exception() for attempt in attempts]
    assert [type(failure) for failure in failures] == [CacheError, ReadError]
    for failure in failures:
        said = re.search(r"given up after \d+ rounds in (\d+\.\d) s", str(failure))
        assert said is not None, failure
        assert float(said[1]) >= round(deadline_s, 1)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_beyond_the_deadline_is_an_error_that_says_how_long_it_tried(
    proxy: FaultProxy, kind: Outage
):
    use_policy(replace(FAST, deadline_s=1.0))
    check_given_up(proxy, kind, 60.0, 1.0)


def check_retry_after(url: str, proxy: FaultProxy) -> None:
    """Of a ledger's requests the second waits; of those for chunks TensorStore tells no header:
    after a few, one of fsspec's does.
    """
    use_policy(replace(FAST, deadline_s=60.0))
    proxy.outage("429", 2.0)
    cache = open_cache(url)
    assert proxy.count(fate="error") == 1
    proxy.clear()
    counts = retry.request_counts()
    sent = retry.wire()
    proxy.outage("429", 2.0)
    assert np.array_equal(cache.tokens(0, 64), TOKENS[:64])
    assert proxy.count(fate="error") <= 2 * 3 + 1
    spent = retry.request_counts() - counts
    assert (spent.requests, spent.retries) == (len(proxy.log), len(proxy.log) - 1)
    assert retry.wire() - sent == retry.Wire(len(proxy.log), proxy.count(fate="error"))


def test_no_request_is_sent_before_retry_after_has_passed(proxy: FaultProxy):
    check_retry_after(f"{proxy.url}/cache", proxy)


def test_no_request_is_sent_to_a_bucket_before_retry_after_has_passed(remote):
    write_cache(remote.root, [[TOKENS]], vocab_size=1 << 16, layout=LAYOUT)
    remote.proxy.clear()
    check_retry_after(remote.root, remote.proxy)


def test_the_request_that_asks_for_retry_after_is_one_and_counted(proxy: FaultProxy):
    """A web server would redirect one for a folder."""
    use_policy(replace(FAST, deadline_s=60.0))
    cache = open_cache(f"{proxy.url}/cache")
    cache.tokens(64, 128)
    proxy.clear()
    counts = retry.request_counts()
    proxy.next("error", times=3, status=429)
    assert np.array_equal(cache.tokens(0, 64), TOKENS[:64])
    assert [request.range for request in proxy.log].count("bytes=0-0") == 1
    assert (retry.request_counts() - counts).requests == len(proxy.log) == 5


@pytest.mark.usefixtures("fast")
def test_a_chunk_that_the_ledger_lists_is_asked_for_again_while_it_is_missing(proxy: FaultProxy):
    cache = open_cache(f"{proxy.url}/cache")
    proxy.clear()
    proxy.next("error", times=12, status=404)
    assert np.array_equal(cache.tokens(0, 64), TOKENS[:64])
    assert proxy.count(fate="error") == 12


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("status", [204, 205, 304])
def test_what_comes_without_a_body_is_asked_for_again(proxy: FaultProxy, status: int):
    """A bad proxy answers so, and longer than damaged answers are asked for again."""
    for file in ("ledger.json", "ledger.bin", "zarr.json"):
        proxy.next("error", times=8, status=status, path_contains=file)
    cache = open_cache(f"{proxy.url}/cache")
    proxy.next("error", times=8, status=status)
    if status != 205:
        assert np.array_equal(cache.tokens(0, 64), TOKENS[:64])
    assert verify(cache.path).damages == []


class _Short(SimpleHTTPRequestHandler):
    """Answers with half of a range, at first."""

    protocol_version = "HTTP/1.1"
    left = 8

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path)).read_bytes()
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        last = min(last, len(content) - 1)
        sent = content[first : last + 1]
        if _Short.left:
            _Short.left -= 1
            sent = sent[: len(sent) // 2]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.usefixtures("fast")
def test_half_of_a_range_is_no_short_file(tmp_path: Path):
    (tmp_path / "a.txt").write_text("0123456789")
    with serve(partial(_Short, directory=str(tmp_path))) as url:
        _Short.left = 8
        assert files.read_range(f"{url}/a.txt", 2, 100) == b"23456789"
        _Short.left = 8
        with files.open_source(f"{url}/a.txt") as file:
            assert file.read() == b"0123456789"


def test_the_log_says_what_is_waited_for_and_until_when(
    proxy: FaultProxy, caplog: pytest.LogCaptureFixture
):
    use_policy(replace(FAST, max_delay_s=0.5, deadline_s=60.0))
    caplog.set_level(logging.WARNING)
    began = time.time()
    cache = open_cache(f"{proxy.url}/cache")
    proxy.outage("503", 2.5)
    reads = [cache.parts[0].data.read(64 * k, 64 * k + 64) for k in range(8)]
    for read in reads:
        read.result()
    away, back = (record.getMessage() for record in caplog.records)  # not one for each read
    told = re.fullmatch(
        re.escape(proxy.url)
        + r" does not answer \(ABORTED: Service Unavailable, HTTP status 503\): it is asked again"
        r" until (\d\d:\d\d:\d\d), for \d+ s more",
        away,
    )
    assert told is not None, away
    ends = [time.strftime("%H:%M:%S", time.localtime(began + 60 + late)) for late in range(10)]
    assert told[1] in ends
    assert re.fullmatch(re.escape(proxy.url) + r" answers again, after [2-9] s", back)


@pytest.fixture
def two(written: Path) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    """Two locations of the cache."""
    with web_server(written) as server, FaultProxy(server) as a, FaultProxy(server) as b:
        yield a, b


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_is_read_after_a_few_seconds(two: tuple[FaultProxy, FaultProxy], kind: Outage):
    """The deadline is an hour away."""
    use_policy(replace(FAST, deadline_s=3600.0))
    first, second = two
    cache = open_replicas([f"{first.url}/cache", f"{second.url}/cache"])
    first.outage(kind, 60.0)
    assert np.array_equal(cache.tokens(0, 64), TOKENS[:64])
    opened = open_replicas([f"{first.url}/cache", f"{second.url}/cache"])
    assert opened.path == f"{second.url}/cache"


@pytest.mark.usefixtures("fast")
def test_if_all_replicas_are_away_they_are_asked_in_turn_until_the_deadline(
    two: tuple[FaultProxy, FaultProxy],
):
    roots = [f"{place.url}/cache" for place in two]
    cache = open_replicas(roots)
    for place in two:
        place.outage("503", 110 / FASTER)
    assert np.array_equal(cache.tokens(0, 64), TOKENS[:64])
    for place in two:
        place.outage("refused", 110 / FASTER)
    assert np.array_equal(open_replicas(roots).tokens(64, 128), TOKENS[64:128])
    use_policy(replace(FAST, deadline_s=0.5))
    for place in two:
        place.outage("reset", 60.0)
    with pytest.raises(ReadError, match="none of its replicas gives it"):
        cache.tokens(128, 192)
    with pytest.raises(HeadraceError, match=r"given up after .*; nor can: .*given up after"):
        open_replicas(roots)


def test_late_answers_are_hedged_by_default_within_their_share(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retry._Process, "counts", retry.RequestCounts())
    use_policy(USUAL)
    cache = open_cache(f"{proxy.url}/cache")
    for k in range(60):  # so many answers say what is usual
        chunk = cache.parts[0].data.layout.chunk_elements
        cache.parts[0].data.read_into(np.empty(chunk, np.uint16), k % 16 * chunk).result()
    before = retry.request_counts()
    proxy.next("hang")
    assert np.array_equal(
        cache.parts[0].data.read_into(np.empty(64, np.uint16), 0).result(), TOKENS[:64]
    )
    spent = retry.request_counts() - before
    assert (spent.hedges, spent.hedges_won) == (1, 1)
    proxy.faults = Faults(latency_s=1.0)  # slow as a whole
    for read in [cache.parts[0].data.read(64 * k, 64 * k + 64) for k in range(1, 16)]:
        read.result()
    counts = retry.own_counts()
    assert counts.hedges <= max(1, USUAL.hedge_share * counts.requests)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("kind", "status"), [("error", 503), ("error", 304), ("close", 0)])
def test_verify_takes_no_outage_for_damage(tmp_path: Path, kind: Fate, status: int):
    """Whichever file it asks for as the outage begins."""
    write_cache(tmp_path, [[TOKENS[:300]]], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        assert verify(proxy.url).damages == []
        for path in {request.path for request in proxy.log}:
            proxy.next(kind, times=3, path_contains=path, status=status)
            assert verify(proxy.url).damages == [], path


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", ["page", "flip"])
def test_verify_takes_no_bad_answer_for_damage(tmp_path: Path, kind: Fate):
    write_cache(tmp_path, [[TOKENS[:300]]], vocab_size=1 << 16, layout=LAYOUT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        assert verify(proxy.url).damages == []
        for path in {request.path for request in proxy.log}:
            proxy.next(kind, path_contains=path)
            assert verify(proxy.url).damages == [], path


@pytest.mark.usefixtures("fast")
def test_a_store_that_says_that_a_file_is_missing_is_back(
    proxy: FaultProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retry, "_SAID_AFTER_S", 0.0)
    proxy.next("error", times=3)
    assert files.read_bytes(f"{proxy.url}/none") is None
    assert [message.split("(")[0] for message in caplog.messages] == [
        f"{proxy.url} does not answer ",
        f"{proxy.url} answers again, after 0 s",
    ]
