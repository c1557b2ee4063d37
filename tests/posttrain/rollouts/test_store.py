"""The store of rollouts: whose it is, who writes, several producers and damage."""

import itertools
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import HeadraceError
from headrace.errors import CacheCorruptError, CacheError, ConfigError, PlanMismatchError
from headrace.testing import tiny_cache
from headrace_posttrain import CachePrompts, NoGroupError, RLDataset, RolloutStore, ScoredGroup
from headrace_posttrain.rollouts import append_log
from headrace_posttrain.rollouts.dataset import RLSettings
from headrace_posttrain.rollouts.rollout_records import BatchRecord

PROMPTS = [np.array([i + 1]) for i in range(7)]
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


def group(position, version=0):
    tokens = [np.array([1, 100 + position, k, version]) for k in range(2)]
    return ScoredGroup(tokens, np.array([0.0, 1.0 + position % 3]), 1, policy_version=version)


class Sampler:
    def __init__(self, make=group):
        self.make = make
        self.asked = []

    def sample_and_score(self, prompt):
        self.asked.append(prompt.position)
        return self.make(prompt.position)


def dataset(folder, make=group, *, prompts=PROMPTS, producer=None, sampler=True, **options):
    settings = RLSettings(**({"seq_len": 8, "groups_per_batch": 3, "seed": 0} | options))
    store = RolloutStore(folder, producer=producer)
    made: Any = RLDataset(prompts, Sampler(make) if sampler else None, settings, store=store)
    return made


def digest(batch):
    return [np.asarray(a).tobytes() for a in (batch.tokens, batch.token_weights, batch.segment_ids)]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("seq_len", {"seq_len": 9}),
        ("seed", {"seed": 1}),
        ("advantages", {"advantages": "rloo"}),
        ("tokenizer", {"tokenizer": "another"}),
        ("prompts", {"prompts": PROMPTS[:6]}),
        ("prompts_digest", {"prompts": [*PROMPTS[:5], PROMPTS[6], PROMPTS[5]]}),
    ],
)
def test_a_store_of_another_run_is_refused_by_the_field(tmp_path, field, change):
    dataset(tmp_path, tokenizer="one").store.close()
    with pytest.raises(
        PlanMismatchError, match=r"differs: the rollouts in .* are of a run with"
    ) as caught:
        dataset(tmp_path, **({"tokenizer": "one"} | change))
    assert caught.value.field == field
    assert "another folder" in str(caught.value)
    same = dataset(tmp_path, tokenizer="one", groups_per_batch=2, rows=9, advantages="slime")
    same.next_batch()
    same.store.close()
    with pytest.raises(PlanMismatchError):
        dataset(tmp_path, **({"tokenizer": "one"} | change), producer="late")


def test_prompts_of_a_cache_say_what_they_are(tmp_path):
    prompts = CachePrompts(tiny_cache(documents=9))
    first = dataset(tmp_path, prompts=prompts)
    assert first.store.identity["prompts_digest"] == prompts.cache.fingerprint
    first.store.close()
    with pytest.raises(PlanMismatchError, match="prompts_digest"):
        dataset(tmp_path, prompts=CachePrompts(tiny_cache(documents=9, seed=1)))


def test_of_two_writers_the_second_is_told(tmp_path):
    first = dataset(tmp_path)
    with pytest.raises(
        CacheError, match=rf"rollouts = .*is being written by process {os.getpid()} on"
    ):
        dataset(tmp_path)
    assert RolloutStore(tmp_path).next_step == 0  # it may be looked at
    first.next_batch()
    first.store.close()
    assert dataset(tmp_path).store.next_step == 1


def test_a_group_that_is_finished_is_stored_if_its_neighbour_raises(tmp_path):
    begun = threading.Barrier(2)
    failed = threading.Event()

    def make(position):
        if position > 1:
            raise AssertionError("was not begun when the other failed")
        begun.wait()
        if position == 0:
            failed.set()
            raise RuntimeError("the server is gone")
        failed.wait()
        time.sleep(0.01)
        return group(position)

    first = dataset(tmp_path, make, prompts_at_a_time=2, threads=2)
    with pytest.raises(RuntimeError, match="the server is gone"):
        first.next_batch()
    first.store.close()
    assert RolloutStore(tmp_path).pending == [1]
    mended = dataset(tmp_path)
    mended.next_batch()
    assert sorted(mended.sampler.asked) == [0, 2]


def test_several_producers_and_one_consumer(tmp_path):
    """Three sample, one of them is replaced by another on the way; the consumer samples nothing."""
    steps = 6
    stop = threading.Event()
    trained = dataset(tmp_path, sampler=False)
    asked = []

    def produce(name, share, rounds):
        made = dataset(tmp_path, producer=name, prompts_at_a_time=2)
        for _ in iter(lambda: not stop.is_set() and bool(rounds) and rounds.pop(), False):
            if not made.produce(share, ahead=8):
                time.sleep(0.002)
        asked.append(made.sampler.asked)
        made.store.close()

    def replaced():
        produce("b", (1, 3), [True] * 2)
        produce("other", (1, 3), [True] * 10**6)

    jobs = [
        threading.Thread(target=produce, args=(n, (k, 3), [True] * 10**6))
        for k, n in ((0, "a"), (2, "c"))
    ]
    jobs.append(threading.Thread(target=replaced))
    for job in jobs:
        job.start()
    batches = [trained.next_batch(step) for step in range(steps)]
    stop.set()
    for job in jobs:
        job.join()
    calm = RLDataset(PROMPTS, Sampler(), trained.settings)
    assert [digest(b) for b in batches] == [digest(calm.next_batch(s)) for s in range(steps)]
    every = [p for positions in asked for p in positions]
    assert len(set(every)) == len(every)
    trained.store.refresh()
    records = {name: log["records"] for name, log in trained.store.describe()["logs"].items()}
    assert sum(records[name] - 2 for name in ("a", "b", "c", "other")) == len(
        every
    )  # each says whose they are, and which share
    trained.store.close()
    again = dataset(tmp_path)
    assert [digest(again.next_batch(s)) for s in range(steps)] == [digest(b) for b in batches]
    assert again.sampler.asked == []


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {1, 2}, float("nan"), np.int64(1)])
def test_an_identity_that_a_log_would_not_give_back_is_refused(tmp_path, value):
    with (
        RolloutStore(tmp_path) as store,
        pytest.raises(ConfigError, match=r"identity\.prompts.*stored as JSON"),
    ):
        store.claim({"prompts": value})
    assert os.listdir(tmp_path) == []


def test_a_prompt_that_two_sampled_is_used_once_and_stays_what_it_was(tmp_path):
    trained = dataset(tmp_path, sampler=False)
    for name, version in (("a", 1), ("b", 2)):
        with RolloutStore(tmp_path, producer=name) as store:
            store.claim(trained.store.identity)
            for position in range(3):
                store.put_group(position, group(position, version))
    first = trained.next_batch()
    assert trained.store.duplicate_groups == 3
    with RolloutStore(tmp_path, producer="z") as store:
        store.put_group(0, group(0, 9))
    trained.store.close()
    again = dataset(tmp_path, sampler=False)
    assert digest(again.next_batch(0)) == digest(first)
    record = again.store.record(0)
    with pytest.raises(
        CacheError, match=r"position = 0: is in step 0 already: no prompt is in two steps"
    ):
        again.store.put_record(BatchRecord(1, [0], {}, 4))
    with pytest.raises(CacheError, match=r"position = 5: has no group"):
        again.store.put_record(BatchRecord(1, [5], {}, 6))
    assert record.groups[0][0] in ("a", "b")


def test_what_is_too_old_is_refused_and_its_producer_samples_it_again(tmp_path):
    trained = dataset(tmp_path, sampler=False, max_staleness=1)
    version = [0]
    made = dataset(
        tmp_path, lambda p: group(p, version[0]), producer="a", prompts_at_a_time=9, max_staleness=1
    )
    assert made.produce(ahead=4) == [0, 1, 2, 3]
    assert made.produce(ahead=4) == []
    version[0] = 5
    batches = []
    consumer = threading.Thread(target=lambda: batches.append(trained.next_batch(policy_version=5)))
    consumer.start()
    while consumer.is_alive():
        made.produce(ahead=4)
    assert (batches[0].policy_version[batches[0].label_mask] == 5).all()
    assert trained.counts["stale_groups"] == 3
    assert trained.store.describe()["refused_groups"] == 3
    with pytest.raises(ConfigError, match=r"producer = 'a': only adds groups.*produce\(\)"):
        made.next_batch()
    made.store.close()


@pytest.mark.parametrize("name", ["", "consumer", "a/b", ".."])
def test_names_of_producers(tmp_path, name):
    with pytest.raises(ConfigError, match=r"producer = .*a name of its own, e.g. 'sampler-0'"):
        RolloutStore(tmp_path, producer=name)


def test_shares_and_samplers_that_cannot_be(tmp_path):
    made = dataset(tmp_path, producer="a")
    for share in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match="share"):
            made.produce(share)
    with pytest.raises(ConfigError, match="sampler = None: nobody could sample"):
        RLDataset(PROMPTS, None, made.settings)


def test_a_producer_that_was_there_first_learns_whose_the_steps_are(tmp_path):
    made = dataset(tmp_path, producer="a", seq_len=16)
    made.produce()
    with pytest.raises(PlanMismatchError, match=r"seq_len.*producers/a are of"):
        dataset(tmp_path)
    shutil.rmtree(tmp_path / "producers" / "a")
    trained = dataset(tmp_path)
    with pytest.raises(PlanMismatchError, match="seq_len"):
        made.produce()
    trained.store.close()


def test_segments_are_deleted_when_no_step_needs_them(tmp_path, monkeypatch):
    monkeypatch.setattr(append_log, "SEGMENT_BYTES", 1)
    found = dataset(tmp_path)
    batches = [found.next_batch(step) for step in range(4)]
    segments = lambda: len(list((tmp_path / "producers" / "consumer").glob("*.log")))  # noqa: E731
    before = segments()
    assert found.store.forget(3) == 9
    assert segments() <= before - 8
    found.store.close()
    again = dataset(tmp_path)
    assert digest(again.next_batch(3)) == digest(batches[3])
    with pytest.raises(CacheError, match="let go"):
        again.next_batch(0)
    assert again.store.lost_groups == 0
    assert again.store.forget(3) == 0
    again.store.close()


def test_a_lost_segment_is_told_and_the_cures_work(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(append_log, "SEGMENT_BYTES", 1)
    found = dataset(tmp_path)
    for step in range(3):
        found.next_batch(step)
    found.store.close()
    segment = sorted((tmp_path / "producers" / "consumer").glob("*.log"))[
        5
    ]  # of position 4, in step 1
    raw = segment.read_bytes()
    segment.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(
        CacheCorruptError, match=r"segment = .*offset 0\)\. Move this file out of the folder"
    ):
        RolloutStore(tmp_path)
    segment.rename(tmp_path / "moved away")
    again = dataset(tmp_path)
    assert "1 groups of its steps are lost" in caplog.text
    assert again.store.describe()["logs"]["consumer"]["lost_records"] == 1
    again.next_batch(0)
    with pytest.raises(
        CacheCorruptError, match=r"group = 4: of step 1 is lost.*RolloutStore\.rewind\(1\)"
    ):
        again.next_batch(1)
    again.store.rewind(1)
    again.next_batch(1)
    assert again.sampler.asked == [4]
    assert [r.positions for r in again.store.records()] == [[0, 1, 2], [3, 4, 5]]
    again.store.close()


def damaged(raw, pick):
    """A bit flipped, or the end cut off."""
    at = pick.randrange(len(raw))
    if pick.random() < 0.3:
        return raw[:at]
    return raw[:at] + bytes([raw[at] ^ (1 << pick.randrange(8))]) + raw[at + 1 :]


@pytest.mark.parametrize("close", [True, False])
def test_no_flip_and_no_cut_is_silent(tmp_path, close, caplog):
    """80 each: an error, or a line in the log about the bytes that are left out; then the run goes
    on as it was.
    """
    steps = 3
    pick = random.Random(close)
    found = dataset(tmp_path)
    batches = [digest(found.next_batch(step)) for step in range(steps)]
    if close:
        found.store.close()
    files = sorted(tmp_path.rglob("*.log"))
    contents = {file: file.read_bytes() for file in files}
    errors = 0
    for number in range(80):
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            chosen = files[number % len(files)]
            for file, raw in contents.items():
                copy = Path(folder) / file.relative_to(tmp_path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(damaged(raw, pick) if file == chosen else raw)
            caplog.clear()
            again = None
            try:
                again = dataset(folder)
                for step in range(again.store.next_step):
                    assert digest(again.next_batch(step)) == batches[step]
                assert "did not close it" in caplog.text
                done = again.store.next_step
                assert [digest(again.next_batch(step)) for step in range(done, steps)] == batches[
                    done:
                ]
            except CacheError:
                errors += 1
            finally:
                if again is not None:
                    again.store.close()
    assert 10 < errors < 80
    found.store.close()


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import test_store as t
folder, steps = sys.argv[1], int(sys.argv[2])
with t.RolloutStore(folder) as store:
    settings = t.RLSettings(seq_len=8, groups_per_batch=3, seed=0, prompts_at_a_time=4, threads=2)
    made = t.RLDataset(t.PROMPTS, t.Sampler(), settings, store=store)
    print("ready", flush=True)
    for step in range(store.next_step, steps):
        made.next_batch(step)
        print(step, flush=True)
        if step % 7 == 6:
            store.forget(step - 3)
"""


def program(folder, steps):
    source = PROGRAM.format(tests=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", source, str(folder), str(steps)], stdout=-1, stderr=-1, text=True
    )


def test_of_two_processes_one_wins(tmp_path):
    with program(tmp_path, 10**9) as first:
        first.stdout.readline()
        with pytest.raises(
            CacheError, match=rf"is being written by process {first.pid} on .*Wait until it is done"
        ):
            dataset(tmp_path)
        os.kill(first.pid, signal.SIGKILL)
    assert dataset(tmp_path).store.next_step >= 0


@pytest.mark.parametrize(
    "kills", [pytest.param(10, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.soak)]
)
def test_kills_at_random_moments(tmp_path, kills):
    """After each: every position is in one step, and the batches are those of a run that nobody
    killed.
    """
    pick = random.Random(0)
    for _ in range(kills):
        with program(tmp_path, 10**9) as process:
            process.stdout.readline()
            for _ in range(pick.randrange(4)):
                process.stdout.readline()
            time.sleep(pick.uniform(0, 0.02))
            process.kill()
    with RolloutStore(tmp_path) as store:
        made = RLDataset(
            PROMPTS, Sampler(), RLSettings(seq_len=8, groups_per_batch=3, seed=0), store=store
        )
        steps = store.next_step
        calm = RLDataset(PROMPTS, Sampler(), made.settings)
        assert [p for r in store.records() for p in (*r.positions, *r.dropped)] == list(
            range(3 * steps)
        )
        for step in range(steps + 2):
            expected = digest(calm.next_batch(step))
            try:
                assert digest(made.next_batch(step)) == expected
            except HeadraceError as error:
                # only groups of steps that were forgotten
                assert "let go" in str(error)  # noqa: PT017
        assert store.lost_groups == 0
        print(f"{steps} steps; {store.describe()}")


def test_groups_of_a_producer_of_another_run_are_refused_though_it_came_first(tmp_path):
    other = dataset(tmp_path, prompts=[ids + 50 for ids in PROMPTS], producer="early")
    assert other.produce() == [0]  # nobody had said yet whose rollouts these are
    with pytest.raises(
        PlanMismatchError, match=r"early are of a run with .*delete .*producers/early"
    ) as caught:
        dataset(tmp_path)
    assert caught.value.field == "prompts_digest"
    with pytest.raises(PlanMismatchError, match="producers/early"):
        dataset(tmp_path, producer="late")
    other.store.close()
    shutil.rmtree(tmp_path / "producers" / "early")
    trained = dataset(tmp_path)
    trained.next_batch()
    assert trained.store.describe()["duplicate_groups"] == 0


def test_a_producer_of_another_run_that_began_at_the_same_moment_is_found_by_the_next_look(
    tmp_path,
):
    trained = dataset(tmp_path)
    late = RolloutStore(tmp_path / "elsewhere", producer="late")
    RLDataset([ids + 50 for ids in PROMPTS], Sampler(), RLSettings(8, 3, 0), store=late).produce()
    late.close()
    shutil.copytree(tmp_path / "elsewhere" / "producers", tmp_path / "producers")
    with pytest.raises(PlanMismatchError, match="producers/late"):
        trained.store.refresh()


FORK = """
import os, sys
from headrace.errors import CacheError
from test_store import dataset, group

trained = dataset(sys.argv[1])
trained.next_batch()
child = os.fork()
if child == 0:
    try:
        trained.store.put_group(99, group(99))
    except CacheError as error:
        os._exit(7 if "of which this one is a fork" in str(error) else 1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
trained.next_batch()
trained.store.close()
"""
"""In a process of its own: others of these tests load jax, which warns where its process forks."""


def test_a_fork_is_told_that_it_does_not_write(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parent)
    assert RolloutStore(tmp_path).next_step == 2


def test_what_cannot_be_is_an_error_of_headrace(tmp_path):
    trained = dataset(tmp_path)
    for step in (-1, 2**63):
        with pytest.raises(ConfigError):
            trained.next_batch(step)
    with pytest.raises(ConfigError, match=r"2\*\*63"):
        trained.store.put_group(-1, group(0))
    for store in (trained.store, RolloutStore(None)):
        with pytest.raises(ConfigError, match="cannot be pickled: one process writes it"):
            pickle.dumps(store)
    (tmp_path / "producers" / ".DS_Store").write_bytes(b"a file manager's")
    trained.store.refresh()
    (tmp_path / "producers" / "notes.txt").write_bytes(b"")
    with pytest.raises(CacheError, match=r"notes.txt.*is no folder"):
        trained.store.refresh()


class Counted(dict):
    """Counts how often it is asked whether it has something."""

    asked = 0

    def __contains__(self, key):
        Counted.asked += 1
        return super().__contains__(key)


@pytest.mark.parametrize("in_flight", [None, 4])
@pytest.mark.parametrize("stragglers", ["wait", "keep"])
def test_what_a_step_has_left_out_is_not_searched_again(stragglers, in_flight):
    """A step that leaves out everything took a time that grew with the square of
    what it left out.
    """

    class Equal:
        def sample_and_score(self, prompt):
            return ScoredGroup([np.array([1, 2])] * 2, np.zeros(2), 1)

    settings = RLSettings(
        8, 1, seed=0, max_attempts=400, stragglers=stragglers, in_flight=in_flight
    )
    with RLDataset([np.array([1])], Equal(), settings) as made:
        made.store._looked_at = Counted()
        Counted.asked = 0
        with pytest.raises(NoGroupError, match="400"):
            made.next_batch()
        assert len(made.store._looked_at) == 400
        assert Counted.asked < 400 * 25  # it was 400 * 200 and more
        assert made.store.pending[:400] == list(range(400)) or stragglers == "keep"
        with pytest.raises(NoGroupError, match="400"):  # another attempt looks at the same ones
            made.next_batch()
        assert made.store.next_step == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "look", "record", "anew", "rewind"]), st.integers(0, 9)),
        max_size=40,
    )
)
def test_open_positions_are_those_that_nothing_has(actions):
    store = RolloutStore(None)
    groups = []
    looked = []
    used = []
    for action, position in actions:
        is_open = position not in looked and not any(position in step for step in used)
        if action == "put" and is_open:
            store.put_group(position, ScoredGroup([np.array([1, 2])], np.zeros(1), 1))
            groups = (
                [*(p for p in groups if p != position), position]
                if position not in groups
                else groups
            )
        elif action == "look" and position in groups and is_open:
            store.look_at(position)
            looked.append(position)
        elif action == "record" and looked:
            store.put_record(BatchRecord(len(used), sorted(looked), {}, max(looked) + 1))
            used.append(looked)
            looked = []
        elif action == "anew":
            store.look_anew()
            looked = []
        elif action == "rewind":
            store.rewind(min(position, len(used)))
            used = used[: min(position, len(used))]
        taken = {p for step in [*used, looked] for p in step}
        waits = [p for p in groups if p not in taken]
        assert (
            list(itertools.islice(store.open_positions(), 12))
            == [p for p in range(40) if p not in taken][:12]
        )
        assert store.pending == sorted(p for p in groups if not any(p in step for step in used))
        assert store.num_waiting == len(waits)
        assert (store.first_waiting is None) == (not waits)


@pytest.mark.parametrize("stragglers", ["wait", "keep"])
def test_two_iterations_that_make_the_same_step_neither_lose_nor_double_prompts(stragglers):
    """One was left while its sampler ran: it goes on beside the one that took its place."""
    made = RLDataset(
        PROMPTS, Sampler(), RLSettings(16, 3, seed=0, stragglers=stragglers, prompts_at_a_time=2)
    )
    batches: list[list[Any]] = [[], []]

    def make(mine):
        for step in range(20):
            mine.append(made.next_batch(step).tokens)

    threads = [threading.Thread(target=make, args=[mine]) for mine in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(mine) for mine in batches] == [20, 20]
    for one, other in zip(*batches, strict=True):
        assert np.array_equal(one, other)
    assert [p for r in made.store.records() for p in r.positions] == list(range(60))


def test_a_step_has_the_group_that_it_saw_whatever_came_later(tmp_path):
    with RolloutStore(tmp_path) as store:
        store.put_group(0, group(0, version=1))
        store.look_at(0)
        store.put_group(0, group(0, version=2))  # as a second producer's
        store.put_record(BatchRecord(0, [0], {}, 1))
        assert store.group(0).oldest_version == 1
    assert RolloutStore(tmp_path).group(0).oldest_version == 1
