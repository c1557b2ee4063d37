"""Heads of ``.npy`` files are Python text, which CPython 3.11 parses safely in one thread only."""

import gc
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import numpy as np
import pytest

from headrace.data.document_numbers import Where
from headrace.data.filter_files import read_npy
from headrace.store.npy import read_npy_head
from headrace_posttrain import ScoredGroup

ROWS = np.arange(7)
GROUP = ScoredGroup([[1, 2, 3], [1, 2]], np.array([0.0, 1.0]), 1).to_bytes()


def head() -> bytes:
    stream = io.BytesIO()
    np.save(stream, ROWS)
    return stream.getvalue()


RAW = head()
READS = {
    "head": lambda: read_npy_head(io.BytesIO(RAW)) == ((7,), ROWS.dtype),
    "array": lambda: (read_npy(RAW, "documents", "list.npy", "") == ROWS).all(),
    "group": lambda: ScoredGroup.from_bytes(GROUP, "group").prompt_len == 1,
    "condition": lambda: Where("1 < quality <= 3 and not dup").names == {"quality", "dup"},
}


@contextmanager
def beside(other: Callable[[], bool]) -> Iterator[list]:
    """Another thread reads whenever this one collects garbage, as it does within the parser."""
    reads = []
    this = threading.get_ident()
    before = gc.get_threshold()

    def let_other_read(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and threading.get_ident() == this and len(reads) < 40:
            reads.append(pool.submit(other))
            wait(reads, timeout=0.01)  # it may have to wait for us

    with ThreadPoolExecutor(1) as pool:
        gc.callbacks.append(let_other_read)
        gc.set_threshold(2)
        try:
            yield reads
        finally:
            gc.callbacks.remove(let_other_read)
            gc.set_threshold(*before)


@pytest.mark.parametrize("one", READS)
@pytest.mark.parametrize("other", READS)
def test_two_threads_read_at_once(one, other):
    with beside(READS[other]) as reads:
        assert READS[one]()
    assert reads
    assert all(read.result() for read in reads)
