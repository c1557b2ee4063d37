"""A command gives up a store that accepts no connection, soon and with the reason; one that is slow
to answer is waited for.
"""

import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec import get_filesystem_class
from fsspec.config import conf as fsspec_config

from headrace.cli import main
from headrace.errors import CacheError, HeadraceError
from headrace.ingest import SourceConfig
from headrace.store import RetryPolicy, files, reach, use_policy
from headrace.store.remote import sizes_below
from headrace.testing import FaultProxy, Faults, web_server

TEXT = b"abc"
WAITING = RetryPolicy(first_delay_s=0.01, max_delay_s=0.02, deadline_s=60.0)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FaultProxy]:
    (tmp_path / "file").write_bytes(TEXT)
    with web_server(tmp_path) as server, FaultProxy(server) as proxy:
        yield proxy


@pytest.fixture
def closed() -> Iterator[str]:
    """An address that refuses connections: its port is taken, and nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that does not answer, as behind a firewall: its queue of connections is full."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"


def refusal(server: str) -> str:
    with reach.expected(0.1), pytest.raises(CacheError) as failed:
        files.exists(f"http://{server}/file")
    assert failed.value.field == "path"
    return str(failed.value)


def test_an_address_that_refuses_or_does_not_answer_is_named(closed: str, silent: str):
    assert f"cannot be reached ({closed}: [Errno 111] Connect call failed" in refusal(closed)
    assert f"cannot be reached ({silent}: no answer in 0.1 s)" in refusal(silent)


@pytest.mark.parametrize("server", ["no-such-host.invalid", "a..b", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_named(server: str):
    assert f"cannot be reached ({server}: " in refusal(server)


def test_a_slow_answer_is_waited_for(proxy: FaultProxy):
    proxy.faults = Faults(latency_s=1.0)
    with reach.expected(0.1):
        assert files.read_bytes(f"{proxy.url}/file") == TEXT


READS: dict[str, Callable[[str], object]] = {
    "read": files.read_bytes,
    "exists": files.exists,
    "list": files.names_in,
    "sizes": sizes_below,
    "open": lambda url: files.open_source(url).read(),
    "sources": lambda url: SourceConfig([url]).files(),
}


@pytest.mark.parametrize("read", READS)
def check_given_up(url: str, silent: FaultProxy, read: str) -> None:
    use_policy(RetryPolicy(timeout_s=0.1, first_delay_s=0.01, max_delay_s=0.02, deadline_s=0.3))
    silent.faults = Faults(hang_rate=1.0, methods=("GET", "HEAD", "POST"))
    with reach.expected(5.0), pytest.raises(HeadraceError, match="given up after") as failed:
        READS[read](url)
    assert re.search("no answer within 0.1 s|[Tt]imeout", str(failed.value)), failed.value
    assert silent.count(fate="hang") < 50


@pytest.mark.parametrize("read", READS)
def test_a_web_server_that_accepts_and_never_answers_is_given_up(proxy: FaultProxy, read: str):
    check_given_up(f"{proxy.url}/folder", proxy, read)


@pytest.mark.parametrize("read", READS)
def test_a_store_that_accepts_and_never_answers_is_given_up(remote, read: str):
    """Its client would try on for minutes by itself."""
    check_given_up(f"{remote.root}/folder", remote.proxy, read)


def test_a_store_that_comes_up_in_time_is_waited_for(proxy: FaultProxy):
    proxy.outage("refused", 0.7)
    with reach.expected(60.0):
        assert files.read_bytes(f"{proxy.url}/file") == TEXT


def test_a_store_that_was_reached_once_is_asked_as_long_as_the_policy_says(proxy: FaultProxy):
    use_policy(WAITING)
    with reach.expected(0.3):
        assert files.read_bytes(f"{proxy.url}/file") == TEXT
        proxy.outage("refused", 0.7)
        assert files.read_bytes(f"{proxy.url}/file") == TEXT


def test_a_program_asks_any_store_as_long_as_the_policy_says(proxy: FaultProxy):
    use_policy(WAITING)
    proxy.outage("refused", 0.7)
    assert files.read_bytes(f"{proxy.url}/file") == TEXT


def test_behind_a_proxy_nothing_is_checked(closed: str, monkeypatch: pytest.MonkeyPatch):
    use_policy(RetryPolicy(deadline_s=0.1))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert "given up after" in refusal(closed)


def test_where_fsspec_is_configured_nothing_is_checked(
    closed: str, monkeypatch: pytest.MonkeyPatch
):
    use_policy(RetryPolicy(deadline_s=0.1))
    monkeypatch.setitem(fsspec_config, "http", {"client_kwargs": {}})
    assert "given up after" in refusal(closed)


@pytest.mark.parametrize("url", ["gs://bucket", "s3://bucket", "az://bucket", "http://{}"])
def test_commands_name_the_store(
    url: str, closed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL", "AZURITE_BLOB_STORAGE_URL"):
        monkeypatch.setenv(name, f"http://{closed}")
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setattr("headrace.cli.REACHED_WITHIN_S", 0.1)
    monkeypatch.setattr(reach, "_reached", set())  # by another test, from this process
    store = url.format(closed)
    # As Levanter sets it for the whole process
    monkeypatch.setitem(fsspec_config, url.partition(":")[0], {"listings_expiry_time": 0})
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.setattr(sys, "argv", ["headrace", "cache", "inspect", f"{store}/cache"])
    get_filesystem_class("s3").clear_instance_cache()  # clients keep their address
    with pytest.raises(SystemExit) as ended:
        main()
    get_filesystem_class("s3").clear_instance_cache()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.match(rf"error path = '{store}': cannot be reached \({closed}: .* Check", said), said
