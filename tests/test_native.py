"""The compiled part: its checksums, and what is said where it is missing, stale or for another
machine.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import native
from headrace.native import NativeLibrary, NativeLibraryError, native_library, sources_digest
from headrace.testing import write_cache

BUILD = native.FOLDER.parents[2] / "build_native.py"
HOW_TO_BUILD = (
    f"{sys.executable} {BUILD}"
    if BUILD.exists()  # headrace is installed from a clone
    else f"{sys.executable} -m pip install --force-reinstall --no-deps headrace"
)


@pytest.mark.parametrize("name", ["crc32c", "crc32c_by_table"])
@given(
    before=st.integers(0, 2**32 - 1),
    begin=st.integers(0, 40),
    size=st.integers(0, 200_000) | st.integers(0, 4000),
)
def test_checksums_are_those_of_google(name, before, begin, size):
    values = np.random.default_rng(size).integers(0, 256, begin + size, np.uint8)
    crc32c = getattr(native_library().calls, name)
    expected = google_crc32c.extend(before, values[begin:].tobytes())
    assert crc32c(before, values.ctypes.data + begin, size) == expected


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux lists features there")
def test_the_instructions_of_this_processor_are_used():
    """Whatever compiler the library comes from."""
    text = Path("/proc/cpuinfo").read_text()
    flags = set(re.findall(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)[0].split())
    crc = {"sse4_2", "pclmulqdq"} <= flags or "crc32" in flags
    assert native_library().calls.features() == crc + 2 * ("avx2" in flags)


def test_a_missing_library_says_what_builds_it(tmp_path):
    with pytest.raises(NativeLibraryError, match="is missing") as raised:
        NativeLibrary(tmp_path / "_native.so")
    assert HOW_TO_BUILD in str(raised.value)


def test_a_library_of_other_sources_says_what_builds_it(tmp_path, monkeypatch):
    """As where a C file was changed and not compiled."""
    shutil.copytree(native.FOLDER, tmp_path / "native", ignore=shutil.ignore_patterns("*.so"))
    with (tmp_path / "native" / "braid.c").open("a") as file:
        file.write("\n")
    other = sources_digest(tmp_path / "native")
    assert other != sources_digest(native.FOLDER)
    monkeypatch.setattr(native, "sources_digest", lambda folder: other)
    with pytest.raises(NativeLibraryError, match="other C files") as raised:
        NativeLibrary()
    assert HOW_TO_BUILD in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + bytes(100)])
def test_a_damaged_library_says_what_builds_it(tmp_path, content):
    path = tmp_path / "_native.so"
    path.write_bytes(content)
    with pytest.raises(NativeLibraryError, match="cannot be loaded"):
        NativeLibrary(path)


@pytest.mark.parametrize(
    ("where", "value"),
    [("platform.machine", lambda: "s390x"), ("sys.byteorder", "big"), ("sys.platform", "win32")],
)
def test_other_machines_are_told_what_is_supported(monkeypatch, where, value):
    monkeypatch.setattr(f"headrace.native.{where}", value)
    with pytest.raises(NativeLibraryError, match=r"does not run on .* x86_64 and aarch64"):
        NativeLibrary()


def test_loaders_of_several_threads_may_be_the_first_to_load_them(tmp_path):
    write_cache(tmp_path / "cache", [[np.arange(200_000, dtype=np.uint16) % 1000]], vocab_size=1000)
    script = f"""
import threading
from headrace import DataLoader, open_cache, TokenSeqDataset
from headrace.store import TokenCache
from headrace.feed import gather_kernel as g

barrier, sums = threading.Barrier(4), []

def load():
    dataset = TokenSeqDataset(open_cache({str(tmp_path / "cache")!r}), 128).braid_shuffle(seed=0, batch_size=32)
    barrier.wait()
    g.gather_kernel()
    sums.append(sum(int(batch.token_ids.sum()) for batch in DataLoader(dataset, batch_size=32)))

threads = [threading.Thread(target=load) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(sums) == 4 and len(set(sums)) == 1, sums
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
