"""Buckets of documents against a slow count, and columns, files and edges that are of no use."""

import bisect
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data import PackedTokenDataset, TokenSeqDataset
from headrace.data.buckets import BucketsConfig, expected_repeats, without_others
from headrace.data.buckets import buckets_of as buckets_of_numbers
from headrace.data.document_numbers import DocumentNumbers
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.ingest import reshuffle
from headrace.ingest.reshuffle import ReshuffleConfig
from headrace.store import TokenCache, open_cache
from headrace.store.joined import JoinedCache
from headrace.store.layout import LeafSpec
from headrace.testing import tiny_cache, write_cache


def scored(folder, scores, dtype="float32", lengths=None, parts=2) -> TokenCache:
    """A cache whose document k has the token k and the score ``scores[k]``, in some parts."""
    sizes = [1 + k % 5 for k in range(len(scores))] if lengths is None else lengths
    documents = [np.full(n, k) for k, n in enumerate(sizes)]
    cuts = np.array_split(np.arange(len(scores)), parts)
    values = {
        LeafSpec("score", dtype, "fixed"): lambda tokens: np.array([scores[tokens[0]]], dtype)
    }
    return write_cache(
        folder, [[documents[k] for k in cut] for cut in cuts], vocab_size=1000, leaves=values
    )


DOCUMENTS = 40


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> TokenCache:
    """A cache of 40 documents, whose numbers each example writes into a file."""
    folder = tmp_path_factory.mktemp("plain")
    return scored(folder, [0] * DOCUMENTS, lengths=[4 + k % 5 for k in range(DOCUMENTS)])


def buckets_of(cache: TokenCache, config: BucketsConfig, path: str = "buckets") -> np.ndarray:
    return buckets_of_numbers(DocumentNumbers(cache), config, path)


def from_file(cache: TokenCache, numbers, dtype, **config) -> BucketsConfig:
    path = f"{cache.path}/numbers.npy"
    np.save(path, np.asarray(numbers, dtype))
    return BucketsConfig(path, **config)


def numbers_of(values: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(values, min_size=DOCUMENTS, max_size=DOCUMENTS)


FINITE = st.floats(-100, 100, allow_nan=False, width=32)


@given(
    numbers_of(FINITE),
    st.lists(FINITE, min_size=1, max_size=5, unique=True),
    st.sampled_from(["float32", "float64"]),
)
def test_edges_cut_numbers_as_a_slow_search_does(plain, scores, edges, dtype):
    edges = sorted(edges)
    of_document = buckets_of(plain, from_file(plain, scores, dtype, edges=edges))
    assert of_document.tolist() == [bisect.bisect_right(edges, score) for score in scores]


def test_an_edge_that_float32_does_not_hold_is_the_nearest_that_it_does(tmp_path):
    cache = scored(tmp_path, [0.1, 0.3, 0.7, 0.69])  # 0.7 as float32 is below 0.7
    assert buckets_of(cache, BucketsConfig("score", edges=[0.3, 0.7])).tolist() == [0, 1, 2, 1]


@given(numbers_of(st.integers(-5, 5)), st.sampled_from([[0.5], [0.25, 0.5, 0.9]]))
def test_quantiles_leave_equal_numbers_together_and_as_many_below_as_they_say(
    plain, scores, quantiles
):
    of_document = buckets_of(plain, from_file(plain, scores, np.int16, quantiles=quantiles))
    for a, one in zip(scores, of_document, strict=True):
        for b, other in zip(scores, of_document, strict=True):
            assert a != b or one == other
            assert a >= b or one <= other
    for k, share in enumerate(quantiles):
        assert (of_document <= k).mean() <= share


def test_lengths_are_the_tokens_of_documents(tmp_path):
    cache = scored(tmp_path, [0] * 9, lengths=[1, 2, 3, 4, 5, 4, 3, 2, 1])
    assert buckets_of(cache, BucketsConfig("length", edges=[2, 4])).tolist() == [
        0,
        1,
        1,
        2,
        2,
        2,
        1,
        1,
        0,
    ]


def test_a_file_counts_as_a_column_does_and_follows_the_original_of_a_shuffled_cache(tmp_path):
    scores = [k % 7 / 7 for k in range(60)]
    cache = scored(tmp_path / "cache", scores)
    np.save(tmp_path / "scores.npy", np.asarray(scores, np.float32))
    reshuffle(cache, str(tmp_path / "moved"), ReshuffleConfig(3), progress=False)
    for one in (cache, open_cache(tmp_path / "moved")):
        by_leaf = buckets_of(one, BucketsConfig("score", edges=[0.2, 0.6]))
        by_file = buckets_of(one, BucketsConfig(f"{tmp_path}/scores.npy", edges=[0.2, 0.6]))
        assert by_leaf.tolist() == by_file.tolist()


def test_buckets_of_joined_caches_are_those_of_each(tmp_path):
    both = [
        scored(tmp_path / name, [(k * step) % 11 for k in range(30)])
        for name, step in (("a", 3), ("b", 5))
    ]
    config = BucketsConfig("score", edges=[4, 8])
    assert buckets_of(JoinedCache(both), config).tolist() == [
        b for c in both for b in buckets_of(c, config)
    ]


@given(numbers_of(st.floats(0, 4, width=32)), st.integers(0, 1 << 40))
def test_levels_are_those_around_the_number(plain, scores, seed):
    config = from_file(plain, scores, np.float32, levels=[0.5, 1, 4], seed=seed)
    times = expected_repeats(config)[buckets_of(plain, config)]
    levels = [0, 0.5, 1, 4]
    for score, level in zip(scores, times.tolist(), strict=True):
        below = max(value for value in levels if value <= score)
        above = min(value for value in levels if value >= score)
        assert level in (below, above)


def test_a_number_between_levels_is_what_is_expected(tmp_path):
    n = 4000
    cache = write_cache(tmp_path, [[np.array([1])] * n])
    configs = [
        from_file(cache, [1.3] * n, np.float64, levels=[1, 2], seed=seed) for seed in range(5)
    ]
    drawn = [expected_repeats(config)[buckets_of(cache, config)].mean() for config in configs]
    assert all(abs(mean - 1.3) < 4 * (0.3 * 0.7 / n) ** 0.5 for mean in drawn)
    assert len({*drawn}) == 5


def test_levels_of_a_shuffled_cache_are_those_of_its_original(tmp_path):
    cache = scored(tmp_path / "cache", [k % 10 / 4 for k in range(80)])
    reshuffle(cache, str(tmp_path / "moved"), ReshuffleConfig(5), progress=False)
    moved = open_cache(tmp_path / "moved")
    config = BucketsConfig("score", levels=[1, 4])
    assert (
        buckets_of(cache, config)[moved.originals(np.arange(80))].tolist()
        == buckets_of(moved, config).tolist()
    )


def test_the_draw_between_levels_is_pinned(tmp_path):
    cache = scored(tmp_path, [0.5] * 20)
    assert (
        "".join(map(str, buckets_of(cache, BucketsConfig("score", levels=[1])).tolist()))
        == "11000110010111110000"
    )


@settings(max_examples=12)
@given(
    numbers_of(st.integers(0, 2)), st.sets(st.integers(0, DOCUMENTS - 1), max_size=5), st.booleans()
)
def test_components_of_a_cache_hold_each_token_of_their_buckets_once(plain, scores, gone, packed):
    """Whatever is removed, packed or not: against a count of tokens, each of which names its
    document.
    """
    lengths = plain.lengths().tolist()
    kept = {f"{k}": [k] for k in {*scores}} | {"some": sorted({*scores})[:2]}
    buckets = {
        name: from_file(plain, scores, np.uint8, edges=[1, 2], keep=keep)
        for name, keep in kept.items()
    }
    removed = dict.fromkeys(buckets, DocumentFilter([*gone]).of(plain))
    for name, left_out in without_others(
        dict.fromkeys(buckets, DocumentNumbers(plain)), buckets, removed
    ).items():
        want = {
            k: lengths[k] for k, score in enumerate(scores) if score in kept[name] and k not in gone
        }
        if len(want) < 2:
            continue
        how = {"removed": left_out}
        rows = (
            PackedTokenDataset(plain, 8, algorithm="bfd", **how)
            if packed
            else TokenSeqDataset(plain, 2, **how)
        )
        batch = rows.read(np.arange(len(rows)))
        tokens = batch.tokens[batch.segment_ids >= 0]
        found = {
            k: n
            for k, n in zip(*np.unique(tokens, return_counts=True), strict=True)
            if k or not packed
        }
        want = {k: n for k, n in want.items() if k or not packed}  # padding is 0
        assert {*found} <= {*want}
        assert all(found[k] <= want[k] for k in found)
        assert packed or sum(want.values()) - sum(found.values()) == rows.dropped_tokens <= 2
        assert found == want or not packed


def bad(**fields) -> str:
    with pytest.raises(ConfigError) as caught:
        BucketsConfig(**{"by": "score", **fields})
    return str(caught.value)


def test_settings_that_say_nothing_or_two_things_are_refused():
    assert (
        bad()
        == "edges: is missing, and so are quantiles and levels. Give one of them, e.g. edges: [0.5]."
    )
    assert bad(edges=[1], levels=[1]).startswith("levels: is given beside edges")
    assert bad(edges=[2, 1]) == "edges = 1: must be rising numbers. E.g. [0.3, 0.7]."
    assert bad(edges=[]) == "edges = []: must be rising numbers. E.g. [0.3, 0.7]."
    assert bad(edges=[float("nan")]).startswith("edges = nan: must be rising numbers")
    assert bad(quantiles=[0.5, 1]).startswith(
        "quantiles = 1: must be rising numbers between 0 and 1"
    )
    assert bad(levels=[0, 1]).startswith("levels = 0: must be rising numbers above 0")
    assert bad(edges=[*range(255)]).startswith("edges = 256: make more than 255 buckets")
    assert bad(edges=[1], weights=[1]).startswith("weights = 1: must be 2, one for each bucket")
    assert bad(edges=[1], repeats=[1, -1]).startswith("repeats = -1: must be numbers from 0 up")
    assert bad(edges=[1], repeats=[0, 0]).startswith("repeats = [0, 0]: leave nothing")
    assert bad(edges=[1], names=["a", "a"]).startswith(
        "names = 'a': cannot be the name of a bucket"
    )
    assert bad(edges=[1], keep=[2]).startswith("keep = 2: is no bucket. They count from 0 to 1.")
    assert bad(edges=[1], keep=[]).startswith("keep: leaves no bucket")
    assert bad(edges=[1], keep=[0], weights=[1, 1]).startswith("keep: does not go with weights")
    assert bad(levels=[1], repeats=[1, 1]).startswith("repeats = [1, 1]: does not go with levels")


def refused(cache: TokenCache, config: BucketsConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        buckets_of(cache, config, "components.web.buckets")
    assert (caught.value.field or "").startswith("components.web.buckets.by")
    return f"{caught.value.problem} {caught.value.cure}"


def test_columns_without_a_number_for_each_document_are_refused(tmp_path):
    cache = scored(tmp_path / "c", [0.5, float("nan"), 0.25, -1])
    assert "Did you mean 'score'?" in refused(cache, BucketsConfig("scor", edges=[1]))
    assert "says nan of the document at 1" in refused(cache, BucketsConfig("score", edges=[1]))
    leaves = {
        LeafSpec("a_token", "float32", "ragged", 1): lambda tokens: np.ones(
            len(tokens), np.float32
        ),
        LeafSpec("text", "uint8"): lambda tokens: np.zeros(2, np.uint8),
    }
    cache = write_cache(tmp_path / "d", [[np.array([3, 5])]], leaves=leaves)
    for name in ("a_token", "text"):
        said = refused(cache, BucketsConfig(name, edges=[1]))
        assert "has not one number per document" in said
        assert f"--leaf {name}=FIELD:float32" in said


def test_numbers_that_are_no_levels_are_refused(tmp_path):
    cache = scored(tmp_path, [0.5, 2.5, -1])
    said = refused(cache, BucketsConfig("score", levels=[1, 2]))
    assert "says 2.5 of document 1, which is above the highest level, 2" in said
    assert "levels: [1, 2, 2.5]" in said
    assert "says -1 of document 2, which is below 0" in refused(
        cache, BucketsConfig("score", levels=[1, 2.5])
    )


def test_files_that_are_not_of_the_cache_are_refused(tmp_path):
    cache = scored(tmp_path / "c", [0.5, 1.5])
    np.save(tmp_path / "short.npy", np.ones(1))
    np.save(tmp_path / "table.npy", np.ones((2, 2)))
    np.save(tmp_path / "texts.npy", np.array(["a", "b"]))
    np.save(tmp_path / "infinite.npy", np.array([1, np.inf]))
    (tmp_path / "broken.npy").write_bytes(b"1\n2\n")
    for name, problem in (
        ("missing", "does not exist"),
        ("short", "holds float64 of shape (1,), and"),
        ("table", "holds float64 of shape (2, 2)"),
        ("texts", "holds <U1"),
        ("infinite", "says inf of the document at 1"),
        ("broken", "is not a .npy file of numbers"),
    ):
        assert problem in refused(cache, BucketsConfig(f"{tmp_path}/{name}.npy", edges=[1]))


def test_a_bucket_without_documents_is_refused(tmp_path):
    cache = scored(tmp_path, [0.5, 1.5])
    config = BucketsConfig("score", edges=[1, 9], keep=[2])
    with pytest.raises(
        ConfigError, match=r"leaves no document: the buckets .* by score hold \[1, 1, 0\]"
    ) as caught:
        without_others({"web/2": DocumentNumbers(cache)}, {"web/2": config}, {"web/2": None})
    assert caught.value.field == "components.web/2.buckets.keep"


@pytest.mark.parametrize("gone", [[], [3, 999]])
def test_buckets_that_lie_together_are_those_that_a_list_leaves(tmp_path, gone):
    """They are found by their borders, and not document by document."""
    cache = tiny_cache(tmp_path / "cache", documents=1000)
    bucket = np.repeat([2, 0, 1], [300, 500, 200])
    np.save(tmp_path / "bucket.npy", bucket)
    rule = BucketsConfig(f"{tmp_path}/bucket.npy", edges=[1, 2])
    buckets = {str(k): replace(rule, keep=[k]) for k in range(3)}
    numbers = dict.fromkeys(buckets, DocumentNumbers(cache))
    removed = dict.fromkeys(buckets, DocumentFilter(gone).of(cache) if gone else None)
    for name, one in without_others(numbers, buckets, removed).items():
        assert one is not None
        others = np.union1d(np.flatnonzero(bucket != int(name)), gone).astype(int)
        listed = DocumentFilter(others).of(cache)
        assert one.documents_digest == listed.documents_digest
        assert one.num_documents == others.size
        assert one.num_tokens == listed.num_tokens
