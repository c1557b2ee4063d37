"""The log that a run leaves in its folder: what is written, when, and what happens where it cannot
be.
"""

import json
import logging
from dataclasses import replace

import pytest

from headrace.errors import ConfigError
from headrace.feed import RunLog
from headrace.metrics import LoaderStats, ReadStats, Stall
from headrace.report.run_records import read_records

NOTHING = LoaderStats(0, ReadStats(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)


class Counted:
    """Has counters, and can be told what they are."""

    def __init__(self, **first):
        self.now = replace(NOTHING, **first)

    def stats(self):
        return self.now

    def set(self, **changes):
        self.now = replace(self.now, **changes)


class Config:
    def to_yaml(self):
        return "seq_len: 8\n"


def lines(folder, host=0):
    path = folder / "stats" / f"host-{host:05d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_every_so_many_steps_and_one_at_the_end(tmp_path):
    loader = Counted()
    with RunLog(loader, tmp_path, every=10, config=Config(), host=3, hosts=4) as log:
        for step in range(100, 126):
            loader.set(batches=step - 99)
            log(step)
    start, *rest = lines(tmp_path, host=3)
    assert (start["kind"], start["host"], start["hosts"], start["config"]) == (
        "start",
        3,
        4,
        "seq_len: 8\n",
    )
    assert [(r["step"], r["stats"]["batches"]) for r in rest] == [
        (100, 1),
        (110, 11),
        (120, 21),
        (125, 26),
    ]
    assert set(rest[0]["stats"]) == set(NOTHING.to_dict())
    assert log.failed == 0


def test_closing_writes_nothing_twice(tmp_path):
    with RunLog(Counted(), tmp_path, every=1) as log:
        log(4)
    assert [r["kind"] for r in lines(tmp_path)] == ["start", "stats"]


def test_each_stall_is_written_once_with_its_host(tmp_path):
    stalls = [Stall(s, 0.1 * s, "store", "gs://a", s) for s in range(1, 6)]
    loader = Counted(stalls=tuple(stalls[:1]), num_stalls=1)  # before the log began
    with RunLog(loader, tmp_path, every=1, host=2) as log:
        log(0)
        loader.set(stalls=tuple(stalls[:3]), num_stalls=3)
        log(1)
        log(2)
        loader.set(stalls=tuple(stalls[3:]), num_stalls=90)  # more than the loader keeps
        log(3)
    found = [r for r in lines(tmp_path, host=2) if r["kind"] == "stall"]
    assert [(r["step"], r["host"]) for r in found] == [(2, 2), (3, 2), (4, 2), (5, 2)]
    assert read_records(str(tmp_path)).stalls == tuple(replace(s, host=2) for s in stalls[1:])


def test_what_a_killed_process_left_cut_off_is_not_added_to(tmp_path):
    with RunLog(Counted(), tmp_path) as log:
        log(0)
    path = tmp_path / "stats" / "host-00000.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with RunLog(Counted(), tmp_path) as log:
        log(7)
    found = read_records(str(tmp_path))
    assert (found.left_out, found.sessions, found.series[0].step.tolist()) == (1, 2, [7])


def test_training_goes_on_where_the_log_cannot_be_written(tmp_path, caplog):
    (tmp_path / "stats").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING), RunLog(Counted(), tmp_path, every=1) as log:
        for step in range(5):
            log(step)
    assert log.failed == 6
    assert len(caplog.records) == 1  # said once
    assert "stats" in caplog.text


def test_a_store_without_appending_gets_objects_that_are_read_back_in_order():
    from fsspec.implementations.memory import MemoryFileSystem

    folder = "memory://run-log-test/run"
    for first in (0, 50):
        with RunLog(Counted(), folder, every=10, config=Config()) as log:
            for step in range(first, first + 40):
                log(step)
    names = MemoryFileSystem().glob("/run-log-test/run/stats/*")
    assert len(names) == 2  # one object a process: none is full
    found = read_records(folder)
    assert found.sessions == 2
    assert found.series[0].step.tolist() == [0, 10, 20, 30, 39, 50, 60, 70, 80, 89]
    assert found.config == "seq_len: 8\n"


def test_a_store_that_fails_is_said_and_training_goes_on(monkeypatch, caplog):
    from headrace.store import files

    def refuse(url, data):
        raise OSError("no room")

    monkeypatch.setattr(files, "write_atomic", refuse)
    with (
        caplog.at_level(logging.WARNING),
        RunLog(Counted(), "memory://run-log-test/refused", every=1) as log,
    ):
        log(0)
    assert log.failed >= 1
    assert "no room" in caplog.text


def test_every_must_be_positive(tmp_path):
    with pytest.raises(ConfigError, match="every"):
        RunLog(Counted(), tmp_path, every=0)
