"""Logs: what was stored is read in order, whatever happened to writers; damage is an error, never
another record.
"""

import atexit
import logging
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CacheCorruptError, CacheError
from headrace.store import files
from headrace_posttrain import RolloutStore, ScoredGroup
from headrace_posttrain.rollouts import append_log
from headrace_posttrain.rollouts.append_log import AppendLog
from headrace_posttrain.rollouts.log_segments import scan

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
KIND = 16


def read(folder, **options):
    """A log opened anew, and what is in it."""
    log = AppendLog(str(folder), load=[KIND], **options)
    return log, [(record.key, record.payload) for record in log.refresh()]


def written(folder, payloads, *, close=True):
    log = AppendLog(str(folder))
    log.write()
    for key, payload in enumerate(payloads):
        log.append(KIND, key, payload)
    if close:
        log.close()
    else:
        kill(log)
    return log


def kill(log):
    """What a killed process leaves: no record of an end. Its lease is free, since its process is
    gone.
    """
    log._writer.resources.close()
    log._forgotten.detach()
    atexit.unregister(log._writer.close)
    log._writer = None


def torn(log, size):
    """The writer is killed while it writes a record."""
    writer = log._writer
    write = os.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os,
            "write",
            lambda file, data: write(file, bytes(data)[: min(size, len(data) - 1)]) * 0 + _die(),
        )
        with pytest.raises(KeyboardInterrupt):
            log.append(KIND, 9, b"never stored" * 3)
    assert writer is log._writer
    kill(log)


def _die():
    raise KeyboardInterrupt


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=90)),
        st.tuples(st.sampled_from(["close", "kill", "fail", "refresh"]), st.none()),
        st.tuples(st.just("torn"), st.integers(0, 80)),
        st.tuples(st.just("drop"), st.integers(0, 30)),
    ),
    max_size=16,
)


@settings(max_examples=30)
@given(STEPS, st.sampled_from([1, 150, 400, 1 << 20]))
def test_what_was_stored_is_read_whatever_happens_to_writers(steps, segment_bytes):
    with (
        tempfile.TemporaryDirectory(dir=SCRATCH) as folder,
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as stack,
    ):
        patch.setattr(append_log, "SEGMENT_BYTES", segment_bytes)
        log = stack.enter_context(AppendLog(folder))
        log.write()
        follower = AppendLog(folder, load=[KIND])
        model = []
        gone = set()
        followed = []
        for what, value in steps:
            if what == "append":
                model.append((len(model), value))
                log.append(KIND, len(model) - 1, value)
            elif what == "refresh":
                followed += [(r.key, r.payload) for r in follower.refresh()]
            elif what == "drop":
                log.drop(lambda record, value=value: record.key < value)
                gone |= set(range(value))
            elif what == "fail":
                with pytest.MonkeyPatch.context() as broken:
                    broken.setattr(files, "sync_folder", lambda path: _full())
                    broken.setattr(os, "fsync", lambda file: _full())
                    with pytest.raises(CacheError, match="No space left"):
                        log.append(KIND, 99, b"was refused")
            else:
                {
                    "close": lambda log, _: log.close(),
                    "kill": lambda log, _: kill(log),
                    "torn": torn,
                }[what](log, value)
                log = stack.enter_context(AppendLog(folder))
                log.write()
        again, content = read(folder)
        content = [
            (key, value) for key, value in content if key != 99
        ]  # may be there: nobody was told that it is
        stored = dict(content)
        assert [key for key, _ in content] == sorted(stored)
        assert {key: stored[key] for key in stored} == {
            key: value for key, value in model if key in stored
        }
        assert {key for key, _ in model} - set(stored) <= gone
        followed += [(r.key, r.payload) for r in follower.refresh()]
        assert set(content) <= set(followed) | {(k, v) for k, v in model if k in gone}
        assert again.lost_records == 0


def _full():
    raise OSError(28, "No space left on device")


def test_of_a_log_that_is_cut_anywhere_the_whole_records_are_read(tmp_path, caplog):
    payloads = [b"first", b"", b"third" * 9]
    written(tmp_path, payloads)
    (path,) = tmp_path.glob("*.log")
    whole = path.read_bytes()
    expected = list(enumerate(payloads))
    ends = [r.end for r in scan(whole, path.name, 0, (), b"")[0]]
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        found, content = read(tmp_path)
        records = sum(end <= size for end in ends)
        assert content == expected[: max(0, min(records - 1, 3))], size
        assert found.torn_bytes == size - max((end for end in ends if end <= size), default=0)
        assert not found.is_closed or records == 0
    path.write_bytes(whole[: ends[2] + 11])
    with AppendLog(str(tmp_path)) as log:
        log.write()
        log.append(KIND, 7, b"goes on")
    assert (
        "did not close it: 3 records are whole, 11 bytes of an unfinished one are left out"
        in caplog.text
    )
    assert read(tmp_path)[1] == [*expected[:2], (7, b"goes on")]


@pytest.mark.parametrize("close", [True, False])
def test_no_flipped_bit_goes_unnoticed(tmp_path, close):
    payloads = [b"first", b"second record", b"third"]
    written(tmp_path, payloads, close=close)
    (path,) = tmp_path.glob("*.log")
    whole = path.read_bytes()
    clean = read(tmp_path)[0]
    errors = []
    for bit in range(close, 8 * len(whole), 5):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found, content = read(tmp_path)
        except CacheCorruptError as error:
            errors.append(error)
            continue
        assert content == list(enumerate(payloads))[: len(content)]
        assert found.torn_bytes > clean.torn_bytes  # the last record: it is left out, and counted
    assert len(errors) > len(whole) // 2
    assert all(e.field == "segment" and e.value == str(path) and "offset" in str(e) for e in errors)


def test_a_record_that_is_damaged_while_the_log_is_open_is_an_error(tmp_path):
    written(tmp_path, [b"first", b"second"])
    log = AppendLog(str(tmp_path), cure="Bring it back.")
    first, second = log.refresh()
    (path,) = tmp_path.glob("*.log")
    raw = bytearray(path.read_bytes())
    raw[first.end - 1] ^= 1
    path.write_bytes(raw)
    assert log.read(second) == b"second"
    with pytest.raises(
        CacheCorruptError, match=rf"log' *: .*record 1.*offset {first.offset}.*Bring it back"
    ):
        log.read(first)
    path.unlink()
    with pytest.raises(CacheCorruptError, match="record 2"):
        log.read(second)


def test_segments_of_others_copies_and_lost_ones_are_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(append_log, "SEGMENT_BYTES", 1)
    written(tmp_path / "a", [b"0", b"1", b"2", b"3"])
    written(tmp_path / "b", [b"x", b"y"])
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    segment = (tmp_path / "a" / names[2]).read_bytes()
    for name, raw, problem in (
        (names[2], (tmp_path / "b" / names[2]).read_bytes(), "of another log"),
        ("000007-000000.log", segment, "of another log"),
        ("000001-000009.log", segment, "has record 2 once more"),
        (names[2], None, "no segment has record 2"),
    ):
        path = tmp_path / "a" / name
        before = path.read_bytes() if path.exists() else None
        path.unlink() if raw is None else path.write_bytes(raw)
        with pytest.raises(CacheCorruptError, match=problem):
            read(tmp_path / "a")
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)
    (tmp_path / "a" / names[2]).unlink()
    found, content = read(tmp_path / "a", may_lose=True)
    assert (found.lost_records, [key for key, _ in content]) == (1, [0, 2, 3])


def test_one_writes_and_the_other_is_told(tmp_path):
    with AppendLog(str(tmp_path)) as log:
        log.write()
        with pytest.raises(
            CacheError, match=rf"process {os.getpid()} on .*That is this process: close the other"
        ):
            AppendLog(str(tmp_path)).write()
        log.append(KIND, 0, b"mine")
    with AppendLog(str(tmp_path)) as log:
        log.write()
        log.append(KIND, 1, b"theirs")
    assert read(tmp_path)[1] == [(0, b"mine"), (1, b"theirs")]
    with pytest.raises(CacheError, match=r"write\(\)"):
        AppendLog(str(tmp_path)).append(KIND, 0, b"")


def test_a_writer_that_lost_its_lease_is_fenced(tmp_path):
    """It stood still for so long that another took over; then it goes on, and does not know."""
    late = AppendLog(str(tmp_path))
    late.write()
    late.append(KIND, 0, b"before")
    (tmp_path / "lease.json").unlink()  # as if it had expired
    with AppendLog(str(tmp_path)) as log:
        log.write()
        log.append(KIND, 1, b"of the new one")
        with pytest.raises(
            CacheError,
            match=r"rollouts = .*taken over by another builder while this one stood still",
        ):
            late.append(KIND, 2, b"of the late one")
        with pytest.raises(CacheError, match="taken over"):
            late.append(KIND, 3, b"of the late one")
        late.close()
        log.append(KIND, 4, b"of the new one")
    found, content = read(tmp_path)
    assert content == [(0, b"before"), (1, b"of the new one"), (4, b"of the new one")]
    assert found.fenced_records == 1


def test_a_fork_s_copy_ends_nothing(tmp_path):
    with AppendLog(str(tmp_path)) as log:
        log.write()
        log.append(KIND, 0, b"a")
        log._writer._pid += 1
        log._writer.close()
        log._writer._pid -= 1
        log.append(KIND, 1, b"b")
    assert len(read(tmp_path)[1]) == 2


def test_an_unclosed_log_is_closed_when_it_is_forgotten(tmp_path, caplog):
    log = AppendLog(str(tmp_path))
    log.write()
    log.append(KIND, 0, b"a")
    del log
    with caplog.at_level(logging.WARNING), AppendLog(str(tmp_path)) as log:
        log.write()
    assert caplog.text == ""


@pytest.mark.parametrize("how", ["forgotten", "at exit"])
def test_an_unclosed_log_is_closed_whatever_the_process_is_in(tmp_path, how):
    # Garbage is collected within any call, also inside threading.enumerate(), whose lock a thread
    # needs to end: a finalizer that waited for a thread there waited for ever.
    program = f"""
        import gc, threading
        from headrace_posttrain.rollouts.append_log import AppendLog
        log = AppendLog({str(tmp_path)!r})
        log.write()
        log.append({KIND}, 0, b"a")
        if {how == "forgotten"}:
            log.itself = log
            with threading._active_limbo_lock:
                del log
                gc.collect()
            with AppendLog({str(tmp_path)!r}) as log:
                log.write()
        print("ended")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ended\n", "")
    log, content = read(tmp_path)
    assert log.is_closed
    assert content == [(0, b"a")]


@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_on_object_stores(request, store, tmp_path):
    folder = files.join(request.getfixturevalue(f"{store}_bucket"), tmp_path.name)
    group = ScoredGroup([np.array([1, 2])], np.zeros(1), 1)
    with RolloutStore(folder) as rollouts:
        rollouts.claim({"prompts": 1})
        rollouts.put_group(0, group)
        with pytest.raises(CacheError, match=r"/steps.*is being written by process"):
            RolloutStore(folder).claim({"prompts": 1})
    with RolloutStore(folder) as again:
        again.claim({"prompts": 1})
        assert again.pending == [0]
        assert again.group(0).tokens[0].tolist() == [1, 2]
        again.put_group(1, group)
        assert RolloutStore(folder).pending == [0, 1]


def test_names_of_segments_always_sort(tmp_path, monkeypatch):
    monkeypatch.setattr(append_log, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(append_log, "MOST_SEGMENTS", 3)
    written(tmp_path, [b"%d" % k for k in range(9)])
    names = sorted(os.listdir(tmp_path))
    log, records = read(tmp_path)
    assert [key for key, _ in records] == list(range(9))
    assert [r.segment for n in names for r in log._records[n]] == [
        r.segment
        for r in sorted((r for rs in log._records.values() for r in rs), key=lambda r: r.number)
    ]
    assert names[-1].startswith("00000")


def test_what_is_no_segment_is_said_or_passed_over(tmp_path):
    written(tmp_path, [b"one"])
    (tmp_path / "000009-000000.log.bak").write_bytes(b"another's")
    assert read(tmp_path)[1] == [(0, b"one")]
    (tmp_path / "000009-000000.log").mkdir()
    with pytest.raises(CacheError, match=r"000009-000000.log.*cannot be read"):
        read(tmp_path)
