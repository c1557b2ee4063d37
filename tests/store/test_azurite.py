"""Caches in Azurite, Microsoft's own test server of Azure: ``npm install azurite``, and its
``azurite-blob`` in ``PATH``.
"""

import base64
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from headrace import ComponentConfig, LmDataConfig
from headrace.store import CacheLayout, RetryPolicy, open_cache, remote, retry, use_policy
from headrace.store.retry import with_retries
from headrace.testing import FaultProxy, Faults, write_cache
from headrace.testing.faults import Outage
from headrace.testing.servers import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("azurite-blob") is None, reason="npm install azurite"),
]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
TOKENS = np.arange(256 * 64, dtype=np.uint16)
STEPS = 120
FAST = RetryPolicy(
    first_delay_s=0.001, max_delay_s=0.1, deadline_s=2.4, replica_after_s=0.1, timeout_s=10.0
)


def put(url: str, target: str, body: bytes = b"", **headers: str) -> None:
    """Sends a PUT with the signature of the emulator's account, which everybody knows."""
    path, _, query = target.partition("?")
    named = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
    length = str(len(body)) if body else ""
    lines = ["PUT", "", "", length, "", "application/octet-stream", "", "", "", "", "", ""]
    lines += [f"{name}:{named[name]}" for name in sorted(named)]
    lines += [f"/{ACCOUNT}/{ACCOUNT}/{path}", *query.replace("=", ":").split()]
    signed = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256)
    named["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
    named["Content-Type"] = "application/octet-stream"
    request = urllib.request.Request(f"{url}/{ACCOUNT}/{target}", body, named, method="PUT")
    urllib.request.urlopen(request).close()


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a cache, and the address of the server, whose container ``data`` has it."""
    root = tmp_path_factory.mktemp("azurite")
    layout = CacheLayout("uint16", 64, 4)
    write_cache(root / "cache", [[TOKENS]], vocab_size=1 << 16, layout=layout)
    port = free_port()
    options = [
        "--blobPort",
        str(port),
        "--location",
        str(root / "server"),
        "--silent",
        "--disableTelemetry",
    ]
    server = subprocess.Popen(["azurite-blob", *options, "--skipApiVersionCheck"])
    url = f"http://127.0.0.1:{port}"
    try:
        with_retries(
            lambda: put(url, "data?restype=container"),
            lambda error: not hasattr(error, "status"),  # it has not begun
            url,
        )
        for path in (root / "cache").rglob("*"):
            if path.is_file():
                name = path.relative_to(root).as_posix()
                blob = {"x-ms-blob-type": "BlockBlob"}
                put(url, f"data/{name}", path.read_bytes(), **blob)
        yield root, url
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def proxy(azurite: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with FaultProxy(azurite[1]) as proxy:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", proxy.url)
        remote.filesystem("az://data")[0].clear_instance_cache()
        yield proxy


def batches(cache: str, proxy: FaultProxy, kind: Outage | None, seconds: float) -> list[np.ndarray]:
    """The batches of a run with little memory, whose store is away as it begins, and again after
    its first batch.
    """
    if kind is not None:
        proxy.outage(kind, seconds)
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
        if len(taken) == 1 and kind is not None:
            proxy.outage(kind, seconds)
    return taken


@pytest.mark.parametrize("seconds", [0.6, 1.2, 2.2])
@pytest.mark.parametrize("kind", get_args(Outage))
def test_a_run_goes_on_after_an_outage(
    azurite: tuple[Path, str], proxy: FaultProxy, kind: Outage, seconds: float
):
    """A fiftieth of 30, 60 and 110 s, and of the policy's times."""
    use_policy(FAST)
    right = batches(str(azurite[0] / "cache"), proxy, None, 0.0)
    same = batches("az://data/cache", proxy, kind, seconds)
    assert np.array_equal(same, right)


def test_reads_under_faults_are_right_and_counted_to_the_request(proxy: FaultProxy):
    use_policy(replace(FAST, hedge_p95=None, deadline_s=120.0))
    cache = open_cache("az://data/cache")
    array = cache.parts[0].data
    rates = ("error", "cut", "close", "flip", "page", "whole", "redirect", "head")
    proxy.clear()
    proxy.faults = Faults(**{f"{name}_rate": 0.01 for name in rates})
    before = retry.request_counts()
    for turn in range(20):
        places = [chunk * 64 for chunk in range(256)]
        reads = [array.read_into(np.empty(64, np.uint16), place) for place in places]
        for place, read in zip(places, reads, strict=True):
            assert np.array_equal(read.result(), TOKENS[place : place + 64]), turn
    spent = retry.request_counts() - before
    proxy.faults = Faults()
    log = proxy.log
    assert len(log) > 20 * 256
    print(spent, len(log), {fate: proxy.count(fate=fate) for fate in rates})
    assert spent.requests == len(log) - proxy.count(path_contains="/sign-in")
