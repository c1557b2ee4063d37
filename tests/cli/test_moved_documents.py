"""``headrace cache reshuffle --update``: documents whose group changed move, and nothing else does."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import LmDataConfig, load_config, open_run
from headrace.data.attributes import AttributeConfig, open_attribute
from headrace.errors import ConfigError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.ingest.part_builder import Work
from headrace.ingest.reshuffle import MoveReport, move_documents
from headrace.ingest.shuffle_plan import Grouping
from headrace.order.intervals import Intervals
from headrace.store import CacheLayout, TokenCache, open_cache, verify
from headrace.store.layout import LeafSpec
from headrace.store.snapshots import add_appended, remove_documents
from headrace.store.verify import invalidate
from headrace.testing import tiny_cache, write_cache

DOCUMENTS = 6000


def numbered_cache(folder: Path, lengths: list[int], chunk: int = 64) -> TokenCache:
    """Document k has the tokens k."""
    halves = np.array_split(np.arange(len(lengths)), 2)
    documents = [[np.full(lengths[k], k) for k in some.tolist()] for some in halves]
    return write_cache(folder, documents, vocab_size=60_000, layout=CacheLayout("uint16", chunk, 4))


def groups_of(group: np.ndarray) -> ReshuffleConfig:
    return ReshuffleConfig(0, groups=Grouping(group.astype(np.uint8), ("--by", "score")))


def moved(cache: TokenCache, store: Path, group: np.ndarray) -> MoveReport:
    work = Work("inline", progress=False)
    return move_documents(cache, str(store), groups_of(group), work)


@settings(max_examples=8)
@given(data=st.data())
def test_documents_move_to_their_groups_and_keep_their_numbers(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("moved")
    documents = data.draw(st.integers(2, 40))
    groups = st.lists(st.integers(0, 4), min_size=documents, max_size=documents)
    marks = st.lists(st.booleans(), min_size=documents, max_size=documents)
    cache = numbered_cache(folder / "cache", [k % 7 + 1 for k in range(documents)])
    store = folder / "store"
    group = np.array(data.draw(groups))
    reshuffle(cache, str(store), groups_of(group), engine="inline", progress=False)
    snapshot = 1
    for _ in range(data.draw(st.integers(1, 3))):
        before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
        new_group = np.where(data.draw(marks), np.array(data.draw(groups)), group)
        report = moved(cache, store, new_group)
        assert report.moved <= np.count_nonzero(group != new_group)
        snapshot += report.moved > 0
        assert report.snapshot == snapshot
        group = new_group
        changed = {path.name for path, raw in before.items() if path.read_bytes() != raw}
        assert changed <= {"snapshots.json"}
    copy = open_cache(store)
    numbers = np.arange(documents)
    places = copy.stored_at(numbers)
    assert copy.num_originals == documents
    assert copy.original_tokens == cache.num_tokens
    assert (copy.originals(places) == numbers).all()
    assert [copy.document(place)[0] for place in places.tolist()] == numbers.tolist()
    assert [copy.original(place).number for place in places.tolist()] == numbers.tolist()
    # Every other place is one that a document left
    away = copy.moved_away
    assert away.total + documents == copy.num_documents
    assert not away.has(places).any()
    # Each part has documents of one group, but for those
    for first, stop in pairwise(np.cumsum([0, *copy.part_documents]).tolist()):
        there = places[(places >= first) & (places < stop)]
        assert np.unique(group[copy.originals(there)]).size <= 1
    assert all(verify(path, deep=True).damages == [] for path in copy.snapshots[0].paths)


BUCKETS = "by: score, edges: [1, 2, 3], names: [a, b, c, d], weights: [4, 3, 2, 1]"


class Scored:
    """A store in four groups by the numbers in a file, the config of a run in buckets by them, and
    the same with another file, in which a tenth of the documents have another number.
    """

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.folder = folder
        self.lengths = rng.integers(1, 60, DOCUMENTS)
        self.cache = numbered_cache(folder / "cache", self.lengths.tolist(), chunk=512)
        self.score = np.arange(DOCUMENTS) % 4
        self.moves = (rng.random(DOCUMENTS) < 0.13) & (self.score < 3)  # none to or from the last
        self.later = np.where(self.moves, (self.score + 1) % 3, self.score)
        np.save(folder / "score.npy", self.score)
        np.save(folder / "later.npy", self.later)
        self.store = f"{folder}/store"

    def command(self, scores: str) -> list[str]:
        options = ["--by", "score", "--attributes", f"score={self.folder}/{scores}.npy"]
        return ["cache", "reshuffle", self.cache.path, self.store, *options]

    def overrides(self, scores: str) -> list[str]:
        web = f"cache: {self.store}, attributes: {{score: {self.folder}/{scores}.npy}}"
        split = "validation: {one_in: 50, by: documents}, shuffle: {strands: 2}"
        web = f"components.web={{{web}, {split}, buckets: {{{BUCKETS}}}}}"
        return ["seq_len=64", "batch_size=16", "num_steps=120", "prefetch_bytes=28000", web]

    def config(self, scores: str) -> LmDataConfig:
        return load_config(overrides=self.overrides(scores))


@pytest.fixture
def scored(tmp_path, headrace) -> Scored:
    scored = Scored(tmp_path)
    assert headrace(*scored.command("score")).code == 0
    return scored


def documents_of(config: LmDataConfig) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The documents of each bucket, and those that are held out."""
    train = {
        name: np.unique(rows.read(np.arange(len(rows))).tokens)
        for name, rows in config.datasets().items()
    }
    held_out = [
        np.unique(rows.read(np.arange(len(rows))).tokens)
        for rows in config.validation_datasets().values()
    ]
    return train, np.unique(np.concatenate(held_out))


def reads_and_documents(config: LmDataConfig) -> tuple[int, np.ndarray]:
    """Chunks that a run reads, and the documents that it trains on."""
    with config.loader() as loader, loader.iter_from_step(0) as batches:
        trained = [np.unique(np.asarray(batch.tokens)) for batch in batches]
        return loader.stats().reads.block_fetches, np.unique(np.concatenate(trained))


def test_buckets_read_chunks_of_their_own_again_and_hold_outs_stay(scored, headrace):
    _, held_out = documents_of(scored.config("score"))
    reads, _ = reads_and_documents(scored.config("score"))
    reads_of_scattered, _ = reads_and_documents(scored.config("later"))
    said = headrace(*scored.command("later"), "--update", "--json")
    assert said.code == 0, said
    report = json.loads(said.out)
    assert report["moved"] == scored.moves.sum()
    assert report["tokens"] == scored.lengths[scored.moves].sum()
    assert open_cache(scored.store).members[1].num_tokens == report["tokens"]
    train, held_out_later = documents_of(scored.config("later"))
    for bucket, documents in enumerate(train.values()):
        assert (scored.later[documents] == bucket).all()
        expected = np.flatnonzero(scored.later == bucket)
        assert np.intersect1d(documents, expected).size > 0.98 * expected.size  # some fill no row
    assert np.isin(held_out_later, held_out).mean() > 0.95  # some fill no row
    # A tenth of each chunk is gone, and the last chunk of each part is not full
    reads_of_moved, trained = reads_and_documents(scored.config("later"))
    assert not np.isin(trained, held_out).any()
    assert reads_of_moved <= 1.25 * reads
    assert reads_of_scattered > 1.2 * reads_of_moved


def test_a_bucket_between_which_nothing_moved_keeps_its_digest(scored, headrace):
    open_run(f"{scored.folder}/run", scored.config("score"))
    assert headrace(*scored.command("later"), "--update").code == 0
    source = scored.overrides("later")
    (scored.folder / "run.yaml").write_text("seq_len: 64\n")
    tree = headrace(
        "run",
        "tree",
        f"{scored.folder}/run.yaml",
        *source,
        "--like",
        f"{scored.folder}/run",
        "--json",
    )
    facts = json.loads(tree.out)
    like = {name: one["like"] for name, one in facts["sources"].items()}
    assert like == {"web/a": [], "web/b": [], "web/c": [], "web/d": ["web/d"]}


def test_the_same_command_again_moves_nothing_and_one_that_was_killed_goes_on(scored, headrace):
    command = [*scored.command("later"), "--update"]
    assert headrace(*command).code == 0
    files = {path: path.read_bytes() for path in Path(scored.store).rglob("*") if path.is_file()}
    again = headrace(*command)
    assert "none of 6,000 documents is in another group" in again.out
    # Killed before it was listed
    (Path(scored.store) / "snapshots.json").unlink()
    (Path(scored.store) / "appended/1/parts/00001/part.json").unlink()
    assert headrace(*command).code == 0
    now = {path: path.read_bytes() for path in Path(scored.store).rglob("*") if path.is_file()}
    assert now == files


def test_check_names_the_command_that_moves_documents(scored, headrace):
    (scored.folder / "run.yaml").write_text("seq_len: 64\n")

    def check(*overrides: str) -> list[dict[str, str]]:
        run = f"{scored.folder}/run.yaml"
        done = headrace("config", "check", run, *overrides, "--json")
        findings = json.loads(done.out)["findings"]
        return [one for one in findings if one["rule"] == "scattered_buckets"]

    assert check(*scored.overrides("score")) == []
    (finding,) = check(*scored.overrides("later"))
    words = shlex.split(finding["cure"].partition("headrace ")[2])
    assert words[-1] == "--update"
    said = headrace(*words)
    assert said.code == 0, said
    assert check(*scored.overrides("later")) == []


def test_a_run_that_has_begun_reads_documents_where_they_were(scored, headrace):
    """And what is removed later is gone from it, from the step of an amendment on."""
    run = f"{scored.folder}/run"
    (scored.folder / "run.yaml").write_text("seq_len: 64\n")

    def batches() -> list[np.ndarray]:
        with open_run(run, scored.config("score")).loader() as loader:
            read = [loader.batch_at(step) for step in range(120)]
        return [np.where(one.token_mask == 0, -1, one.tokens) for one in read]

    def amend(step: int) -> str:
        config = [f"{scored.folder}/run.yaml", *scored.overrides("score")]
        options = ["--newest-caches", "--step", str(step), "--going-back"]
        done = headrace("run", "amend", run, *config, *options)
        assert done.code == 0, done
        return done.out

    before = batches()
    gone = np.append(np.flatnonzero(scored.moves)[:200], np.flatnonzero(~scored.moves)[:400])
    assert headrace(*scored.command("later"), "--update").code == 0
    diff = headrace("run", "diff", run, f"{scored.folder}/run.yaml", *scored.overrides("score"))
    assert (diff.code, "--newest-caches" in diff.out) == (0, False)
    assert "the same run" in amend(30)
    assert headrace("cache", "remove", scored.store, *map(str, gone[::2])).code == 0
    assert headrace(*scored.command("score"), "--update").code == 0  # back again
    amend(50)
    assert headrace("cache", "remove", scored.store, *map(str, gone)).code == 0
    amend(80)
    for step, (old, new) in enumerate(zip(before, batches(), strict=True)):
        removed = gone[:0] if step < 50 else gone[::2] if step < 80 else gone
        assert (new == np.where(np.isin(old, removed), -1, old)).all()
    for some in (gone[:200:2], gone[200::2]):
        assert np.isin(before[50:80], some).any()


def test_what_was_appended_after_a_move_is_further_documents_for_a_run(scored, headrace):
    """Beside a snapshot with documents that moved, which are none."""
    assert headrace(*scored.command("later"), "--update").code == 0
    layout = CacheLayout("uint16", 512, 4)
    documents = [[np.full(40, 50_000)] * 20]
    more = write_cache(f"{scored.store}/appended/2", documents, vocab_size=60_000, layout=layout)
    add_appended(scored.store, open_cache(scored.store).members[0].as_member, 2, more.as_member)
    overrides = ["seq_len=64", "batch_size=8"]
    web = f"components.web={{cache: {scored.store}, snapshot: 3, after: 1}}"
    with load_config(overrides=[*overrides, web]).loader() as loader:
        assert (np.asarray(loader.batch_at(0).tokens) == 50_000).all()
    overrides[1:] = ["batch_size=96", "num_steps=20", "amendments=[{step: 1, caches: {web: 3}}]"]
    web = f"components.web={{cache: {scored.store}, snapshot: 1}}"
    with load_config(overrides=[*overrides, web]).loader() as loader:
        trained = [np.asarray(loader.batch_at(step).tokens) for step in range(20)]
    assert not (trained[0] == 50_000).any()
    assert (np.concatenate(trained[1:]) == 50_000).any()
    web = f"components.web={{cache: {scored.store}, snapshot: 2, after: 1}}"
    with pytest.raises(ConfigError, match="begins where nothing was appended"):
        load_config(overrides=[*overrides[:1], "batch_size=8", web]).dataset()


def test_scores_by_id_are_those_of_the_documents_wherever_they_lie(tmp_path, headrace):
    leaf = LeafSpec("id", "int64", "fixed")
    values = {leaf: lambda tokens: np.array([tokens[0] + 100], np.int64)}
    documents = [[np.full(3, k) for k in range(60)]]
    cache = write_cache(tmp_path / "cache", documents, vocab_size=60, leaves=values)
    command = ["cache", "reshuffle", cache.path, f"{tmp_path}/store", "--by", "score"]
    command += ["--attributes", f"score={tmp_path}/scores.jsonl"]
    scores = np.arange(60) % 3
    for update in ([], ["--update"]):
        rows = [f'{{"id": {k + 100}, "score": {scores[k]}}}' for k in range(60)]
        (tmp_path / "scores.jsonl").write_text("\n".join(rows))
        assert headrace(*command, *update).code == 0
        store = open_cache(tmp_path / "store")
        joined = open_attribute(store, "score", AttributeConfig(f"{tmp_path}/scores.jsonl"))
        assert (joined.values[store.stored_at(np.arange(60))] == scores).all()
        scores[::7] = 2 - scores[::7]
    assert store.moved_away.total == np.count_nonzero(np.arange(60)[::7] % 3 != 1)


@pytest.mark.parametrize(
    ("later", "moves"),
    [
        ({1: 1, 2: 2, 3: 3}, 3),
        ({1: 7, 2: 2, 3: 0}, 3),
        ({1: 2, 2: 3, 3: 4}, 3),
        ({1: 2, 2: 2, 3: 3}, 19),  # the smaller one of two that are one now
    ],
)
def test_a_group_that_comes_or_goes_moves_no_other(tmp_path, headrace, later, moves):
    """Without edges, each value is a group; three documents have one that was not there."""
    cache = numbered_cache(tmp_path / "cache", [3] * 60)
    command = ["cache", "reshuffle", cache.path, f"{tmp_path}/store"]
    command += ["--by", f"{tmp_path}/score.npy"]
    score = np.arange(60) % 3 + 1
    np.save(tmp_path / "score.npy", score)
    assert headrace(*command).code == 0
    new_score = np.vectorize(later.get)(score)
    new_score[[1, 2, 4]] = 1.5 if moves > 3 else 9
    np.save(tmp_path / "score.npy", new_score)
    assert json.loads(headrace(*command, "--update", "--json").out)["moved"] == moves
    copy = open_cache(tmp_path / "store")
    places = copy.stored_at(np.arange(60))
    for first, stop in pairwise(np.cumsum([0, *copy.part_documents]).tolist()):
        there = places[(places >= first) & (places < stop)]
        assert np.unique(new_score[copy.originals(there)]).size <= 1


def contents(folder: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "damaged",
    [
        ["parts/00002/input_ids/data/c/0"],
        ["appended/1/parts/00001/input_ids/data/c/0"],
        ["numbers.bin", "appended/1/numbers.bin"],
        ["places.bin", "appended/1/places.bin"],
        ["parts/00000/part.json", "appended/2/parts/00000/input_ids/offsets/c/0", "places.bin"],
    ],
)
def test_what_verify_prints_mends_a_store_that_was_updated(scored, headrace, damaged):
    """Whatever the scores are now, and also if the repair is killed."""
    assert headrace(*scored.command("later"), "--update").code == 0
    assert headrace(*scored.command("score"), "--update").code == 0
    (scored.folder / "score.npy").unlink()
    (scored.folder / "later.npy").unlink()
    sound = contents(scored.store)

    def repairs() -> list[str]:
        found = json.loads(headrace("cache", "verify", scored.store, "--deep", "--json").out)
        return [one["repair"] for one in (found, *found["appended"]) if one["repair"]]

    for file in damaged:
        (Path(scored.store) / file).write_bytes(b"damaged")
    commands = repairs()
    assert len(commands) == len({file.startswith("appended") and file[:10] for file in damaged})
    for command in commands:
        said = headrace(*shlex.split(command)[1:])
        assert said.code == 0, (command, said)
    assert contents(scored.store) == sound
    folders = {file.partition("parts/")[0] for file in damaged if "parts/" in file}
    for folder in folders:
        root = f"{scored.store}/{folder}".rstrip("/")
        invalidate(root, ["00000"])
        said = json.loads(headrace("cache", "inspect", root, "--json").out)["command"]
        repair = said if said.endswith("--repair") else f"{said} --repair"
        assert headrace(*shlex.split(repair)[1:]).code == 0
    assert contents(scored.store) == sound


def test_documents_that_are_removed_stay_removed(scored, headrace):
    gone = np.flatnonzero(scored.moves)[1:4]
    store = open_cache(scored.store)
    remove_documents(scored.store, store.members[0].as_member, Intervals.of_numbers(gone[:2]))
    assert headrace(*scored.command("later"), "--update").code == 0
    store = open_cache(scored.store)
    remove_documents(scored.store, store.members[0].as_member, Intervals.of_numbers(gone))
    assert open_cache(scored.store).removed().total == 3
    with scored.config("later").loader() as loader, loader.iter_from_step(0) as batches:
        for batch in batches:
            assert not np.isin(np.asarray(batch.tokens), gone).any()
    shown = headrace("cache", "inspect", scored.store, "--json")
    assert json.loads(shown.out)["documents"] == DOCUMENTS


def test_a_copy_for_levanter_has_each_document_once(scored, headrace):
    assert headrace(*scored.command("later"), "--update").code == 0
    assert headrace("cache", "remove", scored.store, "7", "4711").code == 0
    copy = f"{scored.folder}/theirs"
    assert headrace("cache", "convert", scored.store, copy).code == 0
    theirs = open_cache(copy)
    numbers = [int(theirs.document(k)[0]) for k in range(theirs.num_documents)]
    assert sorted(numbers) == sorted({*range(DOCUMENTS)} - {7, 4711})
    assert theirs.num_tokens == np.delete(scored.lengths, [7, 4711]).sum()


@pytest.mark.parametrize("copying", ["consolidate", "reshuffle"])
def test_a_copy_that_would_have_documents_twice_is_refused(scored, headrace, copying):
    assert headrace(*scored.command("later"), "--update").code == 0
    done = headrace("cache", copying, scored.store, f"{scored.folder}/again")
    assert done.code == 2
    said = " ".join(done.err.split())
    assert f"a copy would have them twice. Copy what it was made of: {scored.cache.path}." in said


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (["--update"], "--update = True: has no effect without --by"),
        (["--update", "--by", "length", "--edges", "9"], "output = .*: holds no store yet"),
    ],
)
def test_what_cannot_be_updated_is_named(tmp_path, headrace, change, problem):
    cache = tiny_cache(tmp_path / "cache", documents=20)
    done = headrace("cache", "reshuffle", cache.path, f"{tmp_path}/store", *change)
    assert done.code == 2
    assert re.search(problem, " ".join(done.err.split())), done.err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("kind", [[], ["--split", "8"], ["--pack", "64"]])
def test_stores_of_another_kind_are_refused_with_a_command_that_works(tmp_path, headrace, kind):
    cache = tiny_cache(tmp_path / "cache", documents=20)
    by = ["--by", "length", "--edges", "9"]
    store = f"{tmp_path}/store"
    kind = [*kind, *by] if "--split" in kind else kind
    assert headrace("cache", "reshuffle", cache.path, store, *kind).code == 0
    done = headrace("cache", "reshuffle", cache.path, store, *by, "--update")
    assert "is no store in groups" in done.err, done.err
    words = shlex.split(done.err.partition("beside it: headrace ")[2])
    assert headrace(*words).code == 0
    assert headrace(*words, "--update").code == 0


def test_settings_of_what_was_interrupted_are_refused_with_a_cure_that_works(scored, headrace):
    command = [*scored.command("later"), "--update"]
    assert headrace(*command).code == 0
    (Path(scored.store) / "snapshots.json").unlink()  # killed before it was listed
    np.save(scored.folder / "later.npy", np.where(np.arange(DOCUMENTS) < 9, 3, scored.later))
    done = headrace(*command)
    assert done.code == 2
    assert "pass --restart" in " ".join(done.err.split())
    assert headrace(*command, "--restart").code == 0
    assert "none of 6,000 documents" in headrace(*command).out


def test_a_cache_that_was_appended_to_moves_and_mends_what_was_copied_before(scored, headrace):
    more = [[np.full(40, 50_000)] * 20]
    layout = CacheLayout("uint16", 512, 4)
    folder = f"{scored.cache.path}/appended/1"
    new = write_cache(folder, more, vocab_size=60_000, layout=layout).as_member
    add_appended(scored.cache.path, scored.cache.as_member, 1, new)
    assert headrace(*scored.command("later"), "--update").code == 0
    sound = contents(scored.store)
    (Path(scored.store) / "parts/00002/input_ids/data/c/0").unlink()
    found = json.loads(headrace("cache", "verify", scored.store, "--json").out)
    assert headrace(*shlex.split(found["repair"])[1:]).code == 0
    assert contents(scored.store) == sound


def test_stores_of_another_cache_are_refused(tmp_path, headrace):
    cache = tiny_cache(tmp_path / "cache", documents=20)
    other = tiny_cache(tmp_path / "other", documents=20, seed=1)
    by = ["--by", "length", "--edges", "9"]
    store = f"{tmp_path}/store"
    assert headrace("cache", "reshuffle", cache.path, f"{store}2", *by).code == 0
    done = headrace("cache", "reshuffle", other.path, f"{store}2", *by, "--update")
    assert "is not a copy of" in " ".join(done.err.split())
