"""The copying kernel against NumPy, its thread without an interpreter, and pages that files have
lost.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ReadError
from headrace.feed.gather_kernel import Copies, KernelThread, gather_kernel

# as in native/gather.c
LARGE_PIECE = 1 << 10
LARGE_TABLE = 1 << 21


def copies_of(
    source: np.ndarray, out: np.ndarray, pieces: list[tuple[int, int, int]], **more: object
) -> Copies:
    """Copies of pieces: where each begins in ``source``, where in ``out``, and its bytes."""
    begin, target, size = np.array(pieces, np.int64).reshape(-1, 3).T
    arrays = (
        np.ascontiguousarray(a)
        for a in (source.ctypes.data + begin, out.ctypes.data + target, size)
    )
    return Copies(*arrays, holds=(source, out), **more)


def run_script(folder: Path, text: str) -> object:
    """What a script prints as JSON, in a process of its own."""
    script = folder / "script.py"
    script.write_text(
        "import json, os\nimport numpy as np\nfrom headrace.feed.gather_kernel import Copies,"
        " KernelThread\n" + text
    )
    return json.loads(
        subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    )


@given(data=st.data(), size=st.integers(1, 300), threaded=st.booleans())
def test_pieces_come_from_and_to_any_byte(data, size, threaded):
    source = np.arange(size, dtype=np.uint8)
    pieces = data.draw(
        st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 40)), max_size=9)
    )
    pieces = [(begin, min(length, size - begin)) for begin, length in pieces]
    out = np.full(sum(length for _, length in pieces) + len(pieces) + 1, 255, np.uint8)
    expected = out.copy()
    placed = []
    at = 1
    for begin, length in pieces:
        placed.append((begin, at, length))
        expected[at : at + length] = source[begin : begin + length]
        at += length + 1
    copies = copies_of(source, out, placed)
    if threaded:
        thread = KernelThread()
        thread.submit([copies]).result()
        thread.close()
    else:
        copies()
    assert np.array_equal(out, expected)


@given(
    st.lists(
        st.tuples(*[st.integers(0, 200)] * 2, st.integers(LARGE_PIECE - 130, 5000)), min_size=1
    ),
    st.data(),
)
def test_large_tables_have_the_same_bytes(pieces, data):
    """They are stored past the caches, line by line; the first piece makes the table large."""
    source = np.arange(LARGE_TABLE + 9000).astype(np.uint8)
    out = np.zeros(LARGE_TABLE + 400_000, np.uint8)
    placed = [(0, data.draw(st.integers(0, 70)), LARGE_TABLE)]
    at = LARGE_TABLE + 70
    for begin, gap, size in pieces:
        placed.append((begin, at + gap, size))
        at += gap + size
    expected = out.copy()
    for begin, to, size in placed:
        expected[to : to + size] = source[begin : begin + size]
    copies_of(source, out, placed)()
    assert np.array_equal(out, expected)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=9),
    st.integers(0, 90),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_places_without_a_piece_are_filled(pieces, rest, blank_size, random):
    """In whatever order pieces come, empty ones included."""
    sizes = [size for _, size in pieces]
    places = [gap + sum(map(sum, pieces[:k])) for k, (gap, _) in enumerate(pieces)]
    source = np.arange(800).astype(np.uint8)
    out = np.zeros(sum(map(sum, pieces)) + rest + 2, np.uint8)
    expected = np.full(out.size, 77, np.uint8)
    expected[[0, -1]] = 0
    for place, size in zip(places, sizes, strict=True):
        expected[1 + place : 1 + place + size] = source[place : place + size]
    placed = list(zip(places, places, sizes, strict=True))
    random.shuffle(placed)
    copies_of(source, out[1:-1], placed, filled=(out[1:-1], np.full(blank_size, 77, np.uint8)))()
    assert np.array_equal(out, expected)


@given(st.lists(st.integers(0, 3), max_size=20), st.data())
def test_tables_are_copied_in_order_however_they_are_waited_for(counts, data):
    source = np.arange(1, 100, dtype=np.uint8)
    out = np.zeros(8, np.uint8)
    thread = KernelThread()
    waiting = []
    number = 0
    for count in counts:
        parts = [copies_of(source, out, [(number + k, 0, 1)]) for k in range(count)]
        number += count
        waiting.append((number, thread.submit(parts)))
        if data.draw(st.booleans()):
            last, copying = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            copying.result()
            assert last == 0 or source[last - 1] <= out[0]
    thread.close()
    assert out[0] == number


def test_what_a_check_says_is_the_error_of_the_result_and_nothing_is_copied():
    def damaged() -> None:
        raise ReadError("was changed", field="array", value="a")

    source = np.ones(4, np.uint8)
    out = np.zeros(4, np.uint8)
    thread = KernelThread()
    bad = thread.submit(
        [copies_of(source, out, [(0, 0, 1)]), copies_of(source, out, [(0, 1, 1)], check=damaged)]
    )
    thread.submit([copies_of(source, out, [(0, 2, 1)])]).result()
    with pytest.raises(ReadError, match="was changed"):
        bad.result()
    thread.close()
    assert out.tolist() == [0, 0, 1, 0]


def test_it_leaves_no_thread_no_descriptor_and_no_memory_behind(tmp_path):
    """In a process of its own: other tests' threads come and go."""
    assert run_script(
        tmp_path,
        """
import gc, weakref
def threads_and_descriptors():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
def use(close):
    source, out, thread = np.ones(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8), KernelThread()
    def submit():
        where = (np.array([a.ctypes.data]) for a in (source, out))
        return thread.submit([Copies(*where, np.array([1 << 20]), holds=(source, out))])
    for _ in range(20):
        submit()
    if close:
        thread.close()
        submit().result()  # it begins anew
        thread.close()
        thread.close()
        assert out.all()
    return weakref.ref(out)
use(True)
before, results = threads_and_descriptors(), []
for close in (True, False):
    out = use(close)
    gc.collect()
    results.append(out() is None and threads_and_descriptors() == before)
print(json.dumps(results))
""",
    ) == [True, True]


def test_what_was_copied_and_waited_for_is_nobodys():
    """Buffers are used again when nothing refers to them."""
    source = np.ones(8, np.uint8)
    thread = KernelThread()
    buffers = [np.zeros(8, np.uint8) for _ in range(3)]
    counts = [sys.getrefcount(out) for out in buffers]
    for number in range(3):
        thread.submit([copies_of(source, buffers[number], [(0, 0, 8)])]).result()
    assert [sys.getrefcount(out) for out in buffers] == counts
    thread.close()


def test_a_process_that_ends_in_the_middle_of_an_iteration_ends(tmp_path):
    assert (
        run_script(
            tmp_path,
            """
import headrace.testing
from headrace import DataLoader, TokenSeqDataset
dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=200), seq_len=8).repeat()
batches = DataLoader(dataset, batch_size=8).iter_from_step(0)
for _ in range(20):
    next(batches)
print(json.dumps("read"))
""",
        )
        == "read"
    )


def test_the_thread_is_not_of_a_fork_and_takes_no_signal(tmp_path):
    """A fork that ends must not end the thread of the process that it comes from; signals are for
    Python's threads.
    """
    assert run_script(
        tmp_path,
        """
import signal
source, out, thread = np.arange(9, dtype=np.uint8), np.zeros(9, np.uint8), KernelThread()
def copy(k):
    where = (np.array([a.ctypes.data + k]) for a in (source, out))
    thread.submit([Copies(*where, np.array([1]))]).result()
copy(1)
if (child := os.fork()) == 0:
    thread.close()
    os._exit(0)
os.waitpid(child, 0)
signals = []
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
status = [open(f"/proc/self/task/{task}/status").read() for task in os.listdir("/proc/self/task")]
blocking = [int(text.split("SigBlk:")[1].split()[0], 16) >> (signal.SIGUSR1 - 1) & 1 for text in status]
os.kill(os.getpid(), signal.SIGUSR1)
copy(2)
print(json.dumps([sum(blocking), out.tolist()[:3], signals]))
""",
    ) == [1, [0, 1, 2], [1]]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 5000, 1 << 30])
@pytest.mark.parametrize("pages", [4, LARGE_TABLE // mmap.PAGESIZE + 1])
def test_pages_that_a_file_has_lost_are_zeros_and_counted(tmp_path, threaded, kept, pages):
    path = tmp_path / "f"
    size = pages * mmap.PAGESIZE
    kept = min(kept, size)
    path.write_bytes(b"\1" * size)
    with path.open("rb") as file:
        source = np.frombuffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), np.uint8)
    out = np.zeros(size, np.uint8)
    thread = KernelThread()
    lost = gather_kernel().calls.lost_pages()
    os.truncate(path, kept)
    copies = copies_of(source, out, [(0, 0, 10), (size - 10, size - 10, 10), (10, 10, size - 20)])
    thread.submit([copies]).result() if threaded else copies()
    thread.close()
    assert out.sum() == kept
    assert gather_kernel().calls.lost_pages() - lost == pages - -(-kept // mmap.PAGESIZE)


TOUCH_LOST_PAGES = """
import faulthandler, json, mmap, os, sys
import numpy as np
from headrace.feed.gather_kernel import Copies, gather_kernel
if "before" in sys.argv:
    faulthandler.enable()
kernel = gather_kernel()
if "after" in sys.argv:
    faulthandler.enable()
with open(os.path.dirname(__file__) + "/f", "wb+") as file:
    file.write(bytes(8192))
    file.flush()
    source = np.frombuffer(mmap.mmap(file.fileno(), 8192), np.uint8)
    file.truncate(0)
out, one = np.ones(8192, np.uint8), np.ones(1, np.int64)
Copies(one * source.ctypes.data, one * out.ctypes.data, one * 8192)()
print(json.dumps([int(out.sum()), kernel.calls.lost_pages() * mmap.PAGESIZE]), flush=True)
if "elsewhere" in sys.argv:
    with open(os.path.dirname(__file__) + "/f", "wb+") as file:
        file.write(bytes(8192))
        file.flush()
        source = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
    print(source[5000])
"""


@pytest.mark.parametrize("faulthandler", ["none", "before", "after"])
def test_only_copies_survive_lost_pages(tmp_path, faulthandler):
    script = tmp_path / "script.py"
    script.write_text(TOUCH_LOST_PAGES)
    command = [sys.executable, script, faulthandler]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, [0, 8192])
    done = subprocess.run([*command, "elsewhere"], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (-signal.SIGBUS, [0, 8192])
    assert ("Bus error" in done.stderr) == (faulthandler != "none")
