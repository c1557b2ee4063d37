"""The fault proxy does what it says, and says what it did: our fault tests rest on it, and users'
too.
"""

import contextlib
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.testing import FaultProxy, Faults, web_server

BODY = b"0123456789" * 100


@pytest.fixture
def server(tmp_path):
    (tmp_path / "a.txt").write_bytes(BODY)
    (tmp_path / "b.txt").write_bytes(b"")
    with web_server(tmp_path) as url:
        yield url


@pytest.fixture
def proxy(server):
    with FaultProxy(server) as proxy:
        yield proxy


def wait_until(condition):
    while not condition():
        time.sleep(0.002)


def get(url, first=None, last=None):
    headers = {} if first is None else {"Range": f"bytes={first}-{last}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return answer.read()


def test_without_faults_it_is_not_there(proxy, server):
    assert get(f"{proxy.url}/a.txt") == get(f"{server}/a.txt") == BODY
    assert get(f"{proxy.url}/a.txt", 10, 19) == BODY[:10]
    assert get(f"{proxy.url}/b.txt") == b""
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{proxy.url}/c.txt")
    seen = [(r.method, r.path, r.range, r.fate, r.status) for r in proxy.log]
    assert seen == [
        ("GET", "/a.txt", "", "ok", 200),
        ("GET", "/a.txt", "bytes=10-19", "ok", 206),
        ("GET", "/b.txt", "", "ok", 200),
        ("GET", "/c.txt", "", "ok", 404),
    ]
    assert [r.bytes for r in proxy.log[:3]] == [1000, 10, 0]
    proxy.clear()
    assert proxy.log == []


def test_one_connection_serves_many_requests(proxy):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port)
    for method in ("GET", "HEAD", "GET"):
        connection.request(method, "/a.txt")
        answer = connection.getresponse()
        assert answer.read() == (b"" if method == "HEAD" else BODY)
        assert answer.headers["Content-Length"] == "1000"
    connection.close()
    assert [r.method for r in proxy.log] == ["GET", "HEAD", "GET"]


def test_told_fates(proxy):
    proxy.next("error", status=429)
    with pytest.raises(urllib.error.HTTPError, match="429"):
        get(f"{proxy.url}/a.txt")
    proxy.next("cut")
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(f"{proxy.url}/a.txt")
    assert caught.value.partial == BODY[:500]
    proxy.next("close")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        get(f"{proxy.url}/a.txt")
    proxy.next("hang")
    with socket.create_connection(("127.0.0.1", proxy.port)) as asking:
        asking.sendall(b"GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: proxy.count(fate="hang"))
        asking.settimeout(0.1)
        with pytest.raises(TimeoutError):
            asking.recv(1)
    proxy.next("error", times=2, path_contains="other")
    assert get(f"{proxy.url}/a.txt") == BODY
    assert [(r.fate, r.status, r.bytes) for r in proxy.log] == [
        ("error", 429, 15),
        ("cut", 200, 500),
        ("close", 0, 0),
        ("hang", 0, 0),
        ("ok", 200, 1000),
    ]
    assert (proxy.count(), proxy.count("GET", "a.txt", "cut"), proxy.count("PUT")) == (5, 1, 0)


def test_released_requests_end(proxy):
    proxy.next("hang")
    failed = []

    def ask():
        try:
            get(f"{proxy.url}/a.txt")
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: proxy.log)
    proxy.release()
    thread.join()
    assert len(failed) == 1


def test_latency_and_spikes_are_at_least_those_asked_for(proxy):
    proxy.faults = Faults(latency_s=0.05, spike_rate=0.3, spike_s=0.1)
    took = []
    for k in range(20):
        began = time.monotonic()
        get(f"{proxy.url}/a.txt", k, k)
        took.append(time.monotonic() - began)
    late = np.array([r.late_s for r in proxy.log])
    assert set(late.round(3)) == {0.05, 0.15}
    assert (np.array(took) >= late).all()


def fates(server, seed, order):
    faults = Faults(error_rate=0.2, cut_rate=0.2, close_rate=0.1)
    with FaultProxy(server, faults, seed) as proxy:
        for k in order:
            with contextlib.suppress(OSError, http.client.HTTPException):
                get(f"{proxy.url}/a.txt", k, k + 9)
        return {r.range: (r.fate, r.status) for r in proxy.log}, Counter(r.fate for r in proxy.log)


def test_fates_follow_from_the_seed_not_from_the_order(server):
    order = list(range(150))
    once, counts = fates(server, 3, order)
    assert fates(server, 3, order[::-1])[0] == once
    assert fates(server, 4, order)[0] != once
    for fate, rate in {"ok": 0.5, "error": 0.2, "cut": 0.2, "close": 0.1}.items():
        assert abs(counts[fate] / 150 - rate) < 4 * np.sqrt(rate * (1 - rate) / 150)


def test_asked_again_a_request_has_another_fate(proxy):
    proxy.faults = Faults(error_rate=0.5)
    for _ in range(40):
        try:
            get(f"{proxy.url}/a.txt")
        except urllib.error.HTTPError as error:
            error.close()
    assert 8 <= proxy.count(fate="error") <= 32


def test_other_methods_and_paths_are_spared(proxy):
    proxy.faults = Faults(error_rate=1.0, methods=("PUT",))
    assert get(f"{proxy.url}/a.txt") == BODY
    proxy.faults = Faults(error_rate=1.0, path_contains="b.txt")
    assert get(f"{proxy.url}/a.txt") == BODY
    with pytest.raises(urllib.error.HTTPError):
        get(f"{proxy.url}/b.txt")


def test_a_server_that_is_down_comes_back(proxy):
    proxy.down = True
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        get(f"{proxy.url}/a.txt")
    proxy.down = False
    assert get(f"{proxy.url}/a.txt") == BODY


def test_a_server_that_is_gone_is_a_closed_connection():
    with (
        FaultProxy("http://127.0.0.1:9") as proxy,
        pytest.raises((http.client.RemoteDisconnected, ConnectionError)),
    ):
        get(f"{proxy.url}/a.txt")


def test_stopping_ends_what_hangs(server):
    with FaultProxy(server, Faults(hang_rate=1.0)) as proxy:

        def ask():
            with pytest.raises(OSError):
                get(f"{proxy.url}/a.txt")

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: proxy.log)
    thread.join()


@pytest.mark.parametrize(
    "rates", [{"error_rate": 1.5}, {"cut_rate": -0.1}, {"error_rate": 0.6, "cut_rate": 0.6}]
)
def test_rates_that_are_none(rates):
    with pytest.raises(ConfigError):
        Faults(**rates)


def test_only_http_servers_have_proxies():
    with pytest.raises(ConfigError, match="is not an http:// address"):
        FaultProxy("https://localhost")


def test_changed_answers(proxy):
    proxy.next("flip", times=2)
    flipped = [get(f"{proxy.url}/a.txt", 0, 99) for _ in range(2)]
    bits = np.unpackbits(np.frombuffer(flipped[0], np.uint8) ^ np.frombuffer(BODY[:100], np.uint8))
    assert (flipped[0] == flipped[1], bits.sum()) == (True, 1)
    proxy.next("page")
    assert get(f"{proxy.url}/a.txt", 0, 99).startswith(b"<!doctype html>")
    proxy.next("whole")
    assert get(f"{proxy.url}/a.txt", 0, 99) == BODY
    proxy.next("redirect")
    assert get(f"{proxy.url}/a.txt", 0, 99).startswith(b"<!doctype html>")
    proxy.next("head")
    with contextlib.suppress(http.client.HTTPException, OSError):
        assert get(f"{proxy.url}/a.txt", 0, 99) == b""
    assert [r.fate for r in proxy.log] == [
        "flip",
        "flip",
        "page",
        "whole",
        "redirect",
        "page",
        "head",
    ]
    assert [r.status for r in proxy.log] == [206, 206, 200, 200, 302, 200, 206]
