"""Sums that are kept are those that would be added up, whatever became of the folder that they lie
in.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, kept_sums, row_tokens
from headrace.data.kept_sums import load_or_add_up
from headrace.mix import StageConfig
from headrace.pack import PackingConfig
from headrace.store import TokenCache
from headrace.testing import write_cache


@pytest.mark.parametrize("size", [0, 3, kept_sums._IN_RECORD + 1])
@pytest.mark.parametrize("name", ["sums.json", "sums.bin"])
@pytest.mark.parametrize(
    "harm", [None, b"", b"{}", b"[" * 9999, b'{"made_from": {"order": 1}, "numbers": 3}']
)
def test_numbers_are_found_again_or_made_again(tmp_path, size, name, harm):
    numbers = np.random.default_rng(0).integers(0, 1 << 40, size)
    folder = str(tmp_path / "plans")
    made = []

    def ask() -> np.ndarray:
        return load_or_add_up(folder, {"order": 1}, lambda: made.append(1) or numbers)

    assert np.array_equal(ask(), numbers)
    files = {file.name: file for file in Path(folder).glob("*/*")}
    if harm is not None and name in files:
        files[name].write_bytes(harm)
    assert np.array_equal(ask(), numbers)
    assert np.array_equal(ask(), numbers)
    assert len(made) == 1 + (harm is not None and name in files)


def test_other_numbers_are_never_found(tmp_path):
    folder = str(tmp_path)
    assert load_or_add_up(folder, {"order": 1}, lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert load_or_add_up(folder, {"order": 2}, lambda: np.arange(4)).tolist() == [0, 1, 2, 3]
    first, second = sorted(tmp_path.glob("*/sums.json"))
    first.write_bytes(second.read_bytes())  # moved to where another one lies
    assert load_or_add_up(folder, {"order": 1}, lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert load_or_add_up(folder, {"order": 2}, lambda: np.arange(4)).tolist() == [0, 1, 2, 3]


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for _ in range(2):
        assert load_or_add_up(str(tmp_path / "file"), {}, lambda: np.arange(9999)).size == 9999
    assert load_or_add_up(None, {}, lambda: np.arange(2)).size == 2


def every_third(tokens: np.ndarray) -> np.ndarray:
    return tokens % 3 == 0


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> dict[str, TokenCache]:
    folder = tmp_path_factory.mktemp("caches")
    rng = np.random.default_rng(0)
    documents = {
        name: [rng.integers(1, 250, n) for n in rng.integers(1, 60, 400)] for name in ("a", "b")
    }
    return {
        name: write_cache(folder / name, [docs], vocab_size=256, mask=every_third)
        for name, docs in documents.items()
    }


SMALL = {"_STRETCH": 16, "_PAGE": 4, "_SAVED_STRETCHES": 2, "_READ": 1}


@pytest.mark.parametrize("policy", ["quota", "least_consumed"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_run_that_finds_sums_is_the_run_that_made_them(
    caches, policy, packed, tmp_path, monkeypatch
):
    """With pages of a few rows, so that masks, sums along orders and the ends of stages are all
    kept.
    """
    for name, value in SMALL.items():
        monkeypatch.setattr(row_tokens, name, value)
    packing = PackingConfig("next_fit", plans=str(tmp_path / policy)) if packed else None
    stages = [
        StageConfig({"a": 1, "b": 1}, tokens=4000),
        StageConfig({"a": 1, "b": 1}, tokens=3000),
    ]
    run = LmDataConfig(
        components={name: ComponentConfig(name, packing=packing) for name in caches},
        seq_len=32,
        batch_size=4,
        unit="trained_tokens",
        policy=policy,
        stages=stages,
    )

    def described(run: LmDataConfig) -> tuple[object, list[int]]:
        dataset = run.with_caches(caches).dataset()
        assert isinstance(dataset, MixtureDataset)
        return dataset.describe(), [dataset.tokens_of_rows("a", rows) for rows in range(700)]

    monkeypatch.setattr(row_tokens, "_plans_of", lambda dataset: None)
    slow = described(run)
    monkeypatch.undo()
    for name, value in SMALL.items():
        monkeypatch.setattr(row_tokens, name, value)
    assert described(run) == slow
    root = Path(str(tmp_path / policy) if packed else f"{caches['a'].path}/plans")
    contents = [file.read_text().splitlines()[1] for file in root.glob("*/sums.json")]
    records = [json.loads(content)["made_from"] for content in contents]
    for what in ("labels", "along", "step_after"):
        assert any(what in record for record in records)

    def never(*args: object) -> None:
        raise AssertionError("is added up again")

    monkeypatch.setattr(row_tokens, "read_labels", never)
    monkeypatch.setattr(row_tokens.MixtureTokens, "_step_after", never)
    assert described(run) == slow
    monkeypatch.undo()
    other = dataclasses.replace(
        run, stages=[dataclasses.replace(stages[0], tokens=4400), stages[1]]
    )
    assert described(other) != slow
