"""The bar: silent without a terminal, right where there is one."""

import io
import sys

import pytest

from headrace.ingest.engine import Progress
from headrace.ingest.plan import PartTask
from headrace.ingest.progress import Rates, show_progress
from headrace.ingest.source import SourceFile

TASKS = [PartTask("00000", (SourceFile("a.txt", "text", size=100),))]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("tasks", "enabled"), [(TASKS, True), (TASKS, False), ([], True)])
def test_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str], tasks: list[PartTask], enabled: bool):
    with show_progress(tasks, enabled) as report:
        assert report is None
    assert capsys.readouterr() == ("", "")


def test_silent_on_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with show_progress(TASKS, enabled=False) as report:
        assert report is None


def test_a_terminal_sees_share_and_rates(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with show_progress(TASKS) as report:
        assert report is not None
        report(Progress(documents=1, tokens=10, text_bytes=30, stored_bytes=50))
    assert "50%" in terminal.getvalue()
    assert "tokens/s" in terminal.getvalue()


def test_rates_are_means_since_the_start():
    rates = Rates(clock=iter([10.0, 11.0, 14.0]).__next__)
    assert rates.after(Progress(5, 1_000_000, 2_000_000, 0)) == "5 docs/s  1.00 M tokens/s  2.0 MB/s"
    assert rates.after(Progress(5, 1_000_000, 2_000_000, 0)) == "2 docs/s  0.50 M tokens/s  1.0 MB/s"
