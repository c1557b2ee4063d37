"""Sources with buckets are groups of components: what runs deliver, amend, resume and refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.config.bucketed import written_out
from headrace.config.parsing import decode
from headrace.config.writing import given_fields
from headrace.data import MixtureDataset
from headrace.data.buckets import BucketsConfig
from headrace.data.columns import ColumnConfig
from headrace.errors import ConfigError, PlanMismatchError
from headrace.mix import AmendmentConfig, StageConfig
from headrace.order import ValidationConfig
from headrace.pack import PackingConfig
from headrace.run import RunLock, open_run, where
from headrace.run.changes import run_changes
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache

DOCUMENTS = 90
SCORES = np.random.default_rng(0).integers(0, 4, DOCUMENTS)
LENGTHS = [3 + k % 6 for k in range(DOCUMENTS)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """``a`` has the token k + 1 in document k, with the score SCORES[k]; ``b`` and ``c`` are other
    sources.
    """
    root = tmp_path_factory.mktemp("bucketed")
    documents = [np.full(n, k + 1) for k, n in enumerate(LENGTHS)]
    score = {LeafSpec("score", "uint8", "fixed"): lambda tokens: SCORES[tokens[:1] - 1]}
    write_cache(root / "a", [documents[:50], documents[50:]], leaves=score)
    for name in "bc":
        write_cache(root / name, [[np.full(5, 200)] * 40])
    return {name: str(root / name) for name in "abc"}


def config(
    paths: Mapping[str, str], buckets: BucketsConfig | None, names: str = "a", **changes: Any
) -> LmDataConfig:
    packed = PackingConfig(algorithm="bfd")
    components = {n: ComponentConfig(paths[n], packing=packed) for n in names}
    components["a"] = dataclasses.replace(components["a"], buckets=buckets)
    return LmDataConfig(components, **{"seq_len": 8, "batch_size": 8, **changes})


def mixture_of(run: LmDataConfig) -> MixtureDataset:
    """What a run of one phase draws from."""
    return cast(MixtureDataset, run.dataset())


def delivered(run: LmDataConfig, rows: int) -> np.ndarray:
    """Tokens of each document of ``a`` in the first rows of a run."""
    tokens = run.dataset().read(np.arange(rows)).tokens
    return np.bincount(tokens.ravel(), minlength=DOCUMENTS + 1)[1 : DOCUMENTS + 1]


@pytest.mark.parametrize("repeats", [[1, 1, 2, 1], [0, 1, 3, 2], [0.5, 1, 2, 0.5]], ids=str)
def test_documents_are_seen_as_often_as_their_buckets_repeat(paths, repeats):
    buckets = BucketsConfig("score", edges=[1, 2, 3], repeats=repeats)
    layers = mixture_of(config(paths, buckets)).components
    passes = 2  # so that paces of one half come out even
    rows = sum(
        passes * pace * (layer.rows_of_pass or 0)
        for pace, layer in zip(np.diff(sorted({0, *repeats})), layers, strict=True)
    )
    run = config(paths, buckets, batch_size=1)
    times = np.asarray(repeats)[SCORES] * passes
    assert delivered(run, int(rows)).tolist() == (times * LENGTHS).tolist()


def test_documents_are_seen_as_often_as_a_column_says(paths):
    run = config(paths, BucketsConfig("score", levels=[1, 2, 3]), batch_size=1)
    rows = sum(layer.rows_of_pass or 0 for layer in mixture_of(run).components)
    assert delivered(run, rows).tolist() == (SCORES * LENGTHS).tolist()


@given(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.5]), min_size=2, max_size=3))
@settings(max_examples=10)
def test_passes_are_as_the_weights_repeat_at_every_step(paths, repeats):
    weights = {name: {"repeat": times} for name, times in zip("abc", repeats, strict=False)}
    mixture = mixture_of(config(paths, None, "abc"[: len(repeats)], weights=weights))
    sizes = np.asarray([part.rows_of_pass for part in mixture.components])
    target = np.asarray(repeats) * sizes / (np.asarray(repeats) * sizes).sum()
    for step in (1, 7, 50, 333):
        assert (abs(mixture.draws.starts_at(step) - 8 * step * target) < 1).all()


def test_a_group_that_repeats_is_drawn_as_if_its_sources_stood_in_its_place(paths):
    flat = config(
        paths, None, "abc", weights={"a": {"repeat": 2}, "b": {"repeat": 4}, "c": {"repeat": 1}}
    )
    group = {"weight": {"repeat": 2}, "blend": {"a": {"repeat": 1}, "b": {"repeat": 2}}}
    nested = config(paths, None, "abc", weights={"g": group, "c": {"repeat": 1}})
    assert np.allclose(*(mixture_of(run).weights_at(np.arange(1)) for run in (flat, nested)))


def test_shares_of_buckets_follow_their_schedules(paths):
    ramp = {"linear": {0: 0, 40: 3}}
    run = config(
        paths,
        BucketsConfig("score", edges=[1, 3], weights=[1, 1, ramp], names=["low", "mid", "high"]),
        "ab",
    )
    assert [*run.components] == ["a/low", "a/mid", "a/high", "b"]
    mixture = mixture_of(run)
    assert mixture.weights_at(np.array([0, 40])).tolist() == [
        [0.25, 0.25, 0, 0.5],
        [0.1, 0.1, 0.3, 0.5],
    ]
    batch = mixture.read(np.arange(400))
    for source, scores in enumerate(([0], [1, 2], [3])):
        tokens = batch.tokens[(batch.source_id == source)[:, None] & (batch.segment_ids >= 0)]
        assert {*SCORES[tokens - 1]} == {*scores}


def test_without_weights_each_bucket_has_what_it_holds(paths):
    run = config(paths, BucketsConfig("length", quantiles=[0.5]), "ab")
    mixture = mixture_of(run)
    rows = [part.rows_of_pass or 0 for part in mixture.components[:2]]
    shares = mixture.weights_at(np.arange(1))[0, :2]
    assert shares.sum() == 0.5
    assert np.allclose(shares / 0.5, np.asarray(rows) / sum(rows))


def test_a_name_means_the_group_wherever_weights_stand(paths):
    buckets = BucketsConfig("score", edges=[2], weights=[1, 2])
    blend = {"a/0": 1, "a/1": 2}
    run = config(
        paths, buckets, "abc", weights={"x": {"weight": 2, "blend": {"a": 3, "b": 1}}, "c": 1}
    )
    assert run.weights == {
        "x": {"weight": 2, "blend": {"a": {"weight": 3, "blend": blend}, "b": 1}},
        "c": 1,
    }
    stages = [StageConfig({"b": 1}, tokens=640), StageConfig({"a": 2, "b": 1})]
    run = config(
        paths,
        buckets,
        "abc",
        stages=stages,
        amendments=[AmendmentConfig(30, {"c": 1}, {"a": 5, "a/1": 9})],
    )
    weights = [stage.blend.to_config() for stage in run.plan().stages]
    assert weights[1] == {"a": {"weight": 2, "blend": blend}, "b": 1}
    assert weights[2] == {"a": {"weight": 5, "blend": {"a/0": 1, "a/1": 9}}, "b": 1, "c": 1}
    run = config(
        paths,
        buckets,
        "ab",
        amendments=[AmendmentConfig(9, {"a": 2}, drop=["b"])],
        weights={"b": 1},
    )
    assert run.plan().stages[1].blend.names == ("a/0", "a/1")


def test_what_is_written_out_reads_back_and_stays(paths):
    run = config(
        paths,
        BucketsConfig("score", edges=[1, 2], repeats=[1, 2, 0.5]),
        "ab",
        max_epochs=4,
        num_steps=9,
    )
    assert [c.max_epochs for c in run.components.values()] == [2, 2, 4, None]
    assert [c.buckets and c.buckets.keep for c in run.components.values()] == [
        [0, 1, 2],
        [0, 1],
        [1],
        None,
    ]
    for again in (
        decode(LmDataConfig, yaml.safe_load(run.to_yaml())),
        decode(LmDataConfig, given_fields(run)),
    ):
        assert again == run
    fields = (run.components, run.weights, run.stages, run.amendments)
    assert dict(written_out(*fields, run.validation, run.max_epochs)) == {}
    assert dataclasses.replace(run, num_steps=8).components == run.components


def test_one_bucket_is_a_filter(paths):
    run = config(paths, BucketsConfig("score", edges=[2], keep=[1]), "ab")
    assert [*run.components] == ["a", "b"]
    found = delivered(run, 240)
    assert ((found > 0) == (SCORES >= 2)).all()


def test_a_bucket_is_weighed_anew_from_a_step_on(paths, tmp_path):
    buckets = BucketsConfig("score", edges=[2], weights=[1, 1], names=["low", "high"])
    began = config(paths, buckets, "ab")
    run = open_run(str(tmp_path), began)
    edited = config(paths, dataclasses.replace(buckets, weights=[1, 3]), "ab")
    changes = run_changes(run.lock, edited, 20)
    assert changes.amendment == AmendmentConfig(20, weights={"a/high": 3})
    amended = dataclasses.replace(began, amendments=[changes.amendment])
    assert open_run(str(tmp_path), amended, step=15).history[0]["until_step"] == 20
    moved = run_changes(run.lock, config(paths, dataclasses.replace(buckets, edges=[3]), "ab"), 20)
    assert moved.amendment is None
    assert any("buckets.edges" in line for line in moved.refused or moved.fields or [])


@pytest.mark.parametrize("packing", ["null", "{}"])
def test_a_run_is_bound_to_the_documents_that_a_file_chooses(paths, tmp_path, packing):
    numbers = SCORES.copy()
    file = f"{tmp_path}/numbers.npy"
    web = (
        f"components.a={{cache: {paths['a']}, packing: {packing}, buckets: {{by: {file}, edges:"
        " [2]}}"
    )
    settings = ["seq_len=8", "batch_size=8", web]
    np.save(file, numbers)
    before = RunLock.of(load_config(overrides=settings).loader())
    np.save(file, numbers + 0.25)  # the same documents in each bucket
    before.check_same(RunLock.of(load_config(overrides=settings).loader()))
    np.save(file, np.where(np.arange(DOCUMENTS) == 7, 3 - numbers, numbers))
    with pytest.raises(PlanMismatchError, match="another plan"):
        before.check_same(RunLock.of(load_config(overrides=settings).loader()))


def test_a_run_says_where_its_buckets_are(paths):
    run = config(
        paths, BucketsConfig("score", edges=[1], weights=[1, 3], names=["low", "high"]), "ab"
    )
    here = where(run, 40)
    assert {name: source.rows for name, source in here.sources.items()} == {
        "a/low": 40,
        "a/high": 120,
        "b": 160,
    }


def test_each_block_of_a_cache_that_memory_holds_is_read_once(paths):
    run = config(paths, BucketsConfig("score", edges=[1, 2, 3]))
    (cache,) = {id(cache): cache for cache in run.open_caches().values()}.values()
    with run.loader() as loader, loader.iter_from_step(0) as batches:
        tokens = [np.asarray(next(batches).tokens) for _ in range(30)]
        fetches = loader.stats().reads.block_fetches
    assert fetches == sum(-(-part.data.length // part.data.chunk_elements) for part in cache.parts)
    wanted = run.dataset().read(np.arange(240)).tokens
    assert (np.sort(np.concatenate(tokens), axis=None) == np.sort(wanted, axis=None)).all()


def refused(paths, buckets: BucketsConfig, names: str = "ab", **changes) -> str:
    own = changes.pop("own", {})
    plain = {n: ComponentConfig(paths[n]) for n in names}
    plain["a"] = ComponentConfig(paths["a"], buckets=buckets, **own)
    with pytest.raises(ConfigError) as caught:
        LmDataConfig(plain, **changes)
    return str(caught.value)


def test_what_does_not_go_with_buckets_is_refused(paths):
    two = BucketsConfig("score", edges=[2], weights=[1, 2])
    for field in ("max_tokens", "max_share"):
        assert f"components.a.{field}" in refused(paths, two, own={field: 1})
    said = refused(paths, two, weights={"temperature": 2})
    assert said.startswith(
        "weights = {'temperature': 2}: does not go with sources that have buckets"
    )
    said = refused(paths, two, own={"weight": 2}, weights={"a": 1, "b": 1})
    assert said == "components.a.weight = 2: is given beside weights. Say the weights in one place."
    layers = BucketsConfig("score", edges=[2], repeats=[1, 2])
    said = refused(paths, layers, validation=ValidationConfig(10))
    assert said.endswith("Hold out the same documents of all: validation.by: documents.")
    config(paths, layers, "ab", validation=ValidationConfig(10, by="documents"))
    said = refused(paths, BucketsConfig("score", edges=[2], weights=[1, -1]))
    assert said.startswith("components.a.buckets.weights[1] = -1")
    with pytest.raises(ConfigError, match="is the name of two components"):
        LmDataConfig(
            {"a": ComponentConfig(paths["a"], buckets=two), "a/1": ComponentConfig(paths["b"])}
        )
    with pytest.raises(ConfigError, match="stands beside weights that repeat"):
        config(paths, None, "ab", weights={"a": {"repeat": 1}, "b": 2}).dataset()


def test_errors_of_a_file_name_the_field(paths):
    web = f"components.web={{cache: {paths['a']}, buckets: {{by: score, edges: [3, 1]}}}}"
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[web])
    assert caught.value.field == "components.web.buckets.edges"


def test_components_of_one_cache_with_other_columns_keep_them_apart(paths):
    own = {"one": None, "two": {"score": "none"}}
    run = LmDataConfig(
        {name: ComponentConfig(paths["a"], columns=columns) for name, columns in own.items()},
        seq_len=8,
        batch_size=8,
        columns={"score": ColumnConfig("score", default=9)},
    )
    with run.loader() as loader:
        batch = loader.batch_at(2)
    source, scores, tokens = (
        np.asarray(leaf) for leaf in (batch.source_id, batch.extras["score"], batch.tokens)
    )
    assert (scores[source == 0] == SCORES[tokens[source == 0] - 1]).all()
    assert (scores[source == 1] == 9).all()
    assert {*source} == {0, 1}


@settings(max_examples=10, deadline=None)
@given(
    edges=st.tuples(*[st.sets(st.integers(1, 3), min_size=1).map(sorted)] * 2),
    packings=st.tuples(*[st.sampled_from([None, PackingConfig(algorithm="bfd")])] * 2),
)
def test_buckets_have_one_digest_if_and_only_if_they_have_the_same_documents(
    paths: dict[str, str],
    edges: tuple[list[float], list[float]],
    packings: tuple[PackingConfig | None, PackingConfig | None],
):
    digest_of: dict[tuple[float, float], set[str]] = {}
    for some, packing in zip(edges, packings, strict=True):
        source = ComponentConfig(
            paths["a"], packing=packing, buckets=BucketsConfig("score", edges=some)
        )
        run = LmDataConfig({"a": source}, seq_len=4, batch_size=8)
        digests = RunLock.of(run.loader()).documents
        ranges = zip([0, *some], [*some, 4], strict=True)
        assert [*digests] == [f"a/{k}" for k in range(len(some) + 1)]
        for bounds, digest in zip(ranges, digests.values(), strict=True):
            digest_of.setdefault(bounds, set()).add(digest)
    every = [digest for digests in digest_of.values() for digest in digests]
    assert len({*every}) == len(every) == len(digest_of)
