"""A web server may send to itself; elsewhere only where the policy allows."""

import http.server
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from headrace.errors import ConfigError
from headrace.ingest.source import list_path
from headrace.store import files, redirects, remote, retry
from headrace.testing import web_server
from headrace.testing.servers import serve


@contextmanager
def sends_to(target: str) -> Iterator[str]:
    """A web server that answers every request by sending to the same path of another."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serve(Handler) as url:
        yield url


@pytest.fixture
def policy() -> Iterator[None]:
    before = retry.use_policy(replace(retry.policy(), deadline_s=0.01, max_delay_s=0.0))
    yield
    retry.use_policy(before)


def test_another_host_is_asked_only_if_it_is_allowed(tmp_path, policy):
    (tmp_path / "a.txt").write_text("text of the other host")
    with web_server(tmp_path) as other, sends_to(other.replace("127.0.0.1", "localhost")) as server:
        url = f"{server}/a.txt"
        asks = (
            lambda: files.read_bytes(url),
            lambda: files.open_read(url).read(),
            lambda: list_path(url),
        )
        for ask in asks:
            with pytest.raises(
                ConfigError, match=re.escape("sends elsewhere, to the host localhost")
            ) as caught:
                ask()
            assert "--redirect-host localhost" in str(caught.value)
        redirects.allow(["localhost"])
        assert files.read_bytes(url) == files.open_read(url).read() == b"text of the other host"
        kind, entries = list_path(url) or ("", [])
        assert kind == "files"
        assert [entry.size for entry in entries] == [22]


def test_the_same_server_is_followed(tmp_path, policy):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("here")
    with web_server(tmp_path) as url:
        # Without its last slash, the server sends to the same address with it.
        assert b"a.txt" in (files.read_bytes(f"{url}/b") or b"")


def test_another_port_is_another_server(tmp_path, policy):
    (tmp_path / "a.txt").write_text("there")
    with web_server(tmp_path) as other, sends_to(other) as server:
        port = other.rpartition(":")[2]
        with pytest.raises(ConfigError, match=f"to the host 127.0.0.1 and port {port}"):
            files.read_bytes(f"{server}/a.txt")
        redirects.allow(["127.0.0.1"])
        assert files.read_bytes(f"{server}/a.txt") == b"there"


def test_options_of_the_user_stay(tmp_path, policy, monkeypatch):
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.setitem(
        redirects.fsspec_config, "http", {"client_kwargs": {"headers": {"X-Key": "1"}}}
    )
    with web_server(tmp_path) as server:
        fs, _ = remote.filesystem(f"{server}/a.txt")
        assert fs.client_kwargs["headers"] == {"X-Key": "1"}
        assert len(fs.client_kwargs["trace_configs"]) == 1
        assert files.read_bytes(f"{server}/a.txt") == b"here"


@pytest.mark.parametrize("host", ["", "http://cdn.example.org", "cdn.example.org/files", "a b"])
def test_what_is_no_host_is_refused(host, policy):
    with pytest.raises(
        ConfigError, match=r"redirect_host = .*: must be the name of a host\. Give the host alone"
    ):
        redirects.allow([host])
    assert retry.policy().redirect_hosts == ("hf.co", "huggingface.co")
