"""What hosts say of themselves; tests/feed/test_host_gate.py has boards that talk over a real
service.
"""

import subprocess
import sys
import threading

from headrace.feed import host_board
from headrace.feed.host_board import GateEntry, HostBoard, describe_error, user_line


class Store:
    """A key-value store that only this process writes."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite
        self.values[key] = value

    def key_value_dir_get(self, folder):
        return [(key, value) for key, value in self.values.items() if key.startswith(folder)]


def test_entries_are_read_as_they_were_written():
    store = Store()
    board = HostBoard(store, 3)
    try:
        entry = GateEntry(crossing=7, waits=True, doing="waits for other hosts at step 6")
        name = board.add_gate((2, 3, 4), lambda: entry)
        board.renew()
        assert name == "2-4/0"
        assert board.read()[3].gates == {name: entry}
        entry.error = 'ReadError: "quoted"\n'
        entry.culprit = 3
        board.renew()
        assert board.read()[3].gates == {name: entry}
    finally:
        board.close()


def test_names_agree_on_hosts_that_count_alike_and_old_iterations_are_dropped():
    board = HostBoard(Store(), 0)
    try:
        left = GateEntry(left=True)
        names = [board.add_gate((0, 2), lambda: left) for _ in range(100)]
        assert names == [f"0,2/{number}" for number in range(100)]
        assert board.add_gate((0, 1), GateEntry) == "0-1/0"
        board.renew()
        assert len(board.read()[0].gates) <= 16
        assert "0-1/0" in board.read()[0].gates
        running = [board.add_gate((0, 3), GateEntry) for _ in range(20)]
        board.renew()
        assert set(running) <= board.read()[0].gates.keys()  # those that are not over stay
    finally:
        board.close()


def test_an_entry_that_stands_still_grows_old():
    store = Store()
    board = HostBoard(store, 1)
    board.close()
    assert board.read()[1].silent_s == 0  # nobody knows how old it was when it was first read
    threading.Event().wait(0.02)
    assert board.read()[1].silent_s >= 0.02
    board.renew()
    assert board.read()[1].silent_s == 0


def test_while_the_store_does_not_answer_the_process_that_has_it_is_silent_and_nobody_else(
    monkeypatch,
):
    monkeypatch.setattr(host_board, "_ANSWER_S", 0.05)
    store = Store()
    thawed = threading.Event()
    board = HostBoard(store, 1)
    board.close()
    board.renew()
    assert board.read().keys() == {1}
    answer = store.key_value_dir_get
    monkeypatch.setattr(store, "key_value_dir_get", lambda folder: thawed.wait() and answer(folder))
    monkeypatch.setattr(store, "key_value_set", lambda *args, **kwargs: thawed.wait())
    try:
        silent_s = [board.read()[0].silent_s for _ in range(3)]
        assert 0.05 <= silent_s[0] < silent_s[1] < silent_s[2]
        board.renew()  # comes back
        entries = board.read()
        assert entries[0].pid == 0
        assert entries[1].silent_s < entries[0].silent_s
    finally:
        thawed.set()
    monkeypatch.undo()
    board.renew()
    assert board.read().keys() == {1}


def test_the_line_of_the_users_own_code():
    ready = threading.Event()
    go = threading.Event()

    def save_checkpoint():
        ready.set()
        go.wait()  # a library's frame is the innermost

    thread = threading.Thread(target=save_checkpoint)
    thread.start()
    ready.wait()
    line = user_line(thread.ident)
    go.set()
    thread.join()
    assert line.startswith("test_host_board.py:")
    assert line.endswith(" in save_checkpoint")
    assert user_line(thread.ident) is None


COLLECTING = """
import gc, threading
from headrace.feed.host_board import user_line

done = threading.Event()
for objects in range(1, 40):  # until the next collection
    gc.disable()
    for _ in range(5):  # threads that have no frame object yet
        threading.Thread(target=done.wait, daemon=True).start()
    for _ in range(20):
        ring = [threading.local()]
        ring.append(ring)
    del ring
    gc.set_threshold(gc.get_count()[0] + objects)
    gc.enable()
    user_line(threading.get_ident())
done.set()
print(gc.isenabled())
"""


def test_a_garbage_collection_while_frames_are_read():
    """In CPython 3.11 it can stop a process for ever: this is another one, which can be ended."""
    process = subprocess.run(
        [sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=120, check=True
    )
    assert process.stdout == "True\n"


def test_errors_on_one_short_line_without_credentials():
    assert describe_error(ValueError("a\n  b")) == "ValueError: a b"
    assert "secret" not in describe_error(OSError("s3://id:secret@bucket/a"))
    assert len(describe_error(ValueError("x" * 10_000))) == 500
