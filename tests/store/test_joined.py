"""Several caches as one: documents, tokens, leaves and rows run on from cache to cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.data import TokenSeqDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import CacheMissingError, ConfigError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.pack import PackingConfig
from headrace.run import RunLock
from headrace.store import CacheLayout, open_cache
from headrace.store.cache import OriginalDocument
from headrace.store.joined import JoinedCache, open_components
from headrace.store.ledger import write_ledger
from headrace.store.snapshots import Snapshot
from headrace.testing import write_cache
from headrace.testing.caches import random_documents
from headrace_levanter.export import write_levanter

VOCAB = 200


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Three caches of two parts each."""
    folder = tmp_path_factory.mktemp("joined")
    made = []
    for seed in range(3):
        parts = [random_documents(n, seed=10 * seed + n, vocab_size=VOCAB) for n in (7 + seed, 20)]
        made.append(write_cache(folder / "abc"[seed], parts, vocab_size=VOCAB))
    return made


def test_documents_and_tokens_run_on(caches):
    joined = JoinedCache(caches)
    assert joined.num_tokens == sum(c.num_tokens for c in caches)
    assert joined.lengths().tolist() == [n for c in caches for n in c.lengths().tolist()]
    documents = [c.document(i) for c in caches for i in range(c.num_documents)]
    for number, document in enumerate(documents):
        assert np.array_equal(joined.document(number), document)
    assert np.array_equal(joined.tokens(0, joined.num_tokens), np.concatenate(documents))
    assert joined.members == tuple(caches)
    assert caches[0].members == (caches[0],)
    assert [part.name for part in joined.ledger.parts][
        2
    ] == f"{caches[1].path}/{caches[1].ledger.parts[0].name}"


@settings(max_examples=10)
@given(order=st.permutations(range(3)))
def test_rows_are_those_of_the_caches_one_after_the_other(caches, order):
    chosen = [caches[k] for k in order]
    rows = TokenSeqDataset(JoinedCache(chosen), 8)
    each = [TokenSeqDataset(cache, 8) for cache in chosen]
    expected = np.concatenate([one.read(np.arange(len(one))).tokens for one in each])
    assert np.array_equal(rows.read(np.arange(len(rows))).tokens, expected)


def test_the_fingerprint_follows_the_order(caches):
    prints = {JoinedCache(some).fingerprint for some in (caches, caches[::-1], caches[:2])}
    assert len(prints) == 3
    assert (
        JoinedCache(caches).fingerprint
        == JoinedCache([open_cache(c.path) for c in caches]).fingerprint
    )


def run_config(caches, **component):
    joined = ComponentConfig([c.path for c in caches], **component)
    return LmDataConfig({"all": joined}, seq_len=16, batch_size=8)


@pytest.mark.parametrize("packing", [None, PackingConfig()])
def test_a_component_of_several_caches_trains_on_all_of_them(caches, packing, tmp_path):
    config = run_config(caches, packing=packing)
    (path := tmp_path / "run.yaml").write_text(config.to_yaml())
    assert load_config(str(path)) == config
    rows = len(config.train_datasets()["all"])
    batches = config.dataset().read(np.arange(rows)).tokens
    other = config.train_datasets()["all"].read(np.arange(rows)).tokens
    assert np.array_equal(np.sort(batches.ravel()), np.sort(other.ravel()))
    figures = config.accounts()["all"]
    assert (
        figures.tokens
        == sum(c.num_tokens for c in caches)
        == figures.train_tokens + figures.dropped_tokens
    )
    prints = [
        RunLock.of(run_config(some, packing=packing).loader()).fingerprint
        for some in (caches, caches[:2])
    ]
    assert prints[0] != prints[1]


def test_levanters_caches_are_joined_too_and_empty_ones_pass(caches, tmp_path):
    for number, cache in enumerate(caches):
        write_levanter(cache, str(tmp_path / f"{number}"))
    write_levanter(write_cache(tmp_path / "none", [[]], vocab_size=VOCAB), str(tmp_path / "empty"))
    paths = [str(tmp_path / name) for name in ("empty", "0", "1", "2")]
    (joined,) = open_components({"a": [Snapshot(path) for path in paths]}).values()
    assert np.array_equal(
        joined.tokens(0, joined.num_tokens), JoinedCache(caches).tokens(0, joined.num_tokens)
    )


def test_what_cannot_be_joined_is_named(caches, tmp_path):
    wide = write_cache(
        tmp_path / "wide",
        [random_documents(5, seed=1)],
        vocab_size=VOCAB,
        layout=CacheLayout("uint32", 64, 4),
    )
    for other, field, message in (
        (wide, "components.a.cache[1]", "its dtype is uint32"),
        (caches[0], "components.a.cache", "is named twice"),
    ):
        config = LmDataConfig({"a": ComponentConfig([caches[0].path, other.path])})
        with pytest.raises(ConfigError, match=message) as caught:
            config.dataset()
        assert caught.value.field == field
    with pytest.raises(CacheMissingError):
        LmDataConfig({"a": ComponentConfig([caches[0].path, str(tmp_path / "no")])}).open_caches()
    theirs = {**caches[1].ledger.tokenizer, "fingerprint": "another"}
    write_ledger(caches[1].path, replace(caches[1].ledger, tokenizer=theirs))
    with pytest.raises(ConfigError, match="was built with another tokenizer") as caught:
        LmDataConfig({"a": ComponentConfig([c.path for c in caches])}).open_caches()
    assert (caught.value.field, caught.value.value) == ("components.a.cache", caches[1].path)
    with pytest.raises(ConfigError, match="is empty"):
        load_config(overrides=["components.a.cache=[]"])
    with pytest.raises(ConfigError, match="several caches"):
        load_config(overrides=["components.a.cache=[x, y]", "components.a.source.paths=[z]"])


def test_shuffled_members_tell_the_numbers_of_their_originals(tmp_path):
    """A list of documents means the same ones, whether members are shuffled or not."""
    plain = [write_cache(tmp_path / f"p{k}", [random_documents(20 + k, seed=k)]) for k in range(3)]
    for k in (0, 2):
        reshuffle(plain[k], str(tmp_path / f"s{k}"), ReshuffleConfig(k + 5), progress=False)
    mixed = JoinedCache([open_cache(tmp_path / "s0"), plain[1], open_cache(tmp_path / "s2")])
    joined = JoinedCache(plain)
    places = mixed.stored_at(np.arange(63))
    assert sorted(places.tolist()) == list(range(63))
    assert mixed.originals(places).tolist() == list(range(63))
    assert [mixed.document(int(p)).tolist() for p in places] == [
        joined.document(i).tolist() for i in range(63)
    ]
    assert [mixed.original(int(p)).number for p in places] == list(range(63))
    removed = [DocumentFilter([3, 25, 60]).of(cache) for cache in (mixed, joined)]
    assert removed[0].num_tokens == removed[1].num_tokens
    assert sorted(mixed.originals(removed[0].documents.numbers(np.arange(3))).tolist()) == [
        3,
        25,
        60,
    ]
    assert joined.original(25) == OriginalDocument(25, str(tmp_path / "p1" / "00000"), 5, [])
    with pytest.raises(ConfigError, match="units of 1"):
        mixed.check_unit(2)
