"""``headrace cache pack``: the plan is saved where training looks for it, and the figures
are the plan's.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError
from headrace.pack import plan_packs
from headrace.testing import tiny_cache

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return tiny_cache(tmp_path / "c", documents=300, parts=2).path


def test_the_plan_is_the_one_that_training_opens(headrace: Run, cache: str):
    code, out, err = headrace("cache", "pack", cache, "-s", "64", "-a", "bfd", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    plan = PackedTokenDataset(cache, 64, algorithm="bfd").plan
    assert facts["checksum"] == plan.checksum
    assert [p.name for p in Path(cache, "plans").iterdir()] == [Path(facts["plan"]).name]
    assert (facts["packs"], facts["counts"]["packed_tokens"]) == (len(plan), plan.counts.tokens)
    assert facts["padding_tokens"] == len(plan) * 64 - plan.counts.tokens
    assert sum(one["packs"] for one in facts["fill_histogram"]) == len(plan)
    full = int((plan.lengths == 64).sum())
    assert facts["fill_histogram"][-1] == {"from": 1.0, "packs": full, "share": full / len(plan)}
    assert facts["documents_a_pack"]["mean"] == pytest.approx(plan.items.size.size / len(plan))


def test_in_words(headrace: Run, cache: str, tmp_path: Path):
    (tmp_path / "ids.txt").write_text("3\n5\n")
    code, out, _ = headrace(
        "cache", "pack", cache, "-s", "32", "--long", "truncate", "--remove", f"{tmp_path}/ids.txt"
    )
    assert code == 0
    assert "a step of B rows has B packs" in out
    assert "removed    2 documents" in out
    assert "without tokens" not in out
    assert "truncated" in out
    assert "packs by fill" in out


def test_alignment_to_ranks(headrace: Run, cache: str):
    packs = len(PackedTokenDataset(cache, 64).plan)
    _, out, _ = headrace("cache", "pack", cache, "-s", "64", "--ranks", str(packs - 1), "--json")
    aligned = json.loads(out)["aligned"]
    assert (aligned["N_raw_packs"], aligned["N_aligned_packs"]) == (packs, 2 * packs - 2)
    assert aligned["pad_needed"] == packs - 2
    _, out, _ = headrace(
        "cache", "pack", cache, "-s", "64", "--ranks", str(packs - 1), "--drop-last"
    )
    assert "1 dropped" in out
    with pytest.raises(
        ConfigError, match="repeats packs"
    ):  # main() shows it, and ends with status 2
        PackedTokenDataset(cache, 64).plan.aligned_plan(packs + 1, drop_last=True)
    assert (
        headrace("cache", "pack", cache, "-s", "64", "--ranks", str(packs + 1), "--drop-last")[0]
        == 2
    )


def test_comparing_saves_nothing(headrace: Run, cache: str):
    _, out, _ = headrace("cache", "pack", cache, "-s", "64", "--compare", "--json")
    rows = {one["algorithm"]: one for one in json.loads(out)}
    lengths = np.concatenate(
        [PackedTokenDataset(cache, 64, plans=f"{cache}-else").cache.lengths(0, 300)]
    )
    assert rows["bfd"]["packs"] == len(plan_packs(lengths, 64, "bfd", "split"))
    assert rows["wrap"]["fill"] >= rows["bfd"]["fill"] >= rows["next_fit"]["fill"]
    assert rows["windowed"]["blocks_a_pack"] <= rows["bfd"]["blocks_a_pack"]
    assert not Path(cache, "plans").exists()
    assert (
        "blocks per pack"
        in headrace("cache", "pack", cache, "-s", "64", "--compare", "--long", "drop")[1]
    )


def test_units(headrace: Run, cache: str):
    dropping = ("cache", "pack", cache, "-s", "64", "--long", "drop", "--unit", "2")
    facts = json.loads(headrace(*dropping, "--json")[1])
    plan = PackedTokenDataset(cache, 64, long="drop", unit=2).plan
    assert facts["checksum"] == plan.checksum
    assert facts["counts"]["documents"] == 300
    rows = json.loads(headrace(*dropping, "--compare", "--json")[1])
    assert {one["algorithm"] for one in rows} == {"bfd", "wfd", "ffd", "next_fit", "windowed"}
    assert next(one for one in rows if one["algorithm"] == "windowed")["packs"] == len(plan)
    alone = headrace("cache", "pack", cache, "-s", "64", "--unit", "2", "--json")
    assert json.loads(alone[1])["checksum"] == plan.checksum


def test_documents_that_are_alone_in_their_unit_are_counted(
    headrace: Run, cache: str, tmp_path: Path
):
    (tmp_path / "ids.txt").write_text("3\n5\n8\n9\n")  # of 2 and 4 the partner is removed
    units = (
        "cache",
        "pack",
        cache,
        "-s",
        "64",
        "--long",
        "drop",
        "--unit",
        "2",
        "--remove",
        f"{tmp_path}/ids.txt",
    )
    facts = json.loads(headrace(*units, "--json")[1])
    rows = PackedTokenDataset(cache, 64, long="drop", unit=2)
    alone = int(rows.cache.lengths(2, 3)[0] + rows.cache.lengths(4, 5)[0])
    assert (
        facts["removed_documents"],
        facts["incomplete_documents"],
        facts["incomplete_tokens"],
    ) == (4, 2, alone)
    assert facts["counts"]["tokens"] + facts["removed_tokens"] + alone == rows.cache.num_tokens
    out = headrace(*units)[1]
    assert "removed     4 documents" in out
    assert f"incomplete  2 documents, {alone} tokens: other documents of their units" in out
    assert "without tokens" not in out
    lost = facts["incomplete_tokens"] + facts["counts"]["dropped_tokens"]
    assert {
        one["lost_tokens"] for one in json.loads(headrace(*units, "--compare", "--json")[1])
    } == {lost}


def test_long_documents_are_kept_whole(headrace: Run, cache: str):
    kept = ("cache", "pack", cache, "-s", "128", "--long", "keep", "--capacity", "32")
    rows = PackedTokenDataset(cache, 128, long="keep", capacity=32)
    facts = json.loads(headrace(*kept, "--json")[1])
    assert facts["checksum"] == rows.plan.checksum
    assert (facts["spec"]["capacity"], facts["spec"]["row_tokens"]) == (32, 128)
    assert facts["counts"]["packed_tokens"] == rows.cache.num_tokens
    assert facts["counts"]["long_documents"] == int((rows.plan.lengths > 32).sum()) > 0
    assert facts["padding_tokens"] == len(rows) * 128 - rows.cache.num_tokens
    assert facts["fill"] == pytest.approx(rows.cache.num_tokens / (len(rows) * 128), abs=1e-6)
    assert f"{len(rows):,} of 32 tokens in rows of 128 (windowed)" in headrace(*kept)[1]
    compared = json.loads(headrace(*kept, "--compare", "--json")[1])
    windowed = next(one for one in compared if one["algorithm"] == "windowed")
    assert (windowed["packs"], windowed["lost_tokens"]) == (len(rows), 0)


def test_plans_of_a_config(headrace: Run, cache: str, tmp_path: Path):
    text = (
        f"seq_len: 64\ncomponents:\n  a: {{cache: {cache}, packing: {{}}}}\n  b: {{cache:"
        f" {cache}}}\n"
    )
    (tmp_path / "run.yaml").write_text(text)
    code, out, _ = headrace("cache", "pack", str(tmp_path / "run.yaml"), "seq_len=128", "--json")
    facts = json.loads(out)
    assert code == 0
    assert [*facts] == ["a"]
    assert facts["a"]["spec"]["capacity"] == 128
    assert "a: " in headrace("cache", "pack", str(tmp_path / "run.yaml"))[1]
    code, _, err = headrace(
        "cache", "pack", str(tmp_path / "run.yaml"), "components.a.packing=null"
    )
    assert code == 2
    assert "no component is packed" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-a", "bdf"], "Did you mean 'bfd'"),
        (["-s", "8", "--long", "keep"], "is longer than a row of 8 tokens"),
        (["-s", "8", "--capacity", "9"], "Give at most 8"),
        (["--min-fill", "2"], "share of the capacity"),
        (["-s", "8", "--long", "error"], "is longer than a pack of 8 tokens"),
        (["-s", "1"], "at least 2"),
        (["--remove", "nowhere.txt"], "--remove"),
    ],
)
def test_what_cannot_be_is_said(headrace: Run, cache: str, arguments: list[str], said: str):
    code, out, err = headrace("cache", "pack", cache, *arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
