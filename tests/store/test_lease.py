"""Leases: one builder at a time, whatever happens to the others and to their clocks."""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from headrace.errors import CacheError
from headrace.store import files
from headrace.store import lease as lease_module
from headrace.store.lease import LEASE_NAME, LeaseRecord, lease

SHORT = 0.6
CHILD = """
import sys
from headrace.errors import CacheError
from headrace.store.lease import lease
try:
    with lease(sys.argv[1], expiry_s=float(sys.argv[2])):
        print("held", flush=True)
        sys.stdin.readline()
    print("done", flush=True)
except CacheError as error:
    print(error, flush=True)
"""


@pytest.fixture
def child():
    """Starts processes that hold a lease until a line is written to them."""
    started = []

    def start(root, expiry_s=60.0):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root), str(expiry_s)], stdin=-1, stdout=-1, text=True, bufsize=1
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def record(**changes):
    now = time.time()
    return replace(LeaseRecord("somebody", "elsewhere", 7, "", now, now, 0, SHORT), **changes)


def put(root, record):
    files.write_atomic(files.join(str(root), LEASE_NAME), record.to_bytes())


def owner(root):
    raw = files.read_bytes(files.join(str(root), LEASE_NAME))
    return None if raw is None else LeaseRecord.from_bytes(raw).owner


def test_the_second_is_refused_and_the_first_leaves_nothing(tmp_path):
    with lease(str(tmp_path / "new")) as held:
        with pytest.raises(CacheError, match=rf"is being written by process {os.getpid()} on .* renewed 0 s ago"):
            lease(str(tmp_path / "new")).__enter__()
        held.check()
    assert list((tmp_path / "new").iterdir()) == []
    with lease(str(tmp_path / "new")):
        pass


def test_two_processes(tmp_path, child):
    process, said = child(tmp_path)
    assert said == "held"
    with pytest.raises(CacheError, match=f"is being written by process {process.pid} on") as caught:
        lease(str(tmp_path)).__enter__()
    assert "its lease expires then" in (caught.value.cure or "")
    _, other = child(tmp_path)
    assert "is being written by" in other
    process.communicate("\n")
    with lease(str(tmp_path)):
        pass


def test_a_killed_process_of_this_machine_is_in_nobodys_way(tmp_path, child):
    process, _ = child(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert owner(tmp_path) is not None
    start = time.monotonic()
    with lease(str(tmp_path)):
        assert time.monotonic() - start < 5


def test_one_killed_elsewhere_expires(tmp_path):
    put(tmp_path, record())
    with pytest.raises(CacheError, match="is being written by process 7 on elsewhere"):
        lease(str(tmp_path)).__enter__()
    time.sleep(SHORT * 1.1)
    with lease(str(tmp_path)):
        assert owner(tmp_path) != "somebody"


@pytest.mark.parametrize("wrong", [-1e6, 1e6, 0.0])
def test_an_owner_whose_clock_stands_still_keeps_its_lease(tmp_path, monkeypatch, wrong):
    """In the past, in the future, or right once: it is its heartbeats that count."""
    here = threading.current_thread()
    stands = time.time() + wrong
    now = lambda: time.time() if threading.current_thread() is here and taken else stands  # noqa: E731
    taken = []
    monkeypatch.setattr(lease_module, "_now", now)
    with lease(str(tmp_path), expiry_s=SHORT) as held:
        taken.append(True)
        time.sleep(SHORT * 1.2)
        with pytest.raises(CacheError, match="is being renewed"):
            lease(str(tmp_path)).__enter__()
        held.check()


def test_a_lease_from_the_future_expires_too(tmp_path):
    put(tmp_path, record(renewed=time.time() + 1e6))
    with lease(str(tmp_path)):
        assert owner(tmp_path) != "somebody"


def test_one_that_was_suspended_loses_it_and_is_told(tmp_path, child):
    process, _ = child(tmp_path, SHORT)
    process.send_signal(signal.SIGSTOP)
    time.sleep(SHORT * 1.2)
    with lease(str(tmp_path)) as held:
        process.send_signal(signal.SIGCONT)
        time.sleep(SHORT)
        said, _ = process.communicate("\n")
        assert f"was taken over by another builder while this one stood still (process {os.getpid()}" in said
        held.check()
        assert owner(tmp_path) is not None  # it deleted nothing


def test_one_whose_file_is_deleted_is_told(tmp_path):
    taking = lease(str(tmp_path), expiry_s=0.2)
    held = taking.__enter__()
    (tmp_path / LEASE_NAME).unlink()
    time.sleep(0.3)
    for told in (held.check, lambda: taking.__exit__(None, None, None)):
        with pytest.raises(CacheError, match="its file was deleted"):
            told()


@pytest.mark.parametrize("stale", [None, b"no lease", "old"])
@pytest.mark.slow
def test_of_many_takers_one_gets_it(tmp_path, stale):
    for _ in range(5):
        if stale == "old":
            put(tmp_path, record(renewed=0.0, expiry_s=0.1))
        elif stale is not None:
            (tmp_path / LEASE_NAME).write_bytes(stale)
        taken = []
        done = threading.Event()

        def take(_, taken=taken, done=done):
            try:
                with lease(str(tmp_path)):
                    taken.append(True)
                    done.wait(10)
            except CacheError:
                taken.append(False)
            finally:
                if len(taken) == 8:
                    done.set()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(take, range(8)))
        assert sorted(taken) == [False] * 7 + [True]
        assert not (tmp_path / LEASE_NAME).exists()


def test_an_error_of_the_block_is_not_hidden_and_the_lease_ends(tmp_path):
    with pytest.raises(ZeroDivisionError), lease(str(tmp_path)):
        _ = 1 / 0
    assert owner(tmp_path) is None


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match="is a file"):
        lease(str(tmp_path / "file")).__enter__()
    with pytest.raises(CacheError, match=r"cannot be written \(Not a directory\)"):
        lease(str(tmp_path / "file" / "below")).__enter__()


@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_on_object_stores(request, store, tmp_path, monkeypatch):
    root = files.join(request.getfixturevalue(f"{store}_bucket"), tmp_path.name)
    put(root, record(renewed=0.0))
    with lease(root, expiry_s=SHORT) as held:
        with pytest.raises(CacheError, match="is being written by"):
            lease(root).__enter__()
        time.sleep(SHORT)
        held.check()
        assert json.loads(files.read_bytes(files.join(root, LEASE_NAME)) or b"")["beats"] > 0
    assert owner(root) is None
    taking = lease(root, expiry_s=SHORT)
    taking.__enter__()
    put(root, record())
    time.sleep(SHORT)
    with pytest.raises(CacheError, match="taken over"):
        taking.__exit__(None, None, None)
    assert owner(root) == "somebody"
    files.remove_tree(files.join(root, LEASE_NAME))
    taker = lease_module._RemoteSlot
    with monkeypatch.context() as patch, concurrent.futures.ThreadPoolExecutor(4) as pool:
        patch.setattr(taker, "settle_s", 4.0)  # a busy machine may take a while between the look and the write
        takers = [
            pool.submit(lease_module._take, root, taker(root), record(owner=f"taker {k}", expiry_s=60))
            for k in range(4)
        ]
    held = [k for k, one in enumerate(takers) if one.exception() is None]
    assert len(held) == 1
    assert owner(root) == f"taker {held[0]}"
    assert all("is being written by" in str(one.exception()) for k, one in enumerate(takers) if k not in held)
