"""Leases: one builder at a time, whatever happens to the others and to their clocks."""

import concurrent.futures
import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheError
from headrace.store import files, remote
from headrace.store import lease as lease_module
from headrace.store.lease import LEASE_NAME, LeaseRecord, lease

SHORT = 0.6
CHILD = r"""
import sys, time
from headrace.errors import CacheError
from headrace.store.lease import lease
try:
    with lease(sys.argv[1], expiry_s=float(sys.argv[2])) as held:
        print("held", flush=True)
        until_lost = sys.stdin.readline() == "until it is lost\n"
        while until_lost:
            held.check()
            time.sleep(0.01)
    print("done", flush=True)
except CacheError as error:
    print(error, flush=True)
"""


@pytest.fixture
def child():
    """Starts processes that hold a lease until a line is written to them, or until it is lost if
    the line says so.
    """
    started = []

    def start(root, expiry_s=60.0):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root), str(expiry_s)],
            stdin=-1,
            stdout=-1,
            text=True,
            bufsize=1,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


class Clock:
    """Stands in for the module ``time``: stands still, and goes on when somebody sleeps."""

    def __init__(self):
        self.now = 1e9
        self.slept = 0.0

    def time(self):
        return self.now

    monotonic = time

    def sleep(self, seconds):
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(lease_module, "time", clock)
    return clock


def wait_until(condition):
    while not condition():
        time.sleep(0.002)


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
        with pytest.raises(
            CacheError, match=rf"is being written by process {os.getpid()} on .* renewed 0 s ago"
        ):
            lease(str(tmp_path / "new")).__enter__()
        held.check()
    assert list((tmp_path / "new").iterdir()) == []
    with lease(str(tmp_path / "new")):
        pass


def test_a_lease_that_was_taken_over_is_told_when_it_ends_and_when_it_is_asked_for(tmp_path):
    taking = lease(str(tmp_path), field="rollouts", cure="Stop.")
    held = taking.__enter__()
    held.confirm()
    put(tmp_path, record())  # between two heartbeats
    with pytest.raises(
        CacheError, match=r"rollouts = .*taken over .*\(process 7 on elsewhere\)\. Stop\."
    ):
        taking.__exit__(None, None, None)
    assert owner(tmp_path) == "somebody"
    with pytest.raises(CacheError, match="taken over"):
        held.confirm()


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
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_module, "time", clock)
        with lease(str(tmp_path)):
            assert clock.slept == 0


def test_one_killed_elsewhere_expires(tmp_path, clock):
    put(tmp_path, record(renewed=clock.now, expiry_s=60.0))
    with pytest.raises(CacheError, match="is being written by process 7 on elsewhere"):
        lease(str(tmp_path)).__enter__()
    clock.now += 61
    with lease(str(tmp_path)):
        assert owner(tmp_path) != "somebody"
    assert 30 <= clock.slept < 60  # it was watched


@pytest.mark.parametrize("wrong", [-1e6, 1e6, 0.0])
def test_an_owner_whose_clock_stands_still_keeps_its_lease(tmp_path, monkeypatch, wrong):
    """In the past, in the future, or right once: it is its heartbeats that count."""
    taker = Clock()
    stands = time.time() + wrong
    main = threading.current_thread()
    taken = []
    now = lambda: time.time() + 100 if threading.current_thread() is main and taken else stands  # noqa: E731
    monkeypatch.setattr(lease_module, "_now", now)
    with lease(str(tmp_path), expiry_s=SHORT) as held:
        taken.append(True)
        beats = held._record.beats
        taker.sleep = lambda seconds: wait_until(lambda: held._record.beats > beats + 1)
        monkeypatch.setattr(lease_module, "time", taker)
        with pytest.raises(CacheError, match="is being renewed"):
            lease(str(tmp_path)).__enter__()
        held.check()


def test_a_lease_from_the_future_expires_too(tmp_path, clock):
    put(tmp_path, record(renewed=clock.now + 1e6))
    with lease(str(tmp_path)):
        assert owner(tmp_path) != "somebody"
    assert SHORT / 2 <= clock.slept < SHORT


def test_one_that_was_suspended_loses_it_and_is_told(tmp_path, child):
    process, _ = child(tmp_path, SHORT)
    process.send_signal(signal.SIGSTOP)
    time.sleep(SHORT * 1.2)
    with lease(str(tmp_path)) as held:
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("until it is lost\n")
        assert (
            f"was taken over by another builder while this one stood still (process {os.getpid()}"
            in said
        )
        held.check()
        assert owner(tmp_path) is not None  # it deleted nothing


def test_one_whose_file_is_deleted_is_told(tmp_path):
    taking = lease(str(tmp_path), expiry_s=0.2)
    held = taking.__enter__()
    (tmp_path / LEASE_NAME).unlink()
    wait_until(lambda: held._lost)
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
        answered = threading.Barrier(
            8, timeout=100
        )  # the one that has it keeps it until the others were refused

        def take(_, answered=answered):
            try:
                with lease(str(tmp_path)):
                    answered.wait()
            except CacheError:
                answered.wait()
                return False
            return True

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(take, range(8)))
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
def test_a_bucket_that_does_not_exist(request, store):
    request.getfixturevalue(f"{store}_bucket")
    scheme = {"gcs": "gs"}.get(store, store)
    with pytest.raises(CacheError, match="cannot be written"):
        lease(f"{scheme}://there-is-none/cache").__enter__()


@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_on_object_stores(request, store, tmp_path, monkeypatch):
    root = files.join(request.getfixturevalue(f"{store}_bucket"), tmp_path.name)
    put(root, record(renewed=0.0))
    with monkeypatch.context() as patch:
        now = time.time()
        patch.setattr(lease_module, "_now", lambda: now)
        with lease(root, expiry_s=SHORT) as held:
            with pytest.raises(CacheError, match="is being written by"):
                lease(root).__enter__()
            wait_until(
                lambda: (
                    json.loads(files.read_bytes(files.join(root, LEASE_NAME)) or b"")["beats"] > 0
                )
            )
            held.check()
    assert owner(root) is None
    taking = lease(root, expiry_s=SHORT)
    held = taking.__enter__()
    put(root, record())
    wait_until(lambda: held._lost)
    with pytest.raises(CacheError, match="taken over"):
        taking.__exit__(None, None, None)
    assert owner(root) == "somebody"
    remote.delete_keys(files.join(root, LEASE_NAME))
    slot = lease_module._RemoteSlot
    now = time.time()
    settling = []
    settled = threading.Event()

    def settle(seconds):
        """Until each has written or was refused, which ``settle_s`` is meant to outlast."""
        settling.append(seconds)
        settled.wait()

    with monkeypatch.context() as patch, concurrent.futures.ThreadPoolExecutor(4) as pool:
        patch.setattr(lease_module, "_now", lambda: now)
        patch.setattr(lease_module, "time", SimpleNamespace(time=time.time, sleep=settle))
        takers = [
            pool.submit(
                lease_module._take,
                root,
                slot(root),
                record(owner=f"taker {k}", expiry_s=60, renewed=now),
            )
            for k in range(4)
        ]
        wait_until(lambda: sum(taker.done() for taker in takers) + len(settling) == 4)
        settled.set()
    winners = [k for k, one in enumerate(takers) if one.exception() is None]
    assert len(winners) == 1
    assert owner(root) == f"taker {winners[0]}"
    assert all(
        "is being written by" in str(one.exception())
        for k, one in enumerate(takers)
        if k not in winners
    )


@pytest.mark.parametrize("renewed", [-1.0, -100.0])
def test_another_boot_of_this_host_name_is_watched(tmp_path, clock, renewed):
    """This container before it was started anew, or another one in which the owner lives."""
    here = socket.gethostname()
    put(
        tmp_path,
        record(host=here, boot="another:pid:[1]", renewed=clock.now + renewed, expiry_s=60.0),
    )
    with lease(str(tmp_path)):
        assert owner(tmp_path) != "somebody"
    assert 30 <= clock.slept < 32


def test_the_seconds_of_a_wait_are_shown_on_a_terminal(tmp_path, clock):
    put(tmp_path, record(renewed=0.0, expiry_s=20.0))
    leader, follower = pty.openpty()
    with (
        os.fdopen(follower, "w") as terminal,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stderr", terminal)
        with lease(str(tmp_path)):
            pass
    shown = ""
    while not shown.endswith("\r\x1b[K"):  # a terminal may give what was written in pieces
        shown += os.read(leader, 1 << 16).decode()
    os.close(leader)
    said = "waiting for a heartbeat of process 7 on elsewhere, which may have been killed: "
    assert [f"{said}{left} s left" in shown for left in (10, 5, 1)] == [True] * 3


def test_a_store_that_gives_no_answer_is_named(remote, monkeypatch):
    monkeypatch.setattr(lease_module, "_ANSWER_S", 0.3)
    remote.proxy.next("hang", times=9)
    with pytest.raises(CacheError, match=r"cannot be written \(no answer within 0 s") as caught:
        lease(remote.root).__enter__()
    assert caught.value.value == f"{remote.root}/{LEASE_NAME}"
    assert "does the bucket exist" in str(caught.value)


CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--uts"]


@pytest.mark.skipif(
    subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine lets no user make containers",
)
@pytest.mark.parametrize("tries", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_the_live_writer_of_another_container_keeps_its_lease(tmp_path, tries):
    """Both have one host name, and process numbers of their own; its process here does not run."""
    for number in range(tries):
        root = str(tmp_path / str(number))
        inside = [*CONTAINER, sys.executable, "-c", CHILD, root, "2.0"]
        with subprocess.Popen(inside, stdin=-1, stdout=-1, text=True, bufsize=1) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(CacheError, match="its lease is being renewed"):
                lease(root, expiry_s=2.0).__enter__()
            said, _ = process.communicate("\n")
            assert said == "done\n"


NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3))


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in fields(LeaseRecord)]), NUMBERS, max_size=3
    ),
    st.sampled_from([None, b"[" * 10_000, b'{"a":' * 10_000, b"\xff", b"[]", b"3"]),
)
def test_what_is_no_lease_is_replaced_and_what_is_one_is_refused(tmp_path_factory, changes, raw):
    root = tmp_path_factory.mktemp("lease")
    here = {**asdict(record(renewed=time.time() + 3.0)), **changes}
    (root / LEASE_NAME).write_bytes(json.dumps(here).encode() if raw is None else raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_module, "time", Clock())
        with contextlib.suppress(CacheError), lease(str(root)):
            pass
