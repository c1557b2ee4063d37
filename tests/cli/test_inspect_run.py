"""``headrace run tree`` of a config, and ``headrace cache inspect`` of a filter: every token is
somewhere, every filtered document is counted.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigError
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
    code, out, err = headrace("run", "tree", run_yaml, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    for one in facts["components"].values():
        held = one["train_tokens"] + one["validation_tokens"]
        assert held + one["removed_tokens"] + one["dropped_tokens"] == one["tokens"]
        assert min(one["validation_tokens"], one["strands"], one["open_bytes"]) > 0
    a = facts["components"]["a"]
    counts = [a[f"{k}_documents"] for k in ("listed", "repeated", "not_found", "removed")]
    assert counts == [4, 1, 1, 2]
    assert a["removed_tokens"] > 0
    assert sum(facts["stages"][0]["weights"].values()) == pytest.approx(1)


def test_documents_that_are_alone_in_their_unit_are_said(headrace: Run, run_yaml: str):
    settings = [run_yaml, "components.a.packing={unit: 2, long: drop}", "seq_len=128"]
    a = json.loads(headrace("run", "tree", *settings, "--json")[1])["components"]["a"]
    assert a["incomplete_documents"] == 2  # 2 and 4, as 3 and 5 are removed
    assert 0 < a["incomplete_tokens"] <= a["dropped_tokens"]
    assert (
        f"a: 2 documents with {a['incomplete_tokens']:,} tokens are in no row"
        in headrace("run", "tree", *settings)[1]
    )


def test_a_filter_is_told_in_words(headrace: Run, run_yaml: str, tmp_path: Path):
    _, out, _ = headrace("run", "tree", run_yaml, "batch_size=16")
    assert "a: the filter lists 4 documents (1 repeated, 1 not found) and removes 2 with" in out
    assert "weights from step 0" in out
    code, out, _ = headrace(
        "cache",
        "inspect",
        str(tmp_path / "b"),
        "--samples",
        "0",
        "--remove",
        str(tmp_path / "ids.txt"),
    )
    assert code == 0
    assert "the filter lists 4 documents (1 repeated, 1 not found) and removes 2 with" in out


def test_numbers_that_no_document_has_are_refused_unless_they_may_be_counted(run_yaml: str):
    from headrace import load_config

    with pytest.raises(ConfigError, match="the cache has 200") as caught:
        load_config(run_yaml, ["components.a.remove_not_found=refuse"]).datasets()
    assert (caught.value.field, caught.value.value) == ("components.a.remove", 9999)
