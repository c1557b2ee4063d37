"""Compiled functions come from their sources, and where none can be assembled this is said."""

import logging
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace import native
from headrace.native import assemble, assembled
from headrace.testing import write_cache


def test_files_are_of_their_sources(monkeypatch):
    script = Path(__file__).parents[1] / "scripts" / "compile_kernels.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0


def test_loaders_of_several_threads_may_be_the_first_to_load_them(tmp_path):
    write_cache(tmp_path / "cache", [[np.arange(200_000, dtype=np.uint16) % 1000]], vocab_size=1000)
    script = f"""
import threading
from headrace import DataLoader, TokenCache, TokenSeqDataset
from headrace.feed import gather_kernel as g

barrier, sums, kernels = threading.Barrier(4), [], set()

def load():
    dataset = TokenSeqDataset(TokenCache.open({str(tmp_path / "cache")!r}), 128).braid_shuffle(seed=0, batch_size=32)
    barrier.wait()
    kernels.add(g.gather_kernel())
    sums.append(sum(int(batch.token_ids.sum()) for batch in DataLoader(dataset, batch_size=32)))

threads = [threading.Thread(target=load) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(sums) == 4 and len(set(sums)) == 1 and len(kernels) == 1, (sums, kernels)
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_without_llvmlite_it_is_said_how_to_get_it(monkeypatch, caplog):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(native, "import_module", missing)
    monkeypatch.setattr(native, "_ENGINES", {})
    caplog.set_level(logging.INFO)
    assert assembled(lambda: assemble("headrace.feed", "gather_kernel.ll"), "it is slow") is None
    assert "it is slow" in caplog.text
    assert "install 'headrace[native]'" in caplog.text


def test_a_file_that_llvm_refuses_is_said(monkeypatch, caplog):
    def refused(text):
        raise RuntimeError("LLVM IR parsing error")

    monkeypatch.setattr("llvmlite.binding.parse_assembly", refused)
    monkeypatch.setattr(native, "_ENGINES", {})
    caplog.set_level(logging.INFO)
    assert assembled(lambda: assemble("headrace.feed", "gather_kernel.ll"), "it is slow") is None
    assert "it is slow: LLVM IR parsing error" in caplog.text
