"""What a run has written, read back: rates from counters, over restarts, cuts and nonsense."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.metrics import Stall
from headrace.report.run_records import MAX_POINTS, parse_records, read_records


def line(kind, **fields):
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def start(host=0, hosts=1, time=0.0, config=None):
    return line("start", version=1, host=host, hosts=hosts, time=time, config=config)


def stats(step, time=0.0, **counters):
    return line("stats", step=step, time=time, stats=counters)


SESSIONS = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=20),
    min_size=1,
    max_size=4,
)


@given(SESSIONS)
def test_what_is_added_up_between_points_is_what_was_counted(sessions):
    text = b""
    step = 0
    time = 0.0
    counted = 0
    for session in sessions:
        text += start(time=time)
        batches = reads = 0
        for steps, more in session:
            step = step + steps
            time = time + 1.0
            batches = batches + steps
            reads = reads + more
            text += stats(step, time, batches=batches, bytes_read=reads)
        counted += reads
    (series,) = parse_records([text]).series
    assert series.total("batches") == step
    assert series.total("bytes_read") == counted
    assert (np.diff(series.step) > 0).all()
    assert np.isnan(series.seconds).sum() == len(
        sessions
    )  # a session's first line has none before it
    assert np.nansum(series.seconds) == sum(len(s) - 1 for s in sessions)


def test_steps_that_were_done_again_count_once():
    text = (
        start()
        + stats(10, 1.0, batches=10)
        + stats(20, 2.0, batches=20)
        + stats(30, 3.0, batches=30)
    )
    text += (
        start(time=9.0) + stats(20, 10.0, batches=5) + stats(30, 11.0, batches=15)
    )  # resumed at step 15
    (series,) = parse_records([text]).series
    assert series.step.tolist() == [10, 20, 30]
    assert series.sums["batches"].tolist() == [10, 5, 10]


@given(st.integers(0, 10_000))
def test_a_log_that_is_cut_anywhere_gives_what_lies_before_the_cut(cut):
    text = start(config="a: 1\n") + b"".join(stats(s, float(s), batches=s) for s in range(1, 30))
    text = text[: cut % (len(text) + 1)]
    found = parse_records([text])
    whole = text.count(b"\n") - (1 if text else 0) if b"\n" in text else 0
    measured = found.series[0].step.size if found.series else 0
    assert measured in (whole, whole + 1)  # a cut just before the end of a line leaves a record
    assert found.left_out <= 1


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_nonsense_is_left_out_and_counted(junk):
    junk = [j.replace(b"\n", b"").replace(b"\r", b"") for j in junk]
    text = (
        start()
        + stats(1, 1.0, batches=1)
        + b"".join(j + b"\n" for j in junk)
        + stats(2, 2.0, batches=2)
    )
    found = parse_records([text])
    assert found.series[0].step.tolist() == [1, 2]
    assert found.left_out <= sum(len(j.splitlines()) or 1 for j in junk)


def test_records_of_a_wrong_shape_are_left_out():
    wrong = [
        b'{"kind": "stats", "step": "1", "time": 0, "stats": {}}',
        b'{"kind": "new"}',
        b"[1]",
        b"7",
        b"null",
    ]
    found = parse_records([start() + b"\n".join(wrong) + b"\n" + stats(3, 1.0, batches=1)])
    assert (found.left_out, found.last_step) == (5, 3)


def test_lines_without_a_start_are_left_out():
    found = parse_records([stats(3, 1.0, batches=1)])
    assert (found.left_out, found.series, found.sessions) == (1, (), 0)


def test_long_logs_are_thinned_and_lose_no_count():
    text = start() + b"".join(
        stats(s, float(s), batches=s, bytes_read=3 * s) for s in range(1, 5000)
    )
    (series,) = parse_records([text]).series
    assert MAX_POINTS // 2 < series.step.size <= MAX_POINTS + 2
    assert series.step[-1] == 4999
    assert (series.total("batches"), series.total("bytes_read")) == (4999, 3 * 4999)


def test_rates():
    text = (
        start()
        + stats(10, 100.0, batches=10, wait_s=0.5)
        + stats(30, 110.0, batches=30, wait_s=2.5)
    )
    (series,) = parse_records([text]).series
    assert series.per_batch("wait_s").tolist() == [0.05, 0.1]
    assert np.isnan(series.per_second("wait_s")[0])
    assert series.per_second("wait_s")[1] == 0.2
    assert parse_records([text]).waiting_share == 0.25  # 2.5 s of the 10 s that are known


def test_hosts_and_the_last_config():
    texts = [
        start(0, 2, 1.0, "old")
        + stats(4, 2.0, batches=4)
        + start(0, 2, 5.0, "new")
        + stats(8, 6.0, batches=4),
        start(1, 2, 1.0, "old")
        + stats(5, 3.0, batches=5)
        + line("stall", step=2, wait_s=0.2, cause="store", more=1),
    ]
    found = parse_records(texts)
    assert (found.hosts, found.sessions, found.config, found.last_step) == (2, 2, "new", 8)
    assert [s.host for s in found.series] == [0, 1]
    assert found.stalls == (Stall(2, 0.2, "store", host=1),)
    assert (found.began, found.ended) == (1.0, 6.0)


def test_a_folder_without_a_log_has_nothing(tmp_path):
    found = read_records(str(tmp_path))
    assert (found.series, found.sessions, found.last_step, found.waiting_share) == (
        (),
        0,
        None,
        None,
    )


def test_a_run_of_one_step_has_done_one():
    start = {"kind": "start", "version": 1, "host": 0, "hosts": 1, "time": 0.0, "config": None}
    first = {"kind": "figures", "step": 0, "time": 1.0, "figures": {"loss": 2.0}}
    lines = [json.dumps(start), json.dumps(first)]
    assert parse_records([lines[0].encode()]).steps_done == 0
    assert parse_records(["\n".join(lines).encode()]).steps_done == 1
