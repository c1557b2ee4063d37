"""Columns of caches beside the tokens of batches: every value beside its token, by a slow count of
its own; and what is refused.
"""

import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from typer.testing import CliRunner

from headrace import (
    ComponentConfig,
    DataLoader,
    LmDataConfig,
    MixtureDataset,
    TokenSeqDataset,
    load_config,
)
from headrace.cli.application import application
from headrace.data import PackedTokenDataset
from headrace.data.columns import (
    Column,
    ColumnConfig,
    component_columns,
    open_columns,
    run_columns,
)
from headrace.data.document_numbers import DocumentNumbers
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.ingest import LeafConfig, ReshuffleConfig, SourceConfig, reshuffle
from headrace.order import ValidationConfig
from headrace.pack import PackingConfig
from headrace.store import CacheLayout, consolidate, open_cache
from headrace.store.joined import JoinedCache
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache

K = 3
VOCABULARY = 65_536
COLUMNS = {
    "weight": "loss_weights",
    "teacher_ids": "topk",
    "teacher_log_probs": "topk_log_probs",
    "score": "score",
}


def weight_of(ids):
    return (ids % 7 / 4).astype(np.float32)


def topk_of(ids):
    return np.stack([(ids.astype(np.int64) + 11 * k) % VOCABULARY for k in range(K)], axis=-1)


def log_probs_of(ids):
    return -(np.stack([ids % (5 + k) for k in range(K)], axis=-1) / 3 + 0.5).astype(np.float32)


LEAVES = {
    LeafSpec("loss_weights", "float32", "ragged", 1): weight_of,
    LeafSpec("topk", "int32", "ragged", K): topk_of,
    LeafSpec("topk_log_probs", "float32", "ragged", K): log_probs_of,
    LeafSpec("score", "float64", "fixed"): lambda ids: (ids[:1] if ids.size else np.zeros(1)) / 8,
    LeafSpec("number", "int64", "fixed"): lambda ids: np.array([ids.size]),
}


def documents_of(seed, count, longest=40):
    """Documents whose ids are all different, so that an id names its place; some are empty."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, longest, count)
    ids = seed * 20_000 + np.arange(sizes.sum())
    return np.split(ids.astype(np.uint16), np.cumsum(sizes)[:-1])


def make_cache(path, seed, *, parts=2, count=60, mask=None, chunk=64):
    documents = documents_of(seed, count)
    layout = CacheLayout("uint16", chunk_elements=chunk, shard_chunks=4)
    split = [documents[k::parts] for k in range(parts)]
    return write_cache(path, split, vocab_size=VOCABULARY, layout=layout, mask=mask, leaves=LEAVES)


def score_table(seeds, count=60):
    """The score of the document of every id."""
    table = np.full(VOCABULARY, np.nan)
    for seed in seeds:
        for document in documents_of(seed, count):
            table[document] = document[:1] / 8 if document.size else 0
    return table


def check_batch(batch, seeds, *, mask=None):
    """Each value beside its token: what the token's id says that it must be."""
    ids = np.asarray(batch.token_ids).astype(np.int64)
    batch = jax.tree.map(np.asarray, batch)
    there = batch.segment_ids >= 0
    there &= batch.valid[:, None]
    trained = there if mask is None else there & (mask(ids) != 0)
    assert np.array_equal(batch.token_mask, np.where(trained, weight_of(ids), 0))
    assert batch.token_mask.dtype == np.float32
    extras = batch.extras
    assert sorted(extras) == ["score", "teacher_ids", "teacher_log_probs"]
    assert np.array_equal(extras["teacher_ids"], np.where(there[..., None], topk_of(ids), 0))
    assert np.array_equal(
        extras["teacher_log_probs"], np.where(there[..., None], log_probs_of(ids), 0)
    )
    assert np.array_equal(
        extras["score"], np.where(there, score_table(seeds)[ids], 0).astype(np.float32)
    )
    assert {n: v.dtype.name for n, v in extras.items()} == {
        "score": "float32",
        "teacher_ids": "int32",
        "teacher_log_probs": "float32",
    }
    follows = np.append(ids[:, 1:], np.zeros_like(ids[:, :1]), axis=1)
    ends = np.append(
        batch.segment_ids[:, 1:] != batch.segment_ids[:, :-1],
        np.ones_like(ids[:, :1], bool),
        axis=1,
    )
    of_label = np.where((ends | ~there)[..., None], 0, topk_of(follows))
    assert np.array_equal(batch.of_labels("teacher_ids"), of_label)
    heavy = ~ends & there & (True if mask is None else mask(follows) != 0)
    assert np.array_equal(
        batch.token_weights, np.where(heavy, weight_of(follows), 0).astype(np.float32)
    )


@st.composite
def runs(draw, root):
    """A mixture of one to three caches: packed or not, filtered, split, shuffled; and its seeds and
    mask.
    """
    packed = draw(st.booleans())
    mask = draw(st.sampled_from([None, lambda ids: ids % 3]))
    seeds = list(range(draw(st.integers(1, 3))))
    seq_len = draw(st.sampled_from([8, 16, 48]))
    components = {}
    for seed in seeds:
        cache = make_cache(f"{root}/{seed}", seed, parts=draw(st.integers(1, 3)), mask=mask)
        removed = draw(st.none() | st.lists(st.integers(0, 59), max_size=20).map(DocumentFilter))
        how = {"removed": removed, "name": f"c{seed}", "columns": COLUMNS}
        if packed:
            how["algorithm"] = draw(st.sampled_from(["windowed", "bfd", "next_fit"]))
        dataset = (PackedTokenDataset if packed else TokenSeqDataset)(cache, seq_len, **how)
        split = draw(st.sampled_from(["whole", "documents", "blocks"]))
        if split == "documents":
            dataset = dataset.holdout_documents(one_in=4)[draw(st.integers(0, 1))]
        elif split == "blocks":
            dataset = dataset.holdout(one_in=3, io_block_size=2)[0]
        shuffle = draw(st.sampled_from(["plain", "full", "braid"]))
        if shuffle == "full":
            dataset = dataset.shuffle(seed)
        elif shuffle == "braid":
            dataset = dataset.braid_shuffle(seed=seed, strands=min(3, len(dataset)))
        components[f"c{seed}"] = dataset
    return MixtureDataset(components, dict.fromkeys(components, 1), 8), seeds, mask


def placements():
    """Four topologies: one device, rows over all, rows and columns, all columns."""
    devices = np.asarray(jax.devices())
    yield NamedSharding(Mesh(devices[:1], ("data",)), PartitionSpec("data"))
    yield NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
    yield NamedSharding(Mesh(devices.reshape(2, 4), ("data", "seq")), PartitionSpec("data", "seq"))
    yield NamedSharding(Mesh(devices, ("seq",)), PartitionSpec(None, "seq"))


@given(st.data())
@settings(max_examples=6, deadline=None)
def test_each_value_is_beside_its_token(tmp_path_factory, data):
    dataset, seeds, mask = data.draw(runs(tmp_path_factory.mktemp("columns")))
    check_batch(dataset.read(np.arange(24)), seeds, mask=mask)
    sharding = data.draw(st.sampled_from(list(placements())))
    loader = DataLoader(dataset, sharding=sharding, prefetch_bytes=1 << 22)
    check_batch(loader.batch_at(2), seeds, mask=mask)
    with loader.iter_from_step(0) as batches:
        for _, batch in zip(range(5), batches, strict=False):
            check_batch(batch, seeds, mask=mask)
            assert batch.extras["teacher_ids"].sharding.spec == sharding.spec
    mapped = DataLoader(dataset.map(lambda batch: batch), sharding=sharding)
    check_batch(mapped.batch_at(1), seeds, mask=mask)


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Two caches with leaves, one with a mask too, and a plain one."""
    root = tmp_path_factory.mktemp("caches")
    make_cache(root / "a", 0)
    make_cache(root / "b", 1, mask=lambda ids: ids % 3)
    make_cache(root / "b2", 3, parts=1)
    write_cache(
        root / "plain",
        [documents_of(2, 60)],
        vocab_size=VOCABULARY,
        layout=CacheLayout("uint16", 64, 4),
    )
    return root


def config_of(caches, columns, names=("a", "b"), own=None, **settings):
    own = own or dict.fromkeys(names)
    components = {
        name: ComponentConfig(str(caches / name), **(own.get(name) or {})) for name in own
    }
    return LmDataConfig(components, seq_len=16, batch_size=8, columns=columns, **settings)


@pytest.mark.parametrize("packing", [None, PackingConfig()])
def test_a_run_of_a_config_splits_resumes_and_keeps_its_columns(caches, packing):
    own = {name: {"packing": packing} for name in "ab"}
    config = config_of(caches, COLUMNS, own=own, validation=ValidationConfig(5, by="documents"))
    loader = config.loader(Mesh(np.asarray(jax.devices()[:1]), ("data",)))
    found = {n: np.asarray(v) for n, v in loader.batch_at(3).extras.items()}
    with loader.iter_from_step(3) as batches:  # resumed there
        again = next(batches).extras
    assert all(np.array_equal(found[name], again[name]) for name in found)
    held_out = config.validation_datasets()["b"]
    check_batch(held_out.read(np.arange(len(held_out))), [1], mask=lambda ids: ids % 3)
    plain = config_of(caches, {}, own=own, validation=ValidationConfig(5, by="documents")).loader()
    assert np.array_equal(plain.batch_at(3).token_ids, loader.batch_at(3).token_ids)
    assert "columns" not in str(plain.describe())
    described = loader.describe()
    assert "'teacher_ids': {'leaf': 'topk'}" in str(described)
    assert (
        config_of(caches, {**COLUMNS, "score": "number"}, own=own).loader().describe() != described
    )


def test_a_component_without_the_leaf_has_the_default_or_is_refused(caches):
    columns = {
        "weight": ColumnConfig("loss_weights", 0.25),
        "teacher_ids": ColumnConfig("topk", -1),
        "score": "score",
    }
    with pytest.raises(
        ConfigError, match=r"columns.score = 'score': is not a leaf of .*plain"
    ) as refusal:
        config_of(caches, columns, ("a", "plain")).dataset()
    assert "columns.score: {leaf: score, default: 0}" in str(refusal.value)
    columns["score"] = ColumnConfig("score", 0)
    own = {"a": {"packing": PackingConfig()}, "plain": {"packing": PackingConfig()}}
    dataset = config_of(caches, columns, own=own).dataset()
    batch = DataLoader(dataset).batch_at(0)
    plain = np.asarray(batch.source_id) == 1
    there = np.asarray(batch.segment_ids)[plain] >= 0
    assert 0 < plain.sum() < 8
    assert np.array_equal(np.asarray(batch.token_mask)[plain], np.where(there, np.float32(0.25), 0))
    assert np.array_equal(
        np.asarray(batch.extras["teacher_ids"])[plain],
        np.where(there[..., None], -1, 0) * np.ones(K),
    )
    ids = np.asarray(batch.tokens)[~plain]
    filled = np.asarray(batch.segment_ids)[~plain] >= 0
    assert np.array_equal(np.asarray(batch.token_mask)[~plain], np.where(filled, weight_of(ids), 0))
    alone = (
        config_of(caches, columns, own=own)
        .datasets()["plain"]
        .holdout_documents(one_in=4)[1]
        .read([0])
    )
    assert alone.extras["teacher_ids"].shape == (
        1,
        16,
        K,
    )  # by itself, too: a step that is compiled for all takes it
    assert set(alone.token_mask[alone.segment_ids >= 0].tolist()) == {0.25}
    read = dataset.read(np.arange(8))  # as the loader, in the order of the stream
    assert (
        np.sort(read.token_mask.sum(axis=1)).tolist()
        == np.sort(np.asarray(batch.token_mask).sum(axis=1)).tolist()
    )


def test_a_component_may_call_its_leaf_otherwise(caches):
    own = {"a": {"columns": {"weight": "score"}}, "b": {"columns": {"weight": "none"}}}
    config = config_of(caches, {"weight": ColumnConfig("loss_weights", 2)}, own=own)
    batch = config.dataset().read(np.arange(16))
    of_a = batch.source_id == 0
    ids = batch.tokens
    assert np.array_equal(batch.token_mask[of_a], score_table([0])[ids[of_a]].astype(np.float32))
    assert np.array_equal(batch.token_mask[~of_a], np.where(ids[~of_a] % 3, np.float32(2), 0))


WRONG = {
    "columns.weight = 'loss_weight': is a leaf of no component. Did you mean 'loss_weights'?": (
        {"weight": "loss_weight"},
        {},
    ),
    "columns = 'token_mask': cannot be the name": ({"token_mask": "score"}, {}),
    "columns = 'a b': cannot be the name": ({"a b": "score"}, {}),
    "columns = 'weights': cannot be the name of a column. Write weight if": (
        {"weights": "loss_weights"},
        {},
    ),
    "columns.weight = 'topk': has not one value for each token": ({"weight": "topk"}, {}),
    "columns.teacher.default = 0.5: is no value of int32": (
        {"teacher": ColumnConfig("topk", 0.5)},
        {},
    ),
    "components.a.columns.weight = 'none': leaves the column": (
        {"weight": "score"},
        {"a": {"columns": {"weight": "none"}}},
    ),
    "components.a.columns.weight = 'scor': is neither a leaf nor an attribute": (
        {"weight": ColumnConfig("score", 1)},
        {"a": {"columns": {"weight": "scor"}}},
    ),
    "columns.x = 'gone': is a leaf of no component": ({"x": ColumnConfig("gone", 1)}, {}),
    "components.a.columns.other = 'score': is no column of the run": (
        {},
        {"a": {"columns": {"other": "score"}}},
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_is_refused_with_a_cure(caches, words):
    columns, own = WRONG[words]
    with pytest.raises(ConfigError) as refusal:
        config_of(caches, columns, own={"a": {}, "plain": {}, **own}).dataset()
    assert words in str(refusal.value)
    assert refusal.value.cure


def test_cures_work_when_they_are_typed(caches):
    """A float mask is refused, and is a weight; a default makes a component without
    the leaf fit.
    """
    with pytest.raises(ConfigError, match=r"columns: \{weight: loss_weights\}"):
        TokenSeqDataset(str(caches / "a"), 16, loss_mask="loss_weights")
    batch = TokenSeqDataset(
        str(caches / "a"), 16, loss_mask="none", columns={"weight": "loss_weights"}
    ).read([0])
    assert np.array_equal(batch.token_mask, weight_of(batch.tokens))
    datasets = {
        n: TokenSeqDataset(str(caches / n), 16, name=n, columns=c)
        for n, c in {"a": {"s": "score"}, "plain": {}}.items()
    }
    with pytest.raises(
        ConfigError,
        match=r"is not in plain. Give it a default: columns.s: \{leaf: score, default: 0\}",
    ):
        MixtureDataset(datasets, dict.fromkeys(datasets, 1), 4)


def test_columns_of_several_widths_and_chunks_are_refused(tmp_path):
    documents = [np.arange(1, 30)]
    two, three = (
        {LeafSpec("topk", "int32", width=k): lambda ids, k=k: np.zeros((ids.size, k))}
        for k in (2, 3)
    )
    both = [
        write_cache(tmp_path / f"{k}", [documents], leaves=leaves)
        for k, leaves in ((2, two), (3, three))
    ]
    sources = {
        str(k): TokenSeqDataset(c, 8, name=str(k), columns={"t": "topk"})
        for k, c in enumerate(both)
    }
    with pytest.raises(ConfigError, match="has 3 values per token in 1, and 2 in 0"):
        MixtureDataset(sources, {"0": 1, "1": 1}, 4)
    wide = {
        LeafSpec("big", "int64", width=1): lambda ids: ids,
        LeafSpec("list", "int32"): lambda ids: ids[:3],
    }
    cache = write_cache(tmp_path / "wide", [documents], leaves=wide)
    with pytest.raises(ConfigError, match="holds int64, which devices do not take"):
        TokenSeqDataset(cache, 8, columns={"x": "big"})
    with pytest.raises(
        ConfigError, match="has not as many values for each token: 3 values, 29 tokens"
    ):
        TokenSeqDataset(cache, 8, columns={"x": "list"})


@pytest.mark.parametrize(("dtype", "number"), [("int64", 2**40), ("float64", -1e300)])
def test_numbers_of_documents_that_devices_do_not_take_are_refused(tmp_path, dtype, number):
    leaves = {LeafSpec("n", dtype, "fixed"): lambda ids: np.array([number])}
    cache = write_cache(tmp_path / "cache", [[np.arange(1, 30)]], leaves=leaves)
    with pytest.raises(ConfigError, match="holds numbers outside"):
        TokenSeqDataset(cache, 8, columns={"n": "n"}).read([0])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_weights_of_documents_may_be_whole_numbers(tmp_path, dtype):
    leaves = {LeafSpec("n", dtype, "fixed"): lambda ids: np.array([3])}
    cache = write_cache(tmp_path / "cache", [[np.arange(1, 30)]], leaves=leaves)
    batch = TokenSeqDataset(cache, 8, columns={"weight": "n"}).read([0])
    assert batch.token_weights[0, :-1].tolist() == [3.0] * 7


def test_a_block_is_one_read_for_each_column_and_others_cost_nothing(caches, tmp_path):
    """Fetches of blocks do not depend on columns; a leaf that no column names is
    not even opened.
    """
    cache = make_cache(tmp_path / "cache", 0, parts=1, count=200)
    for leaf in ("topk_log_probs", "number", "score"):
        (tmp_path / "cache" / "parts" / "00000" / leaf).rename(
            tmp_path / leaf
        )  # whoever reads it fails
    reads = {}
    for names in ((), ("weight",), ("weight", "teacher_ids")):
        columns = {name: COLUMNS[name] for name in names}
        dataset = TokenSeqDataset(open_cache(cache.path), 16, columns=columns).block_shuffle(
            window_blocks=4, seed=0
        )
        loader = DataLoader(dataset, 8, memory_map=False)
        assert sum(1 for _ in loader) == loader.num_steps
        stats = loader.stats().reads
        assert stats.tensorstore_reads_issued == (1 + len(names)) * stats.block_fetches
        reads[names] = stats.block_fetches
    assert set(reads.values()) == {-(-cache.num_tokens // 64)}


def test_documents_of_a_column_are_read_part_by_part(caches):
    column = open_columns(open_cache(caches / "a"), None, {"score": "score"})["score"]
    assert isinstance(column, Column)
    part = column.documents[0]
    sizes = open_cache(caches / "a").lengths(0, 30)
    found = part.of_tokens(np.array([0, 5]), np.array([int(sizes.sum()), 0]))
    expected = [d[0] / 8 for d in documents_of(0, 60)[::2] for _ in d]
    assert found.tolist() == expected
    assert run_columns([]) == []
    made = component_columns(
        DocumentNumbers(open_cache(caches / "a")),
        {"x": "score"},
        {"x": "number"},
        "components.a",
    )
    assert made == {"x": ColumnConfig("number")}


def test_copies_of_a_cache_keep_what_goes_with_its_tokens(caches, tmp_path):
    """Shuffled, consolidated and joined caches: chunks of columns still go with those of the
    tokens.
    """
    shuffled = tmp_path / "shuffled"
    whole = tmp_path / "whole"
    reshuffle(
        open_cache(caches / "a"),
        str(shuffled),
        ReshuffleConfig(seed=3),
        engine="inline",
        progress=False,
    )
    consolidate(open_cache(caches / "a"), str(whole))
    joined = JoinedCache([open_cache(shuffled), open_cache(caches / "b2")])
    for cache, seeds in (
        (open_cache(shuffled), [0]),
        (open_cache(whole), [0]),
        (joined, [0, 3]),
    ):
        for kind in (TokenSeqDataset, PackedTokenDataset):
            dataset = kind(cache, 16, columns=COLUMNS)
            check_batch(dataset.read(np.arange(len(dataset))), seeds)


def number_table(*caches):
    """The number of the document of every id, one document at a time."""
    table = np.full(VOCABULARY, -1)
    for cache in caches:
        for place in range(cache.num_documents):
            table[cache.document(place)] = cache.original(place).number
    return table


def check_numbers(batch, table):
    ids = np.asarray(batch.token_ids).astype(np.int64)
    there = (np.asarray(batch.segment_ids) >= 0) & np.asarray(batch.valid)[:, None]
    found = np.asarray(batch.extras["document"])
    assert found.dtype == np.int32
    assert np.array_equal(np.where(there, found, -1), np.where(there, table[ids], -1))
    assert not found[~there & np.asarray(batch.valid)[:, None]].any()
    return int(there.sum())


NUMBERED = {"document": "document_number"}


@pytest.mark.parametrize("packing", [None, PackingConfig()])
@pytest.mark.parametrize("number", range(4))
def test_the_number_of_each_tokens_document_on_any_mesh_and_resumed(caches, packing, number):
    """Over caches with and without leaves."""
    own = {n: {"packing": packing} for n in ("a", "b", "plain")}
    config = config_of(caches, {**NUMBERED, "score": ColumnConfig("score", 0)}, own=own)
    table = number_table(*(open_cache(caches / name) for name in own))
    loader = DataLoader(config.dataset(), sharding=[*placements()][number])
    expected = [loader.batch_at(step) for step in range(4)]
    assert all(check_numbers(batch, table) for batch in expected)
    with loader.iter_from_step(2) as batches:
        again = next(batches)
    assert np.array_equal(again.extras["document"], expected[2].extras["document"])
    assert check_numbers(config.dataset().read(np.arange(24)), table)


@pytest.mark.parametrize("how", [{}, {"split": 16}, {"pack": 16}])
def test_the_number_is_that_of_the_original_in_stores_that_were_shuffled(caches, tmp_path, how):
    original = open_cache(caches / "a")
    config = ReshuffleConfig(seed=3, **how)
    reshuffle(original, str(tmp_path / "s"), config, engine="inline", progress=False)
    cache = open_cache(tmp_path / "s")
    packing = PackingConfig() if "pack" in how else None
    rows = config_of(tmp_path, NUMBERED, own={"s": {"packing": packing}}).dataset()
    table = number_table(original)
    assert check_numbers(DataLoader(rows).batch_at(1), table)
    assert check_numbers(rows.read(np.arange(8)), table)
    if not how:
        joined = JoinedCache([cache, open_cache(caches / "b2")])
        rows = TokenSeqDataset(joined, 16, columns=NUMBERED)
        assert check_numbers(rows.read(np.arange(len(rows))), number_table(joined))


def test_a_leaf_goes_before_the_number_and_a_component_may_do_without(caches, tmp_path):
    leaf = {LeafSpec("document_number", "int32", "fixed"): lambda ids: np.array([7])}
    cache = write_cache(tmp_path / "own", [[np.arange(1, 30)]], leaves=leaf)
    assert (TokenSeqDataset(cache, 8, columns=NUMBERED).read([0]).extras["document"] == 7).all()
    without = {"a": {}, "b": {"columns": {"document": "none"}}}
    columns = {"document": ColumnConfig("document_number", -1)}
    batch = config_of(caches, columns, own=without).dataset().read(np.arange(16))
    assert set(batch.extras["document"][batch.source_id == 1].ravel().tolist()) == {-1}
    assert batch.extras["document"][batch.source_id == 0].max() > 0


def run_command(*arguments):
    """What a command of headrace prints."""
    done = CliRunner().invoke(application(), [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_headrace_cat_shows_columns(caches, tmp_path):
    columns = {name: leaf for name, leaf in COLUMNS.items() if name != "teacher_log_probs"}
    columns["number"] = "document_number"
    path = tmp_path / "run.yaml"
    path.write_text(config_of(caches, columns, own={"a": {"packing": PackingConfig()}}).to_yaml())
    out = run_command("run", "cat", path, "--step", 1, "--json")
    batch = (
        load_config(str(path)).loader(Mesh(np.asarray(jax.devices()[:1]), ("data",))).batch_at(1)
    )
    for row in json.loads(out)["rows"]:
        for span in row["spans"]:
            begin = row["row"], span["column"]
            assert span["columns"]["weight"]["first"][0] == float(batch.token_mask[begin])
            assert (
                span["columns"]["teacher_ids"]["first"][0]
                == batch.extras["teacher_ids"][begin].tolist()
            )
            assert span["columns"]["teacher_ids"]["shape"] == [span["tokens"], K]
            assert span["columns"]["score"]["max"] == float(batch.extras["score"][begin])
            assert span["columns"]["number"]["max"] == span["document"]
            assert batch.extras["number"][begin] == span["document"]
    out = run_command("run", "cat", path, "--step", 1, "--row", 0)
    assert "teacher_ids: " in out
    assert "3 per token; begins [" in out


def test_a_config_is_checked_and_forecast_before_its_caches_are_there(tmp_path):
    source = SourceConfig(
        ["gone.jsonl"], kind="tokens", leaves={"score": LeafConfig("score", "float32")}
    )
    component = ComponentConfig(str(tmp_path / "gone"), source=source, expected_tokens=10**6)
    columns = {"weight": "loss_weights", "score": "score", "number": "document_number"}
    config = LmDataConfig({"a": component}, seq_len=64, batch_size=8, columns=columns, num_steps=50)
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    for command in (["config", "check", "--declared"], ["config", "simulate"]):
        assert run_command(*command, tmp_path / "run.yaml")
