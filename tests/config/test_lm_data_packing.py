"""Packing as a config says it: rows that are packs, shuffled, mixed, split and resumed; and what is
refused.
"""

import dataclasses
import itertools
import logging

import numpy as np
import pytest

from headrace.analysis import simulate
from headrace.analysis.simulate.forecast import RunSteps
from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError, PlanMismatchError
from headrace.order import BlockShuffleConfig, ValidationConfig
from headrace.pack import PackingConfig
from headrace.run import RunLock
from headrace.store import TokenCache
from headrace.testing import write_cache

OF_KEEP = (
    *("seq_len=128", "batch_size=16", "max_epochs=1"),
    "components.a.packing={long: keep, capacity: 48}",
)
LENGTHS = np.random.default_rng(0).integers(1, 90, 500)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    """Documents whose tokens are their places in the corpus, from 1 on: 0 is padding."""
    ends = np.cumsum([1, *LENGTHS.tolist()]).tolist()
    documents = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    parts = [documents[:200], documents[200:]]
    return write_cache(tmp_path_factory.mktemp("c") / "c", parts, vocab_size=1 << 20, eos_id=0)


def config(
    cache: TokenCache,
    packing: PackingConfig | None = PackingConfig(),  # noqa: B008 - frozen
    **changes,
) -> LmDataConfig:
    component = ComponentConfig(cache.path, packing=packing, **changes.pop("component", {}))
    return dataclasses.replace(
        LmDataConfig({"a": component}, seq_len=128, batch_size=16), **changes
    )


def tokens_of(dataset) -> np.ndarray:
    """All tokens of all rows, without padding, ascending."""
    tokens = dataset.read(np.arange(len(dataset))).tokens
    return np.sort(tokens[tokens > 0])


@pytest.mark.parametrize("algorithm", ["windowed", "bfd", "next_fit", "wrap"])
@pytest.mark.parametrize(
    "shuffle", [False, True, 64, BlockShuffleConfig(window_blocks=4), LmDataConfig().shuffle]
)
def test_an_epoch_holds_every_document_whole_and_once(cache, algorithm, shuffle):
    settings = config(cache, PackingConfig(algorithm), shuffle=shuffle)
    batch = settings.dataset().read(np.arange(len(settings.train_datasets()["a"])))
    tokens = batch.tokens[batch.segment_ids >= 0]
    assert np.array_equal(np.sort(tokens), np.arange(1, LENGTHS.sum() + 1))
    inside = (batch.segment_ids[:, 1:] == batch.segment_ids[:, :-1]) & (
        batch.segment_ids[:, 1:] >= 0
    )
    assert (np.diff(batch.tokens, axis=1)[inside] == 1).all()
    if algorithm != "wrap":
        assert inside.sum() == LENGTHS.sum() - LENGTHS.size  # 500 segments: no document is cut


def test_the_file_the_command_line_and_python_give_the_same(cache, tmp_path):
    text = (
        f"components: {{a: {{cache: {cache.path}, packing: {{algorithm: bfd, long:"
        " truncate}}}\nseq_len: 64\n"
    )
    (tmp_path / "run.yaml").write_text(text)
    loaded = load_config(str(tmp_path / "run.yaml"))
    assert loaded.components["a"].packing == PackingConfig("bfd", "truncate")
    flags = [f"components.a.cache={cache.path}", "components.a.packing.algorithm=bfd"]
    assert (
        load_config(overrides=[*flags, "components.a.packing.long=truncate", "seq_len=64"])
        == loaded
    )
    (tmp_path / "again.yaml").write_text(loaded.to_yaml())
    assert load_config(str(tmp_path / "again.yaml")) == loaded
    found = loaded.datasets()["a"]
    assert isinstance(found, PackedTokenDataset)
    assert found.plan.counts.truncated_documents == (LENGTHS > 64).sum()


def test_a_step_of_so_many_rows_has_so_many_packs(cache):
    # nothing forces one pack a device here: the batch of a step is batch_size packs, as without
    # packing it is rows
    with config(cache).loader() as loader:
        batch = loader.batch_at(0)
    assert batch.tokens.shape == (16, 128)
    assert (np.asarray(batch.segment_lengths).sum(axis=1) > 0).all()


def test_what_is_packed_is_logged(cache, caplog, tmp_path):
    with caplog.at_level(logging.INFO, "headrace"):
        found = config(cache, PackingConfig(plans=str(tmp_path))).datasets()["a"]
    assert isinstance(found, PackedTokenDataset)
    assert f"'packs': {len(found)}" in caplog.text
    assert found.plan.checksum in caplog.text


def test_packing_is_part_of_the_run(cache):
    with config(cache).loader() as loader:
        manifest = RunLock.of(loader)
        steps = [batch.tokens for batch in itertools.islice(iter(loader), 6)]
    with config(cache).loader() as again:
        assert RunLock.of(again).fingerprint == manifest.fingerprint
        for tokens, batch in zip(steps[3:], again.iter_from_step(3), strict=False):
            assert np.array_equal(tokens, batch.tokens)
    for other in (PackingConfig("bfd"), PackingConfig(min_fill=0.9), None):
        with (
            config(cache, other).loader() as changed,
            pytest.raises(PlanMismatchError, match="has another config"),
        ):
            manifest.check_same(RunLock.of(changed))


@pytest.mark.parametrize("by", ["blocks", "documents"])
def test_training_never_meets_validation_and_every_token_is_accounted_for(cache, by, tmp_path):
    (tmp_path / "ids.txt").write_text("0\n7\n499\n")
    settings = config(
        cache,
        PackingConfig(min_fill=0.5),
        component={"remove": str(tmp_path / "ids.txt")},
        validation=ValidationConfig(one_in=10, by=by),
    )
    train = tokens_of(settings.train_datasets()["a"])
    validation = tokens_of(settings.validation_datasets()["a"])
    gone = np.concatenate([cache.document(d) for d in (0, 7, 499)])
    assert np.intersect1d(train, validation).size == 0
    assert np.intersect1d(np.concatenate([train, validation]), gone).size == 0
    account = settings.accounts()["a"]
    assert (account.train_tokens, account.validation_tokens) == (train.size, validation.size)
    assert account.removed_tokens == gone.size
    assert (
        account.train_tokens
        + account.validation_tokens
        + account.removed_tokens
        + account.dropped_tokens
        == (cache.num_tokens)
    )
    rows = account.train_rows + account.validation_rows
    assert account.padding_tokens == rows * 128 - train.size - validation.size
    document = np.searchsorted(np.cumsum(LENGTHS), np.arange(cache.num_tokens), side="right")
    assert (
        np.intersect1d(document[train - 1], document[validation - 1]).size == 0
    )  # packs hold whole documents


def test_the_documents_held_out_are_those_of_an_unpacked_run(cache):
    split = ValidationConfig(one_in=10, by="documents")
    packed = tokens_of(config(cache, validation=split).validation_datasets(seq_len=256)["a"])
    plain = tokens_of(config(cache, None, validation=split).validation_datasets(seq_len=16)["a"])
    assert set(plain) <= set(packed)
    assert packed.size - plain.size < 16 * 2  # what fills no row, of two parts
    with pytest.raises(ConfigError, match=r"validation\.by: documents"):
        config(cache, validation=ValidationConfig(one_in=10)).validation_datasets(seq_len=256)


def test_packed_and_plain_components_mix(cache):
    packed = ComponentConfig(cache.path, packing=PackingConfig())
    plain = ComponentConfig(cache.path, weight=3)
    settings = config(cache, components={"p": packed, "q": plain})
    with settings.loader() as loader:
        batch = loader.batch_at(3)
    assert np.bincount(np.asarray(batch.source_id)).tolist() == [4, 12]
    full = np.asarray(batch.segment_lengths)[np.asarray(batch.source_id) == 1]
    assert (full[:, 0] == 128).all()
    with pytest.raises(ConfigError, match=r"components\.q\.packing: is not packed, but 'p' is"):
        dataclasses.replace(settings, split_documents=True)
    both = config(cache, components={"p": packed, "q": packed}, split_documents=True)
    assert both.dataset().read([0]).segment_lengths is not None


def test_the_forecast_is_what_the_loader_reads(cache):
    for how in (PackingConfig("windowed"), PackingConfig("bfd")):
        settings = config(cache, how, num_steps=10)
        dataset = settings.dataset()
        forecast = simulate(
            dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(num_steps=10)
        )
        with settings.loader() as loader:
            assert sum(1 for _ in loader) == 10
            assert loader.stats().reads.block_fetches == forecast.by_hosts[0].block_fetches


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["components.a.packing={algorithm: bdf}"], "Did you mean 'bfd'"),
        (["components.a.packing={capacity: 1}"], "must be at least 2"),
        (["components.a.packing={capacity: 1.5}"], "Give a whole number"),
        (["components.a.packing={algorithm: wrap, long: keep}"], "contradicts wrap"),
        (["components.a.packing={algorithm: wrap, long: drop}"], "contradicts wrap"),
        (["components.a.packing={min_fill: 2}"], "must be a share"),
        (
            ["components.a.packing={packing_length: 4096}"],
            "is not a field here",
        ),
    ],
)
def test_what_cannot_be_is_named(cache, settings, said):
    with pytest.raises(ConfigError, match=said):
        load_config(overrides=[f"components.a.cache={cache.path}", *settings])


@pytest.mark.parametrize(
    ("packing", "seq_len", "problem"),
    [
        (
            PackingConfig(long="error"),
            64,
            "document 0, 76 tokens, is longer than a pack of 64 tokens",
        ),
        (
            PackingConfig(long="error", unit=2),
            64,
            "documents 0 to 1, 133 tokens, is longer than a pack of 64 tokens",
        ),
        (
            PackingConfig(long="keep", capacity=32),
            64,
            "document 0, 76 tokens, is longer than a row of 64 tokens",
        ),
        (
            PackingConfig("bfd", long="keep", unit=2),
            128,
            "documents 0 to 1, 133 tokens, is longer than a row of 128 tokens",
        ),
        (
            PackingConfig("next_fit", min_fill=1, max_documents=1),
            100,
            "packing gives no packs: documents=500",
        ),
    ],
    ids=str,
)
def test_documents_that_cannot_be_packed_are_told_with_their_component(
    cache, packing, seq_len, problem
):
    assert LENGTHS[:2].tolist() == [76, 57]
    with pytest.raises(ConfigError) as caught:
        config(cache, packing, seq_len=seq_len).dataset()
    assert caught.value.field == "components.a.packing"
    assert caught.value.problem.startswith(problem)
    assert "capacity" not in str(caught.value.cure)


def test_more_capacity_than_rows_have_is_refused_and_the_cures_work(cache):
    packing = PackingConfig(capacity=256)
    with pytest.raises(ConfigError) as caught:
        config(cache, packing).dataset()
    assert (caught.value.field, caught.value.value) == ("components.a.packing.capacity", 256)
    assert caught.value.cure == "Give at most 128, or leave it out."
    filled, default = (
        config(cache, dataclasses.replace(packing, capacity=capacity)).datasets()["a"]
        for capacity in (128, None)
    )
    assert tokens_of(filled).tolist() == tokens_of(default).tolist()


def test_documents_kept_whole_are_trained_on_whole(cache):
    """Of a config with rows that have room for them, through a loader, beside packs up to the
    capacity.
    """
    settings = config(cache, PackingConfig(long="keep", capacity=48), max_epochs=1)
    assert load_config(overrides=[*OF_KEEP, f"components.a.cache={cache.path}"]) == settings
    ends = np.cumsum(LENGTHS)
    documents: list[int] = []
    with settings.loader() as loader:
        for batch in loader:
            assert batch.tokens.shape == (16, 128)
            for row, sizes in zip(batch.tokens, np.asarray(batch.segment_lengths), strict=True):
                sizes = sizes[sizes > 0]
                assert sizes.sum() <= 48 or sizes.size == 1
                starts = np.cumsum(sizes) - sizes
                first = np.asarray(row)[starts] - 1
                documents += np.searchsorted(ends, first, side="right").tolist()
                assert (sizes == LENGTHS[documents[len(documents) - sizes.size :]]).all()
    assert sorted(documents) == list(range(500))


@pytest.mark.parametrize(("unit", "longest"), [(1, 90), (2, 170)])
@pytest.mark.parametrize("algorithm", ["windowed", "bfd"])
@pytest.mark.parametrize("long", ["drop", "error"])
def test_where_every_document_is_too_long_the_cures_work(tmp_path, unit, longest, algorithm, long):
    documents = [np.ones(n, np.int32) for n in (80, 90, 60, 80)]
    cache = write_cache(tmp_path / "long", [documents])
    packing = PackingConfig(algorithm, long=long, unit=unit)
    with pytest.raises(ConfigError) as caught:
        config(cache, packing, seq_len=32).dataset()
    cure = str(caught.value.cure)
    assert caught.value.field == "components.a.packing"
    assert ("truncate" in cure) == (unit == 1)
    if long == "drop":
        assert f"rows of {longest} tokens" in cure
        assert config(cache, packing, seq_len=longest, batch_size=1).dataset().length is None


def test_a_side_that_holds_no_pack_is_told_with_the_split(cache):
    alone = ValidationConfig(one_in=400, by="documents")
    with pytest.raises(ConfigError) as caught:
        config(cache, PackingConfig(long="drop"), seq_len=20, validation=alone).dataset()
    assert (caught.value.field, caught.value.value) == ("validation", None)
    assert "(component 'a')" in str(caught.value)
    assert "None" not in str(caught.value)
