"""Settings of all tests: hypothesis budgets, the level of logs, and no test may leave a thread
behind.

``HEADRACE_HYPOTHESIS`` chooses the budget: ``dev`` (default), the same examples every time;
``fuzz``, many, drawn anew each time (``HEADRACE_FUZZ_EXAMPLES`` says how many).
"""

import gc
import importlib.util
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from headrace.store import retry

_UNTIMED = [HealthCheck.too_slow]
settings.register_profile(
    "dev",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=_UNTIMED,
)
settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "2000")),
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=_UNTIMED,
)
settings.load_profile(os.environ.get("HEADRACE_HYPOTHESIS", "dev"))

os.environ["HF_HUB_OFFLINE"] = "1"  # a name of a model that a test misspells asks nobody

# as headrace sets it when it imports Ray; some tests import it before, and it looks only then
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ["RAY_AUTH_MODE"] = (
    "disabled"  # of all processes of all clusters: one that asks for a token loses the others
)

THREAD_GRACE_S = 60.0  # only one that does not end at all takes so long, on a busy machine too


def pytest_collection_finish() -> None:
    """What was imported stays: the collections that tests ask for, and Python's own, need not look
    at it again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fails a test that leaves a non-daemon thread running: such a thread would keep a user's
    process from ending.
    """
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + THREAD_GRACE_S
    while left := [t for t in threading.enumerate() if t not in before and not t.daemon]:
        if time.monotonic() > deadline:
            pytest.fail(f"threads left running: {sorted(t.name for t in left)}")
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def usual_log_level() -> None:
    """Libraries set the root logger's level while a test runs; the next test has the usual one all
    the same.
    """
    logging.root.setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def usual_retry_policy() -> Iterator[None]:
    """A command that a test runs in this process may set the policy of all reads; the next test has
    the usual one.
    """
    before = retry.policy()
    # Tests count requests, and a busy machine would hedge some.
    retry.use_policy(replace(before, hedge_p95=None))
    yield
    retry.use_policy(before)


@pytest.fixture(scope="session")
def losses() -> ModuleType:
    """What tests of losses share: tests/losses.py."""
    return _shared("losses")


@pytest.fixture(scope="session")
def crash_states() -> ModuleType:
    """What a file system may leave of a program's writes: tests/crash_states.py."""
    return _shared("crash_states")


@pytest.fixture(scope="session")
def native_shards() -> ModuleType:
    """Megatron-LM's and nmoe's files: tests/native_shards.py."""
    return _shared("native_shards")


def _shared(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tree() -> Callable[[str | Path], dict[str, bytes]]:
    """All files of a folder: relative path to content."""

    def read(root: str | Path) -> dict[str, bytes]:
        return {
            os.path.relpath(os.path.join(parent, name), root): (Path(parent) / name).read_bytes()
            for parent, _, names in os.walk(root)
            for name in names
        }

    return read
