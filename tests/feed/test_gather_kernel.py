"""The copying kernel against NumPy, and what is said where it cannot be assembled."""

import logging

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed import gather_kernel
from headrace.feed.gather_kernel import copy_kernel


@given(data=st.data(), size=st.integers(1, 300))
def test_pieces_come_from_and_to_any_byte(data, size):
    source = np.arange(size, dtype=np.uint8)
    pieces = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 40)), max_size=9))
    pieces = [(begin, min(length, size - begin)) for begin, length in pieces]
    out = np.full(sum(length for _, length in pieces) + len(pieces) + 1, 255, np.uint8)
    expected, address, target, sizes, at = out.copy(), [], [], [], 1
    for begin, length in pieces:
        address.append(source.ctypes.data + begin)
        target.append(out.ctypes.data + at)
        sizes.append(length)
        expected[at : at + length] = source[begin : begin + length]
        at += length + 1
    copy_pieces = copy_kernel()
    assert copy_pieces is not None
    copy_pieces(*(np.array(a, np.int64) for a in (address, target, sizes)))
    assert np.array_equal(out, expected)


def test_without_llvmlite_it_is_said_how_to_get_it(monkeypatch, caplog):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(gather_kernel, "import_module", missing)
    caplog.set_level(logging.INFO)
    assert copy_kernel.__wrapped__() is None
    assert "install 'headrace[numba]'" in caplog.text
