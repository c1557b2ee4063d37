"""Compiled functions come from their sources, and where none can be assembled this is said."""

import logging
import runpy
import sys
from pathlib import Path

import pytest

from headrace import native
from headrace.native import assemble, assembled


def test_files_are_of_their_sources(monkeypatch):
    script = Path(__file__).parents[1] / "scripts" / "compile_kernels.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0


def test_without_llvmlite_it_is_said_how_to_get_it(monkeypatch, caplog):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(native, "import_module", missing)
    caplog.set_level(logging.INFO)
    assert assembled(lambda: assemble("headrace.feed", "gather_kernel.ll"), "it is slow") is None
    assert "it is slow" in caplog.text
    assert "install 'headrace[native]'" in caplog.text


def test_a_file_that_llvm_refuses_is_said(monkeypatch, caplog):
    def refused(text):
        raise RuntimeError("LLVM IR parsing error")

    monkeypatch.setattr("llvmlite.binding.parse_assembly", refused)
    caplog.set_level(logging.INFO)
    assert assembled(lambda: assemble("headrace.feed", "gather_kernel.ll"), "it is slow") is None
    assert "it is slow: LLVM IR parsing error" in caplog.text
