"""Filters and hold-out as a config says them: ``remove`` and ``validation``."""

import dataclasses
import itertools

import numpy as np
import pytest

from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.errors import ConfigError, PlanMismatchError
from headrace.order import BlockShuffleConfig, ValidationConfig
from headrace.run import RunLock
from headrace.store import TokenCache
from headrace.testing import write_cache


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    ends = np.cumsum([0, *np.random.default_rng(0).integers(0, 90, 500).tolist()]).tolist()
    documents = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    return write_cache(
        tmp_path_factory.mktemp("c") / "c", [documents[:200], documents[200:]], vocab_size=1 << 20
    )


def config(cache: TokenCache, **changes) -> LmDataConfig:
    plain = LmDataConfig({"a": ComponentConfig(cache.path)}, seq_len=16, batch_size=16)
    return dataclasses.replace(plain, **changes)


def drawn(settings: LmDataConfig, steps: int) -> np.ndarray:
    return settings.dataset().read(np.arange(steps * 16)).tokens


@pytest.mark.parametrize("by", ["blocks", "documents"])
def test_training_never_meets_validation(cache, by):
    split = ValidationConfig(one_in=10, by=by)
    held: list[np.ndarray] = []
    for shuffle in (False, True, 64, BlockShuffleConfig(window_blocks=4), LmDataConfig().shuffle):
        settings = config(cache, validation=split, shuffle=shuffle)
        (validation,) = settings.validation_datasets().values()
        held.append(validation.read(np.arange(len(validation))).tokens)
        met = drawn(settings, 250)  # about three epochs
        assert np.intersect1d(met, held[-1]).size == 0
        train = settings.train_datasets()["a"]
        assert np.array_equal(np.unique(met), np.unique(train.read(np.arange(len(train))).tokens))
    assert all(np.array_equal(held[0], other) for other in held)
    assert np.array_equal(
        held[0],
        config(cache, validation=split, seed=9)
        .validation_datasets()["a"]
        .read(np.arange(len(held[0])))
        .tokens,
    )


def test_a_filter_file_is_used_and_named(cache, tmp_path):
    (tmp_path / "ids.txt").write_text("0\n7\n499\n")
    plain = config(cache)
    filtered = config(
        cache, components={"a": ComponentConfig(cache.path, remove=f"{tmp_path}/ids.txt")}
    )
    assert filtered.datasets()["a"].removed_documents == 3
    gone = np.concatenate([cache.document(d) for d in (0, 7, 499)])
    assert np.intersect1d(drawn(filtered, 200), gone).size == 0
    manifests = [RunLock.of(c.loader()) for c in (plain, filtered)]
    assert manifests[0].fingerprint != manifests[1].fingerprint
    with pytest.raises(PlanMismatchError, match=r"components\.a\.remove"):
        manifests[0].check_same(manifests[1])
    (tmp_path / "ids.txt").write_text("0\n7\n500\n")
    with pytest.raises(ConfigError) as caught:
        filtered.datasets()
    assert (caught.value.field, caught.value.value) == ("components.a.remove", 500)


def test_the_fingerprint_follows_the_split(cache):
    splits = [
        None,
        ValidationConfig(10),
        ValidationConfig(11),
        ValidationConfig(10, by="documents"),
    ]
    prints = {RunLock.of(config(cache, validation=split).loader()).fingerprint for split in splits}
    assert len(prints) == 4


def test_it_can_be_written_as_yaml(cache, tmp_path):
    text = f"""
    seq_len: 16
    components: {{a: {{cache: {cache.path}, remove: ids.npy}}}}
    validation: {{fraction: 0.02, by: documents}}
    """
    (tmp_path / "run.yaml").write_text(text)
    settings = load_config(str(tmp_path / "run.yaml"))
    assert settings.validation == ValidationConfig(fraction=0.02, by="documents")
    assert settings.components["a"].remove == "ids.npy"
    (tmp_path / "again.yaml").write_text(settings.to_yaml())
    assert load_config(str(tmp_path / "again.yaml")) == settings


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("one_in=1", "validation.one_in"),
        ("fraction=0.6", "validation.fraction"),
        ("fraction=0", "validation.fraction"),
        ("by=rows", None),
        ("io_block_size=0", "validation.io_block_size"),
    ],
)
def test_bad_values_are_named(setting, field):
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[f"validation.{setting}"])
    assert field is None or caught.value.field == field
    with pytest.raises(ConfigError, match="is given beside one_in"):
        ValidationConfig(one_in=10, fraction=0.1)
    with pytest.raises(ConfigError, match="goes with by: blocks"):
        ValidationConfig(by="documents", io_block_size=4)
    with pytest.raises(ConfigError, match="is not one of those"):
        ValidationConfig(by="rows")  # pyright: ignore[reportArgumentType]


def test_shares():
    assert [ValidationConfig(fraction=f).groups_of for f in (0.5, 0.01, 0.003)] == [2, 100, 333]
    assert ValidationConfig().groups_of == 100


def test_what_cannot_be_split_is_named(cache):
    with pytest.raises(ConfigError, match="is not set"):
        config(cache).validation_datasets()
    with pytest.raises(ConfigError, match="component 'a'") as caught:
        config(cache, validation=ValidationConfig(one_in=10**6)).dataset()
    assert caught.value.field == "validation.one_in"
