"""``subset`` in a config: a fixed part of each source is trained on, again and again, and nothing
else is.
"""

import dataclasses
import itertools
from typing import cast

import numpy as np
import pytest

from headrace.analysis.check.plan import RunPlan
from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.data import MixtureDataset
from headrace.errors import ConfigError
from headrace.order import BlockShuffleConfig, SubsetConfig, ValidationConfig
from headrace.order.subset import LEAST_BLOCKS
from headrace.pack import PackingConfig
from headrace.run import RunLock
from headrace.store import CacheLayout, TokenCache
from headrace.testing import write_cache

SHUFFLES = [False, True, 64, BlockShuffleConfig(window_blocks=4), LmDataConfig().shuffle]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    """Tokens that count up: a row says where it lies. Chunks of 64 tokens are four rows of 16; two
    parts.
    """
    ends = np.cumsum([0, *np.random.default_rng(0).integers(1, 90, 500).tolist()])
    documents = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    layout = CacheLayout("uint32", 64, 4)
    return write_cache(
        tmp_path_factory.mktemp("c") / "c",
        [documents[:200], documents[200:]],
        vocab_size=1 << 20,
        layout=layout,
    )


def config(cache: TokenCache, **changes) -> LmDataConfig:
    plain = LmDataConfig({"a": ComponentConfig(cache.path)}, seq_len=16, batch_size=16)
    return dataclasses.replace(plain, **changes)


def first_tokens(settings: LmDataConfig, rows: int) -> np.ndarray:
    return np.asarray(settings.dataset().read(np.arange(rows)).tokens)[:, 0]


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=lambda one: getattr(one, "kind", str(one)))
def test_every_epoch_has_the_rows_of_the_subset_once(cache, shuffle):
    settings = config(cache, subset=SubsetConfig(fraction=0.3), shuffle=shuffle)
    (chosen,) = settings.train_datasets().values()
    rows = len(chosen)
    assert rows == int(len(config(cache).train_datasets()["a"]) * 0.3)
    expected = np.sort(chosen.read(np.arange(rows)).tokens[:, 0])
    drawn = first_tokens(settings, 3 * rows).reshape(3, rows)
    for epoch in drawn:
        assert np.array_equal(np.sort(epoch), expected)
    if shuffle is not False:
        assert not np.array_equal(drawn[0], drawn[1])  # each in an order of its own


def test_the_choice_is_that_of_blocks_the_name_and_its_own_seed(cache):
    def chosen(name="a", **changes):
        settings = config(cache, components={name: ComponentConfig(cache.path)}, **changes)
        (rows,) = settings.train_datasets().values()
        return rows.read(np.arange(len(rows))).tokens[:, 0]

    tenth = chosen(subset=SubsetConfig(fraction=0.5))
    assert np.array_equal(tenth, chosen(subset=SubsetConfig(fraction=0.5), seed=7, shuffle=True))
    assert not np.array_equal(tenth, chosen(subset=SubsetConfig(fraction=0.5, seed=1)))
    assert not np.array_equal(tenth, chosen("b", subset=SubsetConfig(fraction=0.5)))
    start = chosen(subset=SubsetConfig(rows=100, by="start"))
    assert np.array_equal(start, chosen()[:100])
    assert np.array_equal(chosen(subset=SubsetConfig(fraction=1.0)), chosen())


def test_whole_chunks_are_taken_where_that_leaves_places_enough(cache):
    many = config(cache, subset=SubsetConfig(fraction=0.5)).train_datasets()["a"]
    assert len(many) > 4 * LEAST_BLOCKS
    located = many.locate(np.arange(len(many) // 4 * 4)).row
    assert (np.diff(located.reshape(-1, 4), axis=1) == 1).all()  # chunks of four rows
    few = config(cache, subset=SubsetConfig(rows=LEAST_BLOCKS)).train_datasets()["a"]
    rows = np.sort(few.locate(np.arange(LEAST_BLOCKS)).row)
    assert np.unique(rows // 4).size > LEAST_BLOCKS // 2  # not sixteen chunks


def test_what_is_held_out_is_held_out_before_and_all_is_counted(cache):
    split = ValidationConfig(one_in=10)
    settings = config(cache, validation=split, subset=SubsetConfig(fraction=0.25))
    whole = config(cache, validation=split)
    one = settings.accounts()["a"]
    other = whole.accounts()["a"]
    assert (one.validation_rows, one.dropped_tokens) == (
        other.validation_rows,
        other.dropped_tokens,
    )
    assert one.train_rows == int(other.train_rows * 0.25)
    assert one.train_rows + one.unused_rows == other.train_rows
    assert (
        one.tokens
        == one.train_tokens + one.validation_tokens + one.unused_tokens + one.dropped_tokens
    )
    assert (other.unused_rows, other.unused_tokens) == (0, 0)
    validation = settings.validation_datasets()["a"]
    assert not np.intersect1d(
        first_tokens(settings, 400), validation.read(np.arange(len(validation))).tokens[:, 0]
    ).size


def test_packed_rows_are_chosen_too(cache):
    packed = {"a": ComponentConfig(cache.path, packing=PackingConfig(long="truncate"))}
    settings = config(cache, components=packed, seq_len=128, subset=SubsetConfig(fraction=0.5))
    figures = settings.accounts()["a"]
    assert figures.train_rows == int(
        len(config(cache, components=packed, seq_len=128).train_datasets()["a"]) / 2
    )
    assert figures.tokens == figures.train_tokens + figures.unused_tokens + figures.dropped_tokens
    assert 0 < figures.unused_tokens < figures.tokens
    assert np.unique(first_tokens(settings, 3 * figures.train_rows)).size == figures.train_rows


def test_a_component_says_its_own(cache):
    settings = load_config(
        overrides=[
            "seq_len=16",
            "batch_size=16",
            "subset.fraction=0.5",
            f"components.a.cache={cache.path}",
            f"components.b.cache={cache.path}",
            "components.b.subset.rows=100",
            f"components.c.cache={cache.path}",
            "components.c.subset.fraction=1",
        ]
    )
    rows = {name: len(dataset) for name, dataset in settings.train_datasets().items()}
    assert rows == {"a": rows["c"] // 2, "b": 100, "c": len(config(cache).train_datasets()["a"])}


def test_the_fingerprint_tells_subsets_apart_and_the_forecast_counts_their_epochs(cache):
    plain, *others = (
        config(cache, subset=subset, num_steps=30)
        for subset in (
            None,
            SubsetConfig(fraction=0.5),
            SubsetConfig(fraction=0.5, seed=1),
            SubsetConfig(rows=160),
        )
    )
    prints = {RunLock.of(one.loader()).fingerprint for one in (plain, *others)}
    assert len(prints) == 4
    assert RunPlan.of(others[2]).components[0].epochs == 3.0


def test_no_chunk_outside_the_subset_is_read(cache):
    settings = config(cache, subset=SubsetConfig(fraction=0.3))
    mixture = cast("MixtureDataset", settings.dataset())
    rows = len(settings.train_datasets()["a"])
    pieces = mixture.sources[0].pieces(mixture.locate(np.arange(3 * rows)).row)
    chunks = np.unique(np.stack([pieces.array, pieces.start // 64]), axis=1)
    assert chunks.shape[1] == -(-rows // 4)


def test_what_cannot_be_is_named(cache):
    for subset, field, message in (
        (SubsetConfig(fraction=1e-6), "subset.fraction", "leaves no row of component 'a'"),
        (SubsetConfig(rows=10**6), "subset.rows", "is more than the"),
    ):
        for call in (LmDataConfig.dataset, LmDataConfig.train_datasets, LmDataConfig.accounts):
            with pytest.raises(ConfigError, match=message) as caught:
                call(config(cache, subset=subset))
            assert caught.value.field == field
    with pytest.raises(ConfigError, match="leaves no row") as caught:
        config(
            cache, components={"a": ComponentConfig(cache.path, subset=SubsetConfig(fraction=1e-6))}
        ).dataset()
    assert caught.value.field == "components.a.subset.fraction"
    least = float((caught.value.cure or "").split()[3].rstrip(","))
    assert len(config(cache, subset=SubsetConfig(fraction=least)).train_datasets()["a"]) == 1
    with pytest.raises(ConfigError, match="does not go with a seq_len that changes") as caught:
        config(cache, subset=SubsetConfig(fraction=0.5), seq_len={0: 16, 10: 32})
    assert caught.value.field == "subset"
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=["components.a.cache=x", "components.a.subset.fraction=2"])
    assert caught.value.field == "components.a.subset.fraction"


def test_an_error_about_limits_counts_epochs_of_the_subset(cache):
    component = ComponentConfig(cache.path, max_epochs=1.0, max_tokens=cache.num_tokens // 4)
    settings = config(
        cache, components={"a": component}, subset=SubsetConfig(fraction=0.1), num_steps=1000
    )
    with pytest.raises(ConfigError) as caught:
        settings.dataset()
    assert caught.value.field == "components.a.max_epochs"


@pytest.mark.parametrize("tokens", [16, 40, 16 * 7, 16 * 99])
def test_the_share_that_is_enough_is_enough(tmp_path, tokens):
    few = write_cache(tmp_path / "few", [[np.arange(1, tokens + 1)]], vocab_size=1 << 20)
    with pytest.raises(ConfigError, match="leaves no row") as caught:
        config(few, subset=SubsetConfig(fraction=1e-3)).dataset()
    enough = float(str(caught.value.cure).removeprefix("Give at least ").split(",")[0])
    assert len(config(few, subset=SubsetConfig(fraction=enough)).train_datasets()["a"]) == 1
