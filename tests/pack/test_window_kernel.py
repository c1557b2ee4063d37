"""What is compiled packs windows as what is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pack import stream
from headrace.pack.items import Packed
from headrace.pack.spec import PackSpec
from headrace.pack.window_kernel import WindowKernel

KERNEL = WindowKernel()


def packs(spec, chunks, arrays=None):
    packed = Packed.join(list(stream.PackStream(spec, arrays).plan(chunks)))
    return [values.tolist() for values in (*packed.items, packed.item_counts)]


def check_equal(spec, chunks, arrays=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_compiled", lambda sizes: None)
        wanted = packs(spec, chunks, arrays)
        patch.setattr(stream, "_compiled", lambda sizes: KERNEL)
        assert packs(spec, chunks, arrays) == wanted


@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=120),
    capacity=st.sampled_from([1, 7, 63, 64, 65, 100, 128, 300]),
    window=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 120), max_size=3),
    parts=st.lists(st.integers(0, 120), max_size=2),
    long=st.sampled_from(["keep", "split", "truncate"]),
)
def test_packs_are_those_of_python(lengths, capacity, window, cuts, parts, long):
    chunks = np.split(np.array(lengths), sorted(cuts))
    ends = sorted({*(n for n in parts if n < len(lengths)), 0, len(lengths)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CANDIDATES", 9)  # what more would be tried is taken as it comes
        spec = PackSpec(capacity, "windowed", long, block_tokens=window * capacity)
        check_equal(spec, chunks, np.diff(ends))


@pytest.mark.parametrize("capacity", [1000, 2048, 4096])
def test_packs_of_documents_as_long_as_in_use(capacity):
    drawn = np.exp(np.random.default_rng(1).standard_normal(50_000)) * 600
    lengths = np.clip(np.rint(drawn), 1, 9000).astype(np.int64)
    check_equal(PackSpec(capacity, "windowed", "split"), np.split(lengths, [7, 30_000]))


@pytest.mark.parametrize(
    "lengths", [np.ones(40_000, np.int64), np.full(3, 2**31 - 1), np.arange(4097)[::-1]]
)
def test_packs_of_documents_of_one_token_and_of_huge_ones(lengths):
    check_equal(PackSpec(4096, "windowed", "keep"), [lengths])


def test_packs_of_many_items():
    drawn = np.random.default_rng(2).integers(0, 6, 60_000)
    check_equal(PackSpec(1 << 14, "windowed", "split"), [drawn])


def test_few_items_and_huge_ones_are_left_to_python(monkeypatch):
    assert stream._compiled(np.ones(1 << 10, np.int64)) is None
    assert isinstance(stream._compiled(np.ones(1 << 14, np.int64)), WindowKernel)
    monkeypatch.setattr(stream, "_MANY", 2)
    assert stream._compiled(np.array([1, 1 << 31])) is None
