"""What is compiled packs windows as what is not."""

import importlib.util
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pack import stream
from headrace.pack.items import Packed
from headrace.pack.spec import PackSpec

numba = pytest.importorskip("numba")


@pytest.fixture(scope="module")
def interpreted():
    """The module as Python runs it: compiling it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        spec = importlib.util.find_spec("headrace.pack.window_kernel")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module.pack_windows


def packs(spec, chunks, arrays=None):
    packed = Packed.join(list(stream.PackStream(spec, arrays).plan(chunks)))
    return [values.tolist() for values in (*packed.items, packed.item_counts)]


def check_equal(kernel, spec, chunks, arrays=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_compiled", lambda sizes: None)
        wanted = packs(spec, chunks, arrays)
        patch.setattr(stream, "_compiled", lambda sizes: kernel)
        assert packs(spec, chunks, arrays) == wanted


@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=120),
    capacity=st.sampled_from([1, 7, 63, 64, 65, 100, 128, 300]),
    window=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 120), max_size=3),
    parts=st.lists(st.integers(0, 120), max_size=2),
    long=st.sampled_from(["keep", "split", "truncate"]),
)
def test_packs_are_those_of_python(interpreted, lengths, capacity, window, cuts, parts, long):
    chunks = np.split(np.array(lengths), sorted(cuts))
    ends = sorted({*(n for n in parts if n < len(lengths)), 0, len(lengths)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CANDIDATES", 9)  # what more would be tried is taken as it comes
        spec = PackSpec(capacity, "windowed", long, block_tokens=window * capacity)
        check_equal(interpreted, spec, chunks, np.diff(ends))


def test_packs_of_documents_as_long_as_in_use(interpreted):
    drawn = np.exp(np.random.default_rng(0).standard_normal(600)) * 600
    lengths = np.clip(np.rint(drawn), 1, 8192).astype(np.int64)
    check_equal(interpreted, PackSpec(2048, "windowed", "split", block_tokens=16_384), [lengths])


def test_few_items_and_huge_ones_are_left_to_python(monkeypatch):
    monkeypatch.setattr(stream, "_kernel", lambda: "compiled")
    assert stream._compiled(np.ones(1 << 10, np.int64)) is None
    monkeypatch.setattr(stream, "_MANY", 2)
    assert stream._compiled(np.ones(1 << 10, np.int64)) == "compiled"
    assert stream._compiled(np.array([1, 1 << 31])) is None


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module named 'numba'"), r"headrace\[numba\]"),
        (ImportError("Numba needs NumPy 2.4 or less"), "needs NumPy 2.4 or less"),
        (RuntimeError("cannot cache function: no locator available"), "no locator"),
        (OSError("Could not find/load shared object file"), "shared object file"),
        (AttributeError("module 'numpy' has no attribute 'MachAr'"), "MachAr"),
    ],
)
def test_without_numba_windows_are_packed_by_python(monkeypatch, caplog, error, says):
    def broken(name):
        raise error

    for load in (
        broken,
        lambda _: SimpleNamespace(pack_windows=lambda *_: broken("")),
    ):  # it fails when it compiles, too
        monkeypatch.setattr(stream, "import_module", load)
        caplog.clear()
        with caplog.at_level("INFO"):
            assert stream._kernel.__wrapped__() is None
        assert re.search(says, caplog.text)


@pytest.mark.slow
def test_compiled_packs_are_those_of_python():
    from headrace.pack.window_kernel import pack_windows

    drawn = np.exp(np.random.default_rng(1).standard_normal(50_000)) * 600
    lengths = np.clip(np.rint(drawn), 1, 9000).astype(np.int64)
    for capacity in (1000, 2048, 4096):
        check_equal(pack_windows, PackSpec(capacity, "windowed", "split"), np.split(lengths, [7, 30_000]))
