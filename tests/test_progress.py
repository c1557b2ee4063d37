"""Progress: what work reports, who is told, and what the bar shows."""

import io
import sys
import threading

import pytest

from headrace.progress import bar, report, track, watched


def test_only_who_watches_is_told():
    told = []
    report("reading", 1, 2)
    with watched(lambda *state: told.append(state)):
        report("reading", 1, 2)
        thread = threading.Thread(
            target=report, args=("elsewhere", 1, 2)
        )  # of another thread nothing is shown
        thread.start()
        thread.join()
    report("reading", 2, 2)
    assert told == [("reading", 1, 2)]


def test_items_pass_unchanged_and_count_by_their_size():
    told = []
    with watched(lambda *state: told.append(state)):
        assert list(track(["ab", "c"], "reading", 3, size=len)) == ["ab", "c"]
    assert told == [("reading", 0, 3), ("reading", 2, 3), ("reading", 3, 3)]
    assert list(track(["ab", "c"], "reading", 3, size=len)) == ["ab", "c"]


def test_a_watcher_is_left_when_the_work_fails():
    told = []
    with pytest.raises(ZeroDivisionError), watched(lambda *state: told.append(state)):
        _ = 1 / 0
    report("reading", 1, 2)
    assert told == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_shows_share_rate_and_time_in_one_line(monkeypatch: pytest.MonkeyPatch, width: int):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", str(width))
    with bar() as shown:
        task = shown.add_task("building stories", total=None, rate="")
        lines = [shown.make_tasks_table(shown.tasks)]
        shown.update(task, total=100, completed=40, rate="12.34 M tokens/s  56.7 MB/s")
        lines.append(shown.make_tasks_table(shown.tasks))
        texts = ["".join(s.text for s in shown.console.render(line)).splitlines() for line in lines]
    assert [len(text) for text in texts] == [1, 1]
    assert "0:00 so far" in texts[0][0]
    assert "%" not in texts[0][0]
    assert " 40% 12.34 M tokens/s  56.7 MB/s" in texts[1][0]


def test_the_bar_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]):
    with bar() as shown:
        shown.add_task("building", total=2, rate="")
    assert capsys.readouterr() == ("", "")
