"""A store in groups: each group lies in parts of its own, shuffled in itself, and a run's buckets
read each chunk about once.
"""

import json
import re
import shlex
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace import load_config
from headrace.cli.inspect import build_command
from headrace.errors import CacheCorruptError, ConfigError, PlanMismatchError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.ingest.shuffle_plan import Grouping
from headrace.order.document_shuffle import DocumentShuffle
from headrace.store import CacheLayout, TokenCache, consolidate, open_cache, verify
from headrace.store.layout import LeafSpec
from headrace.store.ledger import read_ledger, write_ledger
from headrace.testing import tiny_cache, write_cache

SCORE = LeafSpec("score", "float32", "fixed")


def scored_cache(folder: Path, lengths: list[int], parts: int = 2, chunk: int = 64) -> TokenCache:
    """Document k has the tokens k, and a score of one of four."""
    numbers = np.array_split(np.arange(len(lengths)), parts)
    documents = [[np.full(lengths[k], k) for k in some.tolist()] for some in numbers]
    values = {SCORE: lambda tokens: np.array([tokens[0] % 4 / 4], np.float32)}
    layout = CacheLayout("uint16", chunk, 4)
    return write_cache(folder, documents, vocab_size=60_000, layout=layout, leaves=values)


def grouped(cache: TokenCache, output: Path, group: np.ndarray, **how: object) -> TokenCache:
    groups = Grouping(group.astype(np.uint8), ("--by", "score"))
    config = replace(ReshuffleConfig(seed=7, groups=groups), **how)  # pyright: ignore[reportArgumentType]
    report = reshuffle(cache, str(output), config, engine="inline", progress=False)
    return open_cache(report.path)


@settings(max_examples=15)
@given(data=st.data())
def test_each_group_is_a_shuffle_in_parts_of_its_own(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("grouped")
    documents = data.draw(st.integers(2, 40))
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=documents, max_size=documents))
    group = np.array(data.draw(st.lists(st.integers(0, 5), min_size=documents, max_size=documents)))
    cache = scored_cache(folder / "cache", lengths)
    split = data.draw(st.sampled_from([None, 32]))
    part_bytes = data.draw(st.integers(100, 5000))
    copy = grouped(cache, folder / "copy", group, part_bytes=part_bytes, split=split)
    # Each document whole, where the tables say
    for number in range(documents):
        places = copy.stored_at([number])
        assert (copy.originals(places) == number).all()
        found = np.concatenate([copy.document(place) for place in places.tolist()])
        assert found.tolist() == [number] * lengths[number]
    # Groups in order, each in the order of the shuffle, and no part with two groups
    stored = copy.originals(np.arange(copy.num_documents))
    assert (np.diff(group[stored]) >= 0).all()
    if split is None:
        rank = DocumentShuffle(documents, 7).stored_at(stored)
        same = np.diff(group[stored]) == 0
        assert (np.diff(rank)[same] > 0).all()
    borders = np.cumsum([0, *copy.part_documents]).tolist()
    assert all(np.unique(group[stored[a:b]]).size <= 1 for a, b in pairwise(borders))
    assert verify(copy.path, deep=True).damages == []
    # A shuffled copy gives the same groups, and one part has the same order
    moved = reshuffle(cache, str(folder / "moved"), ReshuffleConfig(3), progress=False).path
    moved_cache = open_cache(moved)
    of_moved = group[moved_cache.originals(np.arange(documents))]
    if split is None:
        again = grouped(moved_cache, folder / "again", of_moved)
        assert (again.originals(np.arange(documents)) == stored).all()
        whole = consolidate(copy, str(folder / "whole"))
        assert (whole.originals(np.arange(documents)) == stored).all()
        # And the groups are undone
        plain = reshuffle(copy, str(folder / "plain"), ReshuffleConfig(3), progress=False).path
        assert (
            open_cache(plain).document(5 % documents).tolist()
            == moved_cache.document(5 % documents).tolist()
        )
        assert open_cache(plain).is_mixed


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> TokenCache:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 3000).tolist()
    return scored_cache(tmp_path_factory.mktemp("scored") / "cache", lengths, chunk=1024)


BUCKETS = "buckets: {by: score, edges: [0.25, 0.5, 0.75], weights: [4, 3, 2, 1]}"


def overrides_of(cache: str, steps: int, memory: int = 60_000) -> list[str]:
    web = f"components.web={{cache: {cache}, shuffle: {{strands: 2}}, {BUCKETS}}}"
    settings = ["seq_len=64", "batch_size=16", f"num_steps={steps}", f"prefetch_bytes={memory}"]
    return [*settings, web]


def reads_and_tokens(cache: str, steps: int) -> tuple[int, list[np.ndarray]]:
    """Chunks that a run in buckets reads, and the documents of each bucket."""
    config = load_config(overrides=overrides_of(cache, steps))
    with config.loader() as loader, loader.iter_from_step(0) as batches:
        for _ in batches:
            pass
        reads = loader.stats().reads.block_fetches
    rows = [one.read(np.arange(len(one))).tokens for one in config.datasets().values()]
    return reads, [np.unique(one) for one in rows]


def test_buckets_of_a_store_in_groups_read_each_chunk_once(cache, tmp_path, headrace):
    said = headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--by", "score")
    assert said.code == 0
    copy = open_cache(tmp_path / "copy")
    assert copy.num_documents == cache.num_documents
    assert not copy.is_mixed
    steps = 80
    reads, tokens = reads_and_tokens(cache.path, steps)
    reads_of_copy, tokens_of_copy = reads_and_tokens(copy.path, steps)
    for bucket, both in enumerate(zip(tokens, tokens_of_copy, strict=True)):
        assert all((documents % 4 == bucket).all() for documents in both)
        assert np.intersect1d(*both).size > 0.9 * both[0].size  # some fill no row
    chunks = steps * 16 * 64 / 1024
    assert reads_of_copy <= 1.1 * chunks + 4 * 2 + 4  # strands, and the last chunk of each group
    assert reads > 2 * reads_of_copy


def test_the_same_command_goes_on_and_another_is_refused(cache, tmp_path, headrace):
    command = ["cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--by", "score"]
    command += ["--edges", "0.25,0.5", "--part-bytes", "9000"]
    assert headrace(*command).code == 0
    before = {p: p.read_bytes() for p in (tmp_path / "copy").rglob("*") if p.is_file()}
    ledger = read_ledger(f"{tmp_path}/copy")
    assert ledger is not None
    shuffled = ledger.metadata["shuffled"]
    assert sum(shuffled["groups"]) == cache.num_documents
    # Killed behind a part: the command that inspect names finishes it
    begun = {**ledger.metadata, "shuffled": {k: v for k, v in shuffled.items() if k != "tables"}}
    unfinished = structs.replace(ledger, finished=False, parts=[], metadata=begun)
    write_ledger(f"{tmp_path}/copy", unfinished)
    (tmp_path / "copy/parts/00001/part.json").unlink()
    (tmp_path / "copy/places.bin").unlink()
    words = build_command(f"{tmp_path}/copy", unfinished).split()
    assert words[-4:] == ["--by", "score", "--edges", "0.25,0.5"]
    done = headrace(*words[1:])
    assert done.code == 0
    assert "1 part in" in done.out
    after = {p: p.read_bytes() for p in (tmp_path / "copy").rglob("*") if p.is_file()}
    assert after == before
    groups = Grouping(np.zeros(cache.num_documents, np.uint8))
    how = ReshuffleConfig(0, part_bytes=9000, groups=groups)
    with pytest.raises(PlanMismatchError, match="groups_digest"):
        reshuffle(cache, f"{tmp_path}/copy", how, progress=False)


@pytest.mark.parametrize("name", ["places", "numbers"])
@pytest.mark.parametrize("way", ["cut", "changed", "gone"])
def test_a_damaged_table_is_found_and_written_anew(cache, tmp_path, headrace, name, way):
    command = ["cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--by", "score"]
    assert headrace(*command).code == 0
    table = tmp_path / "copy" / f"{name}.bin"
    right = table.read_bytes()
    wrong = {"cut": right[:-5], "changed": bytes([right[0] ^ 1, *right[1:]]), "gone": b""}[way]
    table.write_bytes(wrong)
    if way == "gone":
        table.unlink()
    done = headrace("cache", "verify", f"{tmp_path}/copy")
    assert done.code == 1
    assert f"{name}.bin" in done.out
    copy = open_cache(tmp_path / "copy")
    with pytest.raises(CacheCorruptError, match="reshuffle command of this store again"):
        copy.originals(copy.stored_at([*range(cache.num_documents)]))
    assert headrace(*command).code == 0
    assert table.read_bytes() == right
    assert headrace("cache", "verify", f"{tmp_path}/copy", "--deep").code == 0


def test_tables_that_contradict_each_other_are_found(cache, tmp_path):
    copy = grouped(cache, tmp_path / "copy", np.arange(3000) % 2)
    ledger = read_ledger(copy.path)
    assert ledger is not None
    tables = ledger.metadata["shuffled"]["tables"]
    tables["places"] = tables["numbers"]
    (tmp_path / "copy/places.bin").write_bytes((tmp_path / "copy/numbers.bin").read_bytes())
    write_ledger(copy.path, ledger)
    (damage,) = verify(copy.path).damages
    assert "contradicts" in damage.problem


def test_numbers_refer_to_the_original(cache, tmp_path, headrace):
    """Filters, attributes by number and inspect."""
    copy = grouped(cache, tmp_path / "copy", np.arange(3000) % 4)
    (tmp_path / "out.txt").write_text("0\n17\n")
    removing = f"components={{a: {{cache: {copy.path}, remove: {tmp_path}/out.txt}}}}"
    account = load_config(overrides=["seq_len=8", removing]).accounts()["a"]
    tokens = sum(cache.document(k).size for k in (0, 17))
    assert account.to_dict()["removed_tokens"] == tokens
    np.save(tmp_path / "number.npy", np.arange(3000))
    option = f"number={tmp_path}/number.npy"
    done = headrace("cache", "inspect", copy.path, "--document", "17", "--json")
    assert json.loads(done.out)["samples"][0]["document"] == 17
    groups = f"{tmp_path}/again", "--by", "number", "--quantiles", "0.5", "--attributes", option
    assert headrace("cache", "reshuffle", copy.path, *groups).code == 0
    again = open_cache(tmp_path / "again")
    assert (again.originals(np.arange(1499)) < 1500).all()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--edges", "0.5"], "--edges = '0.5': has no effect without --by"),
        (["--attributes", "a=b.npy"], "--attributes = 'a=b.npy': has no effect without --by"),
        (["--by", "scor"], "--by = 'scor': is neither .* Did you mean 'score'"),
        (["--by", "length", "--edges", "a"], "--edges = 'a': is not a list of numbers"),
        (["--by", "length", "--edges", "9,3"], "--edges = '9,3': must be rising"),
        (
            ["--by", "length", "--edges", "9", "--quantiles", "0.5"],
            "--quantiles = '0.5': is given beside",
        ),
        (["--by", "a.npy"], "--by = 'a.npy': does not exist"),
        (["--by", "a", "--attributes", "a=a.npy"], "--attributes a.files = 'a.npy': names no file"),
        (["--by", "score", "--unit", "2"], "by = '--by score': parts documents"),
    ],
)
def test_wrong_groups_are_named(cache, tmp_path, headrace, options, problem):
    done = headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", *options)
    assert done.code == 2
    assert re.search(problem, " ".join(done.err.split())), done.err
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(("leaf", "cure"), [("chosen", False), ("other", True)])
def test_documents_that_stay_together_have_one_group_and_the_cure_works(
    tmp_path, headrace, leaf, cure
):
    values = {LeafSpec(leaf, "uint8", "fixed"): lambda tokens: tokens[:1] % 2}
    documents = [[np.full(3, k) for k in range(40)]]
    cache = write_cache(tmp_path / "pairs", documents, leaves=values)
    np.save(tmp_path / "score.npy", np.arange(40) % 3)
    command = ["cache", "reshuffle", cache.path, f"{tmp_path}/store"]
    command += ["--by", f"{tmp_path}/score.npy", *([] if leaf == "chosen" else ["--unit", "2"])]
    done = headrace(*command)
    assert (done.code, "--unit 1" in done.err) == (2, cure)
    if cure:
        assert headrace(*command[:-1], "1").code == 0
    np.save(tmp_path / "score.npy", np.arange(40) // 2 % 3)
    assert headrace(*command, *(["--restart"] if cure else [])).code == 0
    np.save(tmp_path / "score.npy", np.arange(40) % 3)
    done = headrace(*command, "--update")
    assert (done.code, "parts documents that stay" in done.err, "--unit 1" in done.err) == (2, 1, 0)


def test_too_many_values_and_one_value_are_refused(cache, tmp_path, headrace):
    for numbers, problem in ((np.arange(3000), "more than 255"), (np.ones(3000), "the same for")):
        np.save(tmp_path / "a.npy", numbers)
        options = f"{tmp_path}/copy", "--by", f"{tmp_path}/a.npy"
        done = headrace("cache", "reshuffle", cache.path, *options)
        assert done.code == 2
        assert problem in " ".join(done.err.split())
    np.save(tmp_path / "a.npy", np.arange(3000))
    cure = "--quantiles", "0.25,0.5,0.75"
    assert headrace("cache", "reshuffle", cache.path, *options, *cure).code == 0


def test_groups_of_another_number_of_documents_are_refused(tmp_path):
    cache = tiny_cache(tmp_path / "cache", documents=6)
    with pytest.raises(ConfigError, match=r"has 3 documents, and .* has 6"):
        grouped(cache, tmp_path / "copy", np.zeros(3))


@pytest.mark.parametrize(
    ("way", "buckets"),
    [
        ("leaf", BUCKETS),
        ("quantiles", "buckets: {by: score, quantiles: [0.3, 0.6]}"),
        ("attribute", "attributes: {kind: scores.npy}, buckets: {by: kind, edges: [1, 3]}"),
        ("levels", "buckets: {by: scores.npy, levels: [1, 2, 3]}"),
        ("caches", "buckets: {by: score, edges: [0.25, 0.5], weights: [4, 2, 1]}"),
        ("format", "buckets: {by: scores.npy, edges: [1, 2], weights: [4, 2, 1]}"),
    ],
)
def test_check_says_what_buckets_cost_and_its_cure_works(
    cache, tmp_path, headrace, monkeypatch, way, buckets
):
    monkeypatch.chdir(tmp_path)
    np.save("scores.npy", np.arange(3000) % 4)
    shutil.copytree(cache.path, "plain")
    paths = "plain"
    extra = ""
    if way == "caches":
        shutil.copytree(cache.path, "more")
        paths = "[plain, more]"
    if way == "format":
        assert headrace("cache", "convert", "plain", "exported").code == 0
        paths = "exported"
        extra = "format: {name: levanter, eos_id: 0}, "
    Path("run.yaml").write_text("seq_len: 64\n")

    def check(caches: str, extra: str = "") -> list[dict[str, str]]:
        config = overrides_of(caches, 80, {"levels": 30_000, "format": 120_000}.get(way, 60_000))
        config[-1] = config[-1].replace(BUCKETS, f"{extra}{buckets}")
        if way == "levels":
            config[-1] = config[-1].replace("shuffle", "weight: {repeat: 1}, shuffle")
        done = headrace("config", "check", "run.yaml", *config, "--json")
        findings = json.loads(done.out)["findings"]
        return [one for one in findings if one["rule"] == "scattered_buckets"]

    (finding,) = check(paths, extra)
    assert finding["field"] == "components.web.buckets"
    problem = "read each chunk [1-9].[0-9] times on 1 host|need more open chunks than memory holds"
    assert re.search(problem, finding["problem"])
    commands = finding["cure"].partition("cache: ")[2].split(" && ")
    outputs: list[str] = []
    for command in commands:
        words = shlex.split(command)
        said = headrace(*words[1:])
        assert said.code == 0, said
        outputs.append(words[4])
    assert check(f"[{', '.join(outputs)}]") == []
    (Path(outputs[0]) / "parts/00000/input_ids/data/c/0").unlink()
    damaged = headrace("cache", "verify", outputs[0], "--json")
    assert headrace(*shlex.split(json.loads(damaged.out)["repair"])[1:]).code == 0
    assert headrace("cache", "verify", outputs[0], "--deep").code == 0


def test_check_says_why_no_command_groups_several_caches(cache, tmp_path, headrace, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "more"):
        shutil.copytree(cache.path, name)
    Path("run.yaml").write_text("seq_len: 64\n")
    config = overrides_of("[plain, more]", 80, 30_000)
    config[-1] = config[-1].replace(BUCKETS, "buckets: {by: score, quantiles: [0.3, 0.6]}")
    done = headrace("config", "check", "run.yaml", *config, "--json")
    findings = json.loads(done.out)["findings"]
    (finding,) = (one for one in findings if one["rule"] == "scattered_buckets")
    assert "Group each of its caches by itself" in finding["cure"]
