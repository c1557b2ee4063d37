"""Runs the command line in this process, as the shell would."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.cli import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def headrace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """``headrace("build", ...)``: exit code, standard output and standard error."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        monkeypatch.setenv("COLUMNS", "120")
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return Done(int(left.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three JSONL files with five documents each, one of them empty."""
    for i in range(3):
        lines = [json.dumps({"text": f"file {i} line {j} " * j}) for j in range(5)]
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / f"{i}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "corpus"
