"""Whatever reads the rows of a cache, no token of a removed document comes out, and all others
stay where they are.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, LmDataConfig
from headrace.adapters import GrainRows
from headrace.config import ComponentConfig
from headrace.data import MixtureDataset, PackedTokenDataset, PlannedDataset, TokenSeqDataset
from headrace.data.packed_store import PackedStoreDataset
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.mix import AmendmentConfig
from headrace.order import ValidationConfig
from headrace.pack import PackingConfig
from headrace.store import CacheLayout, open_cache
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import grow, remove

DOCUMENTS = 60
SEQ_LEN = 16
HELD_OUT = ValidationConfig(4)


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> Path:
    """One cache plain, shuffled, cut and in packs. Its tokens are all different."""
    root = tmp_path_factory.mktemp("caches")
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(1, 30, DOCUMENTS))
    documents = [np.arange(1 + a, 1 + b) for a, b in itertools.pairwise([0, *ends.tolist()])]
    parts = [documents[:25], documents[25:]]
    layout = CacheLayout("uint16", chunk_elements=64)
    cache = write_cache(root / "plain", parts, vocab_size=1 << 16, layout=layout)
    settings_of = {"shuffled": {}, "cut": {"split": SEQ_LEN}, "packs": {"pack": SEQ_LEN}}
    for name, one in settings_of.items():
        reshuffle(cache, root / name, ReshuffleConfig(1, **one), progress=False)
    return root


def config_of(path: str, packing: PackingConfig | None = None) -> LmDataConfig:
    component = ComponentConfig(path, packing=packing)
    return LmDataConfig(
        {"web": component}, seq_len=SEQ_LEN, batch_size=4, validation=HELD_OUT, shuffle=False
    )


def rows_of(dataset: PlannedDataset) -> np.ndarray:
    return np.asarray(dataset.read(np.arange(len(dataset))).tokens)


def of_loader(path: str) -> np.ndarray:
    mixture = MixtureDataset({"web": TokenSeqDataset(path, SEQ_LEN)}, {"web": 1}, batch_size=8)
    with DataLoader(mixture) as loader:
        return np.concatenate([np.asarray(loader.batch_at(step).tokens) for step in range(5)])


def of_sides(path: str, packing: PackingConfig | None = None) -> np.ndarray:
    config = config_of(path, packing)
    sides = [config.train_datasets()["web"], config.validation_datasets()["web"]]
    return np.concatenate([rows_of(config.datasets()["web"]), *map(rows_of, sides)])


def of_held_out_documents(path: str) -> np.ndarray:
    sides = TokenSeqDataset(path, SEQ_LEN).holdout_documents(5)
    return np.concatenate([rows_of(side) for side in sides])


def of_grain(path: str) -> np.ndarray:
    rows = GrainRows(config_of(path).train_datasets()["web"])
    return np.stack([np.asarray(rows[number]["tokens"]) for number in range(len(rows))])


ROADS: dict[str, tuple[str, Callable[[str], np.ndarray]]] = {
    "windows": ("plain", lambda path: rows_of(TokenSeqDataset(path, SEQ_LEN))),
    "an open cache": ("plain", lambda p: rows_of(TokenSeqDataset(open_cache(p), SEQ_LEN))),
    "other windows": ("plain", lambda p: rows_of(TokenSeqDataset(p, SEQ_LEN).with_rows(8))),
    "shuffled windows": (
        "shuffled",
        lambda p: rows_of(TokenSeqDataset(p, SEQ_LEN).shuffle(seed=1)),
    ),
    "cut documents": ("cut", lambda path: rows_of(TokenSeqDataset(path, SEQ_LEN))),
    "packs": ("plain", lambda path: rows_of(PackedTokenDataset(path, 32))),
    "stored packs": ("packs", lambda path: rows_of(PackedStoreDataset(path, SEQ_LEN))),
    "a loader": ("plain", of_loader),
    "sides": ("plain", of_sides),
    "sides of packs": ("plain", lambda path: of_sides(path, PackingConfig())),
    "sides of stored packs": ("packs", lambda path: of_sides(path, PackingConfig())),
    "held-out documents": ("plain", of_held_out_documents),
    "Grain": ("plain", of_grain),
}


@contextmanager
def copied(folder: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as root:
        yield str(shutil.copytree(folder, Path(root, "cache")))


@pytest.mark.parametrize("road", ROADS)
@settings(max_examples=4)
@given(gone=st.sets(st.integers(0, DOCUMENTS - 1), min_size=1, max_size=20))
def test_removed_documents_reach_nobody(caches: Path, road: str, gone: set[int]):
    store, read = ROADS[road]
    lengths = open_cache(caches / "plain").lengths()
    ends = 1 + np.cumsum(lengths)
    removed = np.concatenate([np.arange(ends[k] - lengths[k], ends[k]) for k in gone])
    with copied(caches / store) as path:
        before = read(path)
        remove(path, *gone)
        after = read(path)
    is_gone = np.isin(before, removed)
    assert not np.isin(after, removed).any()
    assert np.array_equal(after[~is_gone], before[~is_gone])


def test_an_amendment_takes_its_documents_out_of_what_is_held_out(caches: Path):
    with copied(caches / "plain") as path:
        config = replace(config_of(path), validation=ValidationConfig(2))
        before = rows_of(config.validation_datasets()["web"])
        removed = set(range(0, DOCUMENTS, 3))
        remove(path, *removed)
        amended = replace(config, amendments=[AmendmentConfig(5, caches={"web": 2})])
        after = rows_of(amended.validation_datasets()["web"])
    assert np.count_nonzero(after) < np.count_nonzero(before)
    assert np.array_equal(after[after > 0], before[after > 0])


def test_a_cache_is_opened_at_a_snapshot(tmp_path: Path):
    path = tiny_cache(tmp_path / "c", documents=20).path
    remove(path, 3)
    grow(path, 5)
    opened = [open_cache(path, snapshot) for snapshot in (1, 2, None)]
    assert [cache.num_documents for cache in opened] == [20, 20, 25]
    assert [cache.removed().total for cache in opened] == [0, 1, 1]
    whole, without, _ = [rows_of(TokenSeqDataset(cache, SEQ_LEN)) for cache in opened]
    assert np.count_nonzero(whole != without)
    plans = [TokenSeqDataset(cache, SEQ_LEN).describe() for cache in opened[:2]]
    assert plans[0] != plans[1]
