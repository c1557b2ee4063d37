"""A power cut at any moment of a build, a shuffle, a run, a plan, rollouts: what is left is the
state before or after.

Programs run under strace; :mod:`crash_states` makes what a file system may leave of their writes.
Each such folder is opened: it is unfinished, or what was asked for, never a third; nothing but
headrace's errors comes out; and what a program said is done is there. Going on from what is left
gives what an undisturbed program gives.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.errors import CacheMissingError, CacheUnfinishedError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache, reshuffle
from headrace.ingest.reshuffle import ReshuffleConfig
from headrace.pack.plan_file import PlanRequest, read_plan
from headrace.pack.spec import PackSpec
from headrace.report.run_records import read_records
from headrace.run import RunLock, open_run
from headrace.store import TokenCache, consolidate, open_cache, verify
from headrace.testing import tiny_cache
from headrace_posttrain import RLDataset, RolloutStore, ScoredGroup
from headrace_posttrain.rollouts.dataset import RLSettings

traced = pytest.mark.skipif(shutil.which("strace") is None, reason="apt-get install strace")
IMPORTS = """
import os, sys
import numpy as np
root, *given = sys.argv[1:]
def mark(name):
    os.write(1, f"MARK {name}\\n".encode())
"""


def tokens_of(cache: TokenCache) -> str:
    documents = [cache.document(i) for i in range(cache.num_documents)]
    return hashlib.sha256(b"".join(d.astype("<i8").tobytes() + b"|" for d in documents)).hexdigest()


def check(
    ops,
    look: Callable[[str, list[str]], object],
    *,
    tries: int,
    again: Callable[[str], object] | None = None,
):
    """Opens every state; every 10th one is also gone on from."""
    states = 0
    gone_on = 0
    for done, left in CRASH.crash_states(ops, tries=tries):
        said = [op.name.removeprefix("MARK ") for op in ops[:done] if op.kind == "mark"]
        with tempfile.TemporaryDirectory(dir=CRASH.SCRATCH) as folder:
            CRASH.write_tree(left, Path(folder))
            try:
                look(folder, said)
                if again is not None and states % 10 == 0:
                    again(folder)
                    gone_on += 1
            except BaseException as error:
                names = {path: None if data is None else len(data) for path, data in left.items()}
                error.add_note(
                    f"after {done} of {len(ops)}: {ops[done - 1]}; said {said}; left {names}"
                )
                raise
        states += 1
    print(f"{len(ops)} operations, {states} states, {gone_on} gone on from")
    assert states > len(ops) // 2
    assert any(op.kind == "mark" for op in ops)


@pytest.fixture(autouse=True)
def crash(crash_states):
    global CRASH
    CRASH = crash_states


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name in "ab":
        lines = [json.dumps({"text": f"{name} {'word ' * (k % 7)}{k}"}) for k in range(12)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def cache_of(folder: str, said: list[str], expected: str) -> None:
    """A finished cache is sound and the right one; an unfinished one says so, and nobody was told
    otherwise.
    """
    try:
        cache = open_cache(f"{folder}/cache")
    except (CacheMissingError, CacheUnfinishedError):
        assert not said
        return
    assert tokens_of(cache) == expected
    assert not verify(f"{folder}/cache", deep=True).damages


def build(texts: object, output: str, **options: object) -> TokenCache:
    source = SourceConfig([str(texts)])
    build_cache(
        source,
        TokenizerConfig(),
        output,
        engine="inline",
        part_bytes=300,
        progress=False,
        **options,
    )
    return open_cache(output)


@traced
@pytest.mark.slow
@pytest.mark.parametrize("options", ["", ", chunk_tokens=16, shard_chunks=2, compression='zstd'"])
def test_a_build(root, texts, tmp_path, options):
    program = f"""{IMPORTS}
from headrace.ingest.build import build_cache
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig
build_cache(SourceConfig([given[0]]), TokenizerConfig(), root + "/cache", engine="inline", part_bytes=300,
            progress=False{options})
mark("built")
"""
    ops = CRASH.record(program, root, str(texts))
    cache = open_cache(str(root / "cache"))
    assert len(cache.parts) > 1
    expected = tokens_of(cache)
    settings = eval(f"dict({options.lstrip(', ')})")
    check(
        ops,
        lambda folder, said: cache_of(folder, said, expected),
        tries=2,
        again=lambda folder: cache_of(
            folder, [build(texts, f"{folder}/cache", **settings).path], expected
        ),
    )


@traced
@pytest.mark.slow
@pytest.mark.parametrize("copy", ["shuffled", "joined"])
def test_a_copy_of_a_cache(root, texts, tmp_path, copy):
    plain = build(texts, str(tmp_path / "plain"))
    program = f"""{IMPORTS}
sys.path.insert(0, given[1])
import test_durability as t
t.{copy}(t.open_cache(given[0]), root + "/cache")
mark("copied")
"""
    ops = CRASH.record(program, root, plain.path, str(Path(__file__).parent))
    expected = tokens_of(open_cache(str(root / "cache")))

    def again(folder):
        {"shuffled": shuffled, "joined": joined}[copy](plain, f"{folder}/cache")
        cache_of(folder, ["copied"], expected)

    check(ops, lambda folder, said: cache_of(folder, said, expected), tries=2, again=again)


def shuffled(cache: TokenCache, output: str) -> None:
    reshuffle(
        cache, output, ReshuffleConfig(seed=3, part_bytes=300), engine="inline", progress=False
    )


def joined(cache: TokenCache, output: str) -> None:
    consolidate(cache, output)


def loader() -> headrace.DataLoader:
    rows = headrace.TokenSeqDataset(tiny_cache(documents=200), 16)
    parts = {"a": rows.shuffle(0), "b": rows.shuffle(1)}
    weights = {"a": {"linear": {0: 1, 4: 2}}, "b": 0.5}  # steps that leave anchors
    return headrace.DataLoader(headrace.MixtureDataset(parts, weights, batch_size=8))


@traced
@pytest.mark.slow
def test_the_folder_of_a_run(root):
    program = f"""{IMPORTS}
sys.path.insert(0, given[0])
import test_durability as t
from headrace.feed.run_log import RunLog
loader = t.loader()
run = t.open_run(root + "/run", loader)
mark("opened")
with RunLog(loader, root + "/run", every=1) as log, loader.iter_from_step(0) as batches:
    for step in range(3):
        next(batches)
        log(step)
        run.state(step + 1)
        mark(f"state {{step + 1}}")
mark("logged")
"""
    ops = CRASH.record(program, root, str(Path(__file__).parent))
    feeds = loader()
    whole = RunLock.load(str(root / "run"))
    batches = [np.asarray(feeds.batch_at(step).tokens) for step in range(5)]

    def look(folder, said):
        manifest = RunLock.load(f"{folder}/run")
        assert manifest is None or manifest == whole
        assert manifest is not None or not said
        read_records(f"{folder}/run")
        if "logged" in said:
            assert read_records(f"{folder}/run").last_step == 2

    def again(folder):
        run = open_run(f"{folder}/run", feeds, 3)
        run.state(4)
        assert np.array_equal(np.asarray(feeds.batch_at(4).tokens), batches[4])
        assert RunLock.load(f"{folder}/run") == whole

    check(ops, look, tries=4, again=again)


REQUEST = PlanRequest("sha256:0", 40, PackSpec(64))


@traced
@pytest.mark.slow
def test_a_plan(root):
    program = f"""{IMPORTS}
sys.path.insert(0, given[0])
import test_durability as t
from headrace.pack.plan_file import write_plan
write_plan(root + "/plans", t.REQUEST, [np.arange(1, 41)])
mark("planned")
"""
    ops = CRASH.record(program, root, str(Path(__file__).parent))
    whole = read_plan(str(root / "plans"), REQUEST).checksum

    def look(folder, said):
        plan = None
        with contextlib.suppress(FileNotFoundError):
            plan = read_plan(f"{folder}/plans", REQUEST)
        assert plan is None or plan.checksum == whole
        assert plan is not None or not said

    check(ops, look, tries=6)


@traced
@pytest.mark.slow
def test_snapshots(root, texts):
    program = f"""{IMPORTS}
from headrace.ingest import SourceConfig, TokenizerConfig, append_cache, build_cache
from headrace.testing.caches import remove
how = dict(progress=False, engine="inline")
build_cache(SourceConfig([given[0] + "/a.jsonl"]), TokenizerConfig("bytes"), root + "/c", **how)
mark("1")
remove(root + "/c", 2)
mark("2")
append_cache([given[0] + "/b.jsonl"], root + "/c", **how)
mark("3")
remove(root + "/c", 11, 20)
mark("4")
"""
    ops = CRASH.record(program, root, str(texts))
    whole = [open_cache(str(root / "c"), number) for number in (1, 2, 3, 4)]
    contents = [(tokens_of(cache), cache.removed()) for cache in whole]

    def look(folder, said):
        try:
            newest = open_cache(f"{folder}/c").snapshots[0].number
        except (CacheMissingError, CacheUnfinishedError):
            newest = 0
        assert len(said) <= newest <= len(said) + 1
        for number in range(1, newest + 1):
            cache = open_cache(f"{folder}/c", number)
            assert (tokens_of(cache), cache.removed()) == contents[number - 1]

    check(ops, look, tries=3)


PROMPTS = [np.array([i + 1]) for i in range(5)]


class Guess:
    def sample_and_score(self, prompt):
        tokens = [np.array([1, 100 + prompt.position, k]) for k in range(2)]
        return ScoredGroup(tokens, np.array([0.0, 1.0 + prompt.position % 2]), 1)


def rollouts(store: RolloutStore) -> RLDataset:
    settings = RLSettings(seq_len=8, groups_per_batch=2, seed=0, prompts_at_a_time=3)
    return RLDataset(PROMPTS, Guess(), settings, store=store)


@traced
@pytest.mark.slow
def test_rollouts(root):
    program = f"""{IMPORTS}
sys.path.insert(0, given[0])
import test_durability as t
from headrace_posttrain.rollouts import append_log
append_log.SEGMENT_BYTES = 3000
for steps in (range(3), range(3, 6)):
    with t.RolloutStore(root + "/rollouts") as store:
        dataset = t.rollouts(store)
        for step in steps:
            dataset.next_batch(step)
            mark(f"step {{step}}")
            if step % 2:
                store.forget(step - 1)
"""
    ops = CRASH.record(program, root, str(Path(__file__).parent))
    calm = rollouts(RolloutStore(None))
    weights = [np.asarray(calm.next_batch(step).token_weights).tobytes() for step in range(8)]
    tokens = [np.asarray(calm.next_batch(step).tokens).tobytes() for step in range(8)]

    def look(folder, said):
        store = RolloutStore(f"{folder}/rollouts")
        assert store.next_step in (len(said), len(said) + 1)
        assert store.lost_groups == 0
        used = [p for r in store.records() for p in (*r.positions, *r.dropped)]
        assert used == list(range(store.next_position))

    def again(folder):
        with RolloutStore(f"{folder}/rollouts") as store:
            first = store.describe()["forgotten_steps"]
            dataset = rollouts(store)
            for step in range(first, 8):
                batch = dataset.next_batch(step)
                assert np.asarray(batch.tokens).tobytes() == tokens[step]
                assert np.asarray(batch.token_weights).tobytes() == weights[step]

    check(ops, look, tries=4, again=again)


def test_what_is_not_synced_may_be_lost(crash_states):
    """The instrument finds what it is for: a rename before its file, or its folder, is synced."""
    op = crash_states.Op
    write = [op("create", 1, 0, "a.tmp"), op("write", 1, offset=0, data=b"new!")]
    rename = op("rename", 1, 0, "a", source=(0, "a.tmp"))
    mark = op("mark", name="MARK done")

    def ends(ops):
        return [left for done, left in crash_states.crash_states(ops, tries=20) if done == len(ops)]

    careless = ends([*write, rename, mark])
    assert {"a": b""} in careless
    assert {"a": b"ne"} in careless
    assert {"a": bytes(4)} in careless
    assert {} in careless
    half = ends([*write, op("sync", 1), rename, mark])
    assert {"a": b""} not in half
    assert {} in half
    assert ends([*write, op("sync", 1), rename, op("sync", 0), mark]) == [{"a": b"new!"}]
