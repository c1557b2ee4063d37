"""The reference vectors of other systems: each file of tests/golden is read by a test, each group
in it is named there, and what is not repeated is said here, with the reason.
"""

import json
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
OWN = {"caches", "losses", "mixture_order", "snapshots"}
"""What headrace gave itself, for orders and caches that must not change."""
NOT_REPEATED = {
    "energon_sharder": "slices of shards for ranks and workers: the order knows neither"
    " (docs/coming_from.md)",
    "energon_size_deficit": "a random draw with a state; exact shares in tokens take its place"
    " (docs/coming_from.md)",
    "megatron_samplers/cyclic": "torch's randperm, whose order is torch's own"
    " (docs/coming_from/megatron.md)",
    "megatron_gpt_index/drop_last_partial": "the order of a validation split that keeps its"
    " partial last sample",
    "coordexp_static_plan/probe_indices": "which lengths it looks at twice: here lengths are those"
    " of a cache",
    "coordexp_static_plan/fingerprint_digest": "the name of its cache folder: plans have a"
    " fingerprint of their own",
    "nanomoe_rl/lpt": "packs of rollouts that may exceed a row: here none does"
    " (docs/coming_from/nanomoe.md)",
}
FILES = sorted(path.stem for path in (TESTS / "golden").glob("*.json") if path.stem not in OWN)
CODE = {
    path: path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__).resolve()
}


def readers(stem: str) -> list[str]:
    """The sources of the tests that name a file of vectors."""
    return [code for code in CODE.values() if f'"{stem}"' in code or f"{stem}.json" in code]


def groups(stem: str) -> set[str]:
    """What a file holds besides its cases, and the kinds of these."""
    vectors = json.loads((TESTS / "golden" / f"{stem}.json").read_text())
    kinds = {
        str(case["kind"]) for case in vectors["cases"] if isinstance(case, dict) and "kind" in case
    }
    return kinds | vectors.keys() - {"source", "cases"}


@pytest.mark.parametrize("stem", FILES)
def test_every_vector_has_a_test_or_a_reason(stem):
    if stem in NOT_REPEATED:
        assert readers(stem) == []
        return
    code = "\n".join(readers(stem))
    assert code
    unread = {group for group in groups(stem) if f'"{group}"' not in code}
    assert unread == {group for group in groups(stem) if f"{stem}/{group}" in NOT_REPEATED}


def test_the_list_is_of_what_there_is():
    assert len(FILES) == 36
    for name in NOT_REPEATED:
        stem, _, group = name.partition("/")
        vectors = (TESTS / "golden" / f"{stem}.json").read_text()
        assert not group or f'"{group}"' in vectors


def test_a_vector_that_nobody_reads_is_noticed():
    assert readers("nmoe_swrr")
    assert not readers("nmoe_swr")
