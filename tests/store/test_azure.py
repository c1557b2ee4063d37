"""Caches in Azure, read through obstore from a server of blobs behind a proxy with faults."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pytest

from headrace.errors import CacheError, ConfigError
from headrace.store import CacheLayout, TokenCache, files, open_cache, remote, retry
from headrace.store.ledger import read_ledger
from headrace.testing import FaultProxy, Faults, write_cache
from headrace.testing.servers import serve

CHUNK = 512
ACCOUNT = "devstoreaccount1"  # of the emulators


class Blobs(BaseHTTPRequestHandler):
    """As much of Azure's protocol as reading needs: blobs, parts of them, and listings."""

    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, *given) -> None:
        self._folder = folder
        super().__init__(*given)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        container, _, key = unquote(url.path).removeprefix(f"/{ACCOUNT}/").partition("/")
        if query.get("comp") == ["list"]:
            self._answer(200, self._listing(container, query.get("prefix", [""])[0]))
            return
        path = self._folder / container / key
        if not path.is_file():
            self._answer(404, b"<Error><Code>BlobNotFound</Code></Error>")
            return
        content = path.read_bytes()
        wanted = self.headers.get("Range") or self.headers.get("x-ms-range")
        if wanted is None:
            self._answer(200, content)
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        span = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        self._answer(206, part, {"Content-Range": span})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _listing(self, container: str, prefix: str) -> bytes:
        """What lies directly in the folder that the prefix, with its slash, names."""
        entries: list[str] = []
        for path in sorted((self._folder / container / prefix).glob("*")):
            name = escape(prefix + path.name)
            if path.is_dir():
                entries.append(f"<BlobPrefix><Name>{name}/</Name></BlobPrefix>")
                continue
            entries.append(
                f"<Blob><Name>{name}</Name><Properties><Last-Modified>{formatdate(usegmt=True)}"
                f"</Last-Modified><Content-Length>{path.stat().st_size}</Content-Length>"
                "<Content-Type>x</Content-Type><Etag>1</Etag></Properties></Blob>"
            )
        head = f'<?xml version="1.0"?><EnumerationResults ContainerName="{container}">'
        return f"{head}<Blobs>{''.join(entries)}</Blobs><NextMarker/></EnumerationResults>".encode()

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        about = {"ETag": '"1"', "Last-Modified": formatdate(usegmt=True)}
        for name, value in (about | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass


class Container(NamedTuple):
    """What ``az://data`` has, and the proxy on the way to it."""

    folder: Path
    proxy: FaultProxy


@pytest.fixture
def container(tmp_path, monkeypatch) -> Iterator[Container]:
    with serve(partial(Blobs, tmp_path)) as url, FaultProxy(url) as proxy:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", proxy.url)
        remote.filesystem("az://data")[0].clear_instance_cache()  # those of another address
        yield Container(tmp_path / "data", proxy)


def write(container, name="text", compression="none"):
    """Writes a cache to the container's folder; its tokens."""
    chance = np.random.default_rng(0)
    tokens = chance.integers(0, 1000, 40 * CHUNK + 7).astype(np.uint16)
    layout = CacheLayout("uint16", CHUNK, 16, compression=compression)
    write_cache(container.folder / name, [[tokens]], vocab_size=1000, layout=layout)
    return tokens


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("name", ["text", "a#b ?c/%20é~[{"])
def test_a_cache_is_read_as_from_a_disk_and_every_request_for_chunks_is_counted(
    container, compression, name
):
    tokens = write(container, name, compression)
    cache = open_cache(f"az://data/{name}")
    container.proxy.clear()
    before = retry.wire()
    out = np.empty(CHUNK, np.uint16)
    for chunk in (3, 0, 39):
        cache.parts[0].data.read_into(out, chunk * CHUNK).result()
        assert np.array_equal(out, tokens[chunk * CHUNK : (chunk + 1) * CHUNK])
    assert np.array_equal(cache.tokens(0, cache.num_tokens), tokens)
    assert retry.wire() - before == retry.Wire(len(container.proxy.log))


def test_faults_change_no_token(container):
    tokens = write(container)
    cache = open_cache("az://data/text")
    rates = ("error", "cut", "close", "flip", "page", "whole", "redirect", "head")
    container.proxy.faults = Faults(**{f"{name}_rate": 0.03 for name in rates})
    before = retry.request_counts()
    places = [chunk * CHUNK for chunk in range(40)] * 3
    reads = [cache.parts[0].data.read_into(np.empty(CHUNK, np.uint16), at) for at in places]
    for at, read in zip(places, reads, strict=True):
        assert np.array_equal(read.result(), tokens[at : at + CHUNK])
    spent = retry.request_counts() - before
    assert spent.retries > 0
    assert spent.damaged > 0


def test_what_is_not_there_and_what_cannot_be_is_said(container, monkeypatch):
    write(container)
    assert files.read_bytes("az://data/none.json") is None
    assert files.names_in("az://data/text") == sorted(
        p.name for p in container.folder.glob("text/*")
    )
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_KEY") as refused:
        open_cache("az://me:CANARY@data/text")
    assert "CANARY" not in str(refused.value)
    for write_it in (files.check_writable, lambda url: files.write_atomic(url, b"")):
        with pytest.raises(ConfigError, match="not written to"):
            write_it("az://data/new/file")
    with pytest.raises(CacheError, match=r"copy it to az://data/none") as missing:
        open_cache("az://data/none")
    output = re.search("--output ([^ ,]+)", str(missing.value))
    assert output is not None
    files.check_writable(output[1])
    monkeypatch.setitem(sys.modules, "obstore.fsspec", None)
    with pytest.raises(ConfigError, match=r"headrace\[azure\]"):
        open_cache("az://data/text")


def test_files_whose_answers_break_off_are_asked_for_again(container):
    """An array that its ledger does not name the chunks of: ``zarr.json`` is requested whole."""
    tokens = write(container)
    cache = TokenCache("az://data/text", read_ledger("az://data/text"))
    container.proxy.faults = Faults(cut_rate=0.5)
    assert np.array_equal(cache.tokens(0, CHUNK), tokens[:CHUNK])
    assert container.proxy.count("GET", "zarr.json") > 0


READ = """
import numpy as np
from headrace.store import RetryPolicy, TokenCache, open_cache, use_policy
use_policy(RetryPolicy(timeout_s=1000.0, deadline_s=1000.0))
array = open_cache("az://data/text").parts[0].data
read = array.read_into(np.empty(512, np.uint16), 0)
input()
"""


def test_a_process_ends_while_a_request_is_in_flight(container):
    write(container)
    container.proxy.faults = Faults(hang_rate=1.0, path_contains="/c/")
    given = subprocess.PIPE
    reader = subprocess.Popen([sys.executable, "-c", READ], stdin=given, stderr=given, text=True)
    while not container.proxy.count(fate="hang"):
        time.sleep(0.01)
    _, errors = reader.communicate("\n")
    assert (reader.returncode, errors) == (0, "")
