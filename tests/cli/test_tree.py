"""``headrace run tree`` of a config, and ``headrace cache inspect`` of a filter: every token is
somewhere, every filtered document is counted.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace import load_config, open_run
from headrace.errors import ConfigError
from headrace.store import open_cache
from headrace.testing import tiny_cache

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_yaml(tmp_path: Path) -> str:
    for k, name in enumerate("ab"):
        tiny_cache(tmp_path / name, documents=200, parts=2, seed=k)
    (tmp_path / "ids.txt").write_text("3\n5\n3\n9999\n")
    (tmp_path / "run.yaml").write_text(
        "seq_len: 16\nbatch_size: 8\nvalidation: {one_in: 10}\nweights: {temperature:"
        " 2}\ncomponents:\n"
        f"  a: {{cache: {tmp_path}/a, remove: {tmp_path}/ids.txt, remove_not_found: count}}\n"
        f"  b: {{cache: {tmp_path}/b}}\n"
    )
    return str(tmp_path / "run.yaml")


def test_every_token_of_a_config_is_accounted_for(headrace: Run, run_yaml: str):
    code, out, err = headrace("run", "tree", run_yaml, "num_steps=20", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    for one in facts["sources"].values():
        account = one["account"]
        held = account["train_tokens"] + account["validation_tokens"]
        kept = held + account["removed_tokens"] + account["dropped_tokens"]
        assert kept == account["tokens"] == one["cache"]["tokens"]
        assert one["rows"]["rows"] == account["train_rows"]
        assert min(account["validation_tokens"], one["order"]["strands"]) > 0
    a = facts["sources"]["a"]["account"]
    counts = [a[f"{k}_documents"] for k in ("listed", "repeated", "not_found", "removed")]
    assert counts == [4, 1, 1, 2]
    assert a["removed_tokens"] > 0
    assert sum(facts["stages"][0]["weights"].values()) == pytest.approx(1)
    assert (
        facts["tokens"]
        == 20 * 8 * 16
        == sum(one["drawn"]["tokens"] for one in facts["sources"].values())
    )


def test_the_folder_of_a_run_is_enough(headrace: Run, run_yaml: str, tmp_path: Path):
    open_run(str(tmp_path / "run"), load_config(run_yaml))
    of_config = json.loads(headrace("run", "tree", run_yaml, "--json")[1])
    run = str(tmp_path / "run")
    assert json.loads(headrace("run", "tree", run, "--json")[1]) == of_config
    for question in ("where", "cat"):
        asked = headrace("run", question, run_yaml, "--step", "3", "--json")
        assert headrace("run", question, run, "--step", "3", "--json") == asked
    code, _, err = headrace("run", "tree", str(tmp_path / "a"))
    assert code == 2
    assert "is not the folder of a run" in err


def test_a_run_that_was_amended_is_shown_as_it_goes_on(
    headrace: Run, run_yaml: str, tmp_path: Path
):
    run = str(tmp_path / "run")
    open_run(run, load_config(run_yaml)).amend(9, drop=["b"], done=0)
    assert headrace("cache", "remove", str(tmp_path / "a"), "7")[0] == 0
    amended = json.loads(headrace("run", "tree", run, "num_steps=10", "--json")[1])
    assert [stage["step"] for stage in amended["stages"]] == [0, 9]
    assert not amended["sources"]["a"]["erased"]
    assert headrace("run", "where", run, "--step", "10")[0] == 0


@pytest.mark.parametrize("packing", ["null", "{algorithm: next_fit}"])
def test_removed_documents_are_those_of_the_run(
    headrace: Run, run_yaml: str, tmp_path: Path, packing: str
):
    packed = f"components.b.packing={packing}"
    assert headrace("cache", "remove", str(tmp_path / "b"), "7", "9")[0] == 0
    removed_tokens = int(open_cache(tmp_path / "b").lengths(0, 10)[[7, 9]].sum())
    out = headrace("run", "tree", run_yaml, packed)[1]
    assert f"removed  2 documents, {removed_tokens} tokens: their places in the rows stay" in out
    facts = json.loads(headrace("run", "tree", run_yaml, packed, "--json")[1])
    assert facts["sources"]["b"]["erased"] == [
        {"step": 0, "documents": 2, "tokens": removed_tokens}
    ]
    out = headrace("run", "tree", run_yaml, packed, "components.b.snapshot=1")[1]
    assert "removed  " not in out


def test_tokens_left_out_by_a_change_of_seq_len_are_shown(headrace: Run, run_yaml: str):
    changing = ("num_steps=10", "validation=null", "seq_len={0: 16, 5: 64}")
    facts = json.loads(headrace("run", "tree", run_yaml, *changing, "--json")[1])
    out = headrace("run", "tree", run_yaml, *changing)[1]
    assert set(facts["skipped_tokens"]) == {"a at step 5", "b at step 5"}
    for where, tokens in facts["skipped_tokens"].items():
        assert f"{where}: {tokens:,} tokens skipped by the change of seq_len" in out


def test_hundreds_of_sources_are_readable(headrace: Run, tmp_path: Path):
    sources = {
        f"{group}_{k}": {"cache": f"gone/{group}{k}", "expected_tokens": 10**6, "weight": 1 + k}
        for group in ("web", "code", "books", "math")
        for k in range(50)
    }
    config = tmp_path / "many.yaml"
    fields = {"seq_len": 16, "batch_size": 400, "num_steps": 10, "components": sources}
    config.write_text(json.dumps(fields))
    _, folded, _ = headrace("run", "tree", str(config))
    assert len(folded.splitlines()) == 200 + 5
    assert "web_1  0.04% at first, " in folded
    _, whole, _ = headrace("run", "tree", str(config), "--all")
    assert all(f"{name}  " in whole for name in sources)
    assert whole.count("rows  windows of 16 tokens: 62,500 rows, 1,000,000 tokens") == 200


def test_documents_that_are_alone_in_their_unit_are_said(headrace: Run, run_yaml: str):
    settings = [run_yaml, "components.a.packing={unit: 2, long: drop}", "seq_len=128"]
    a = json.loads(headrace("run", "tree", *settings, "--json")[1])["sources"]["a"]["account"]
    assert a["incomplete_documents"] == 2  # 2 and 4, as 3 and 5 are removed
    assert 0 < a["incomplete_tokens"] <= a["dropped_tokens"]
    assert (
        f"incomplete  2 documents with {a['incomplete_tokens']:,} tokens"
        in headrace("run", "tree", *settings)[1]
    )


def test_a_filter_is_told_in_words(headrace: Run, run_yaml: str):
    _, out, _ = headrace("run", "tree", run_yaml, "batch_size=16")
    assert "the filter lists 4 documents (1 repeated, 1 not found) and removes 2 with" in out
    assert "from step 0: a " in out


def test_numbers_that_no_document_has_are_refused_unless_they_may_be_counted(run_yaml: str):
    with pytest.raises(ConfigError, match="the cache has 200") as caught:
        load_config(run_yaml, ["components.a.remove_not_found=refuse"]).datasets()
    assert (caught.value.field, caught.value.value) == ("components.a.remove", 9999)


def test_sources_with_the_documents_of_another_run_are_named(
    headrace: Run, run_yaml: str, tmp_path: Path
):
    scores = tmp_path / "scores.npy"
    run = str(tmp_path / "run")

    def alike(target: str, edges: list[int], other: str) -> dict[str, list[str]]:
        divided = f"components.b.buckets={{by: {scores}, edges: {edges}}}"
        asked = ("run", "tree", target, "weights=null", divided, "--like", other, "--json")
        return {
            name: one["like"] for name, one in json.loads(headrace(*asked)[1])["sources"].items()
        }

    np.save(scores, np.arange(200))
    plain = alike(run_yaml, [100], run_yaml)
    assert plain == {"a": ["a"], "b/0": [], "b/1": []}
    divided = f"components.b.buckets={{by: {scores}, edges: [50, 100]}}"
    open_run(run, load_config(run_yaml, ["weights=null", divided]))
    moved = np.arange(200)
    moved[:20] = 60
    np.save(scores, moved)  # the lock tells what the run's buckets were
    assert alike(run_yaml, [50, 100], run) == {"a": ["a"], "b/0": [], "b/1": [], "b/2": ["b/2"]}
    assert alike(run_yaml, [100], run) == {"a": ["a"], "b/0": [], "b/1": ["b/2"]}
    out = headrace("run", "tree", run_yaml, "weights=null", divided, "--like", run)[1]
    assert "documents  those of b/2 there" in out
    assert "documents  those of no source there" in out


def test_a_lock_of_an_earlier_release_has_no_digests_and_its_config_is_asked(
    headrace: Run, run_yaml: str, tmp_path: Path
):
    run = str(tmp_path / "run")
    lock = open_run(run, load_config(run_yaml)).lock
    dataclasses.replace(lock, documents={}).save(run)
    facts = json.loads(headrace("run", "tree", run_yaml, "--like", run, "--json")[1])
    assert {name: one["like"] for name, one in facts["sources"].items()} == {"a": ["a"], "b": ["b"]}
    assert {name: one["documents_digest"] for name, one in facts["sources"].items()} == (
        lock.documents
    )
