"""``headrace cache pack``: the plan is saved where training looks for it, and the figures
are the plan's.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError
from headrace.testing import tiny_cache

Run = Callable[..., tuple[int, str, str]]
Pack = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return tiny_cache(tmp_path / "c", documents=300, parts=2).path


@pytest.fixture
def pack(headrace: Run, cache: str, tmp_path: Path) -> Pack:
    """``pack("packing.long=drop", "--json")``: plans rows of 64 tokens."""
    config = tmp_path / "run.yaml"
    config.write_text(f"{{seq_len: 64, components: {{a: {{cache: {cache}, packing: {{}}}}}}}}")

    def run(*arguments: str) -> tuple[int, str, str]:
        return headrace(
            "cache",
            "pack",
            str(config),
            *(re.sub("^(packing|remove)", r"components.a.\1", one) for one in arguments),
        )

    return run


def facts_of(done: tuple[int, str, str]) -> dict[str, Any]:
    assert done[0] == 0, done
    return json.loads(done[1])["a"]


def test_the_plan_is_the_one_that_training_opens(pack: Pack, cache: str):
    code, out, err = pack("packing.algorithm=bfd", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)["a"]
    plan = PackedTokenDataset(cache, 64, algorithm="bfd").plan
    assert facts["checksum"] == plan.checksum
    assert [p.name for p in Path(cache, "plans").iterdir()] == [Path(facts["plan"]).name]
    assert (facts["packs"], facts["counts"]["packed_tokens"]) == (len(plan), plan.counts.tokens)
    assert facts["padding_tokens"] == len(plan) * 64 - plan.counts.tokens
    assert sum(one["packs"] for one in facts["fill_histogram"]) == len(plan)
    full = int((plan.lengths == 64).sum())
    assert facts["fill_histogram"][-1] == {"from": 1.0, "packs": full, "share": full / len(plan)}
    assert facts["documents_a_pack"]["mean"] == pytest.approx(plan.items.size.size / len(plan))


def test_in_words(pack: Pack, tmp_path: Path):
    (tmp_path / "ids.txt").write_text("3\n5\n")
    code, out, _ = pack("packing.long=truncate", "seq_len=32", f"remove={tmp_path}/ids.txt")
    assert code == 0
    assert "a step of B rows has B packs" in out
    assert "removed    2 documents" in out
    assert "without tokens" not in out
    assert "truncated" in out
    assert "packs by fill" in out


def test_alignment_to_ranks(pack: Pack, cache: str):
    packs = len(PackedTokenDataset(cache, 64).plan)
    aligned = facts_of(pack("--ranks", str(packs - 1), "--json"))["aligned"]
    assert (aligned["N_raw_packs"], aligned["N_aligned_packs"]) == (packs, 2 * packs - 2)
    assert aligned["pad_needed"] == packs - 2
    assert "1 dropped" in pack("--ranks", str(packs - 1), "--drop-last")[1]
    with pytest.raises(ConfigError, match="repeats packs"):
        PackedTokenDataset(cache, 64).plan.aligned_plan(packs + 1, drop_last=True)
    assert pack("--ranks", str(packs + 1), "--drop-last")[0] == 2


def test_documents_that_are_alone_in_their_unit_are_counted(pack: Pack, cache: str, tmp_path: Path):
    (tmp_path / "ids.txt").write_text("3\n5\n8\n9\n")  # of 2 and 4 the partner is removed
    units = ("packing.long=drop", "packing.unit=2", f"remove={tmp_path}/ids.txt")
    facts = facts_of(pack(*units, "--json"))
    rows = PackedTokenDataset(cache, 64, long="drop", unit=2)
    alone = int(rows.cache.lengths(2, 3)[0] + rows.cache.lengths(4, 5)[0])
    assert (
        facts["removed_documents"],
        facts["incomplete_documents"],
        facts["incomplete_tokens"],
    ) == (4, 2, alone)
    assert facts["counts"]["tokens"] + facts["removed_tokens"] + alone == rows.cache.num_tokens
    out = pack(*units)[1]
    assert "removed     4 documents" in out
    assert f"incomplete  2 documents, {alone} tokens: other documents of their units" in out
    assert "without tokens" not in out


def test_long_documents_are_kept_whole(pack: Pack, cache: str):
    kept = ("packing.long=keep", "packing.capacity=32", "seq_len=128")
    rows = PackedTokenDataset(cache, 128, long="keep", capacity=32)
    facts = facts_of(pack(*kept, "--json"))
    assert facts["checksum"] == rows.plan.checksum
    assert (facts["spec"]["capacity"], facts["spec"]["row_tokens"]) == (32, 128)
    assert facts["counts"]["packed_tokens"] == rows.cache.num_tokens
    assert facts["counts"]["long_documents"] == int((rows.plan.lengths > 32).sum()) > 0
    assert facts["padding_tokens"] == len(rows) * 128 - rows.cache.num_tokens
    assert facts["fill"] == pytest.approx(rows.cache.num_tokens / (len(rows) * 128), abs=1e-6)
    assert f"{len(rows):,} of 32 tokens in rows of 128 (windowed)" in pack(*kept)[1]


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
        (["packing.algorithm=bdf"], "Did you mean 'bfd'"),
        (["seq_len=8", "packing.long=keep"], "is longer than a row of 8 tokens"),
        (["seq_len=8", "packing.capacity=9"], "Give at most 8"),
        (["packing.min_fill=2"], "share of the capacity"),
        (["seq_len=8", "packing.long=error"], "is longer than a pack of 8 tokens"),
        (["seq_len=1"], "at least 2"),
        (["remove=nowhere.txt"], "components.a.remove"),
    ],
)
def test_what_cannot_be_is_said(pack: Pack, arguments: list[str], said: str):
    code, out, err = pack(*arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
