"""A resumed run may change its mixture from a step on, if it says so; the past stays as it was."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset
from headrace.errors import ConfigError, PlanMismatchError
from headrace.mix import AmendmentConfig, StageConfig
from headrace.mix.quota_walk import CHUNK
from headrace.mix.stages import Stages
from headrace.run import RunLock, open_run
from headrace.run.anchors import Anchors
from headrace.testing import tiny_cache

BATCH = 8


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("amended")
    for seed, name in enumerate("abc"):
        tiny_cache(root / name, documents=150 + 50 * seed, parts=1 + seed, seed=seed)
    return {name: str(root / name) for name in "abc"}


def config(caches: dict[str, str], names: str = "ab", **changes: object) -> LmDataConfig:
    components = {n: ComponentConfig(caches[n]) for n in names}
    return LmDataConfig(components, seq_len=16, batch_size=BATCH, **changes)  # pyright: ignore[reportArgumentType]


def rows(run: LmDataConfig, first: int, stop: int) -> list[tuple[int, int]]:
    located = run.dataset().locate(np.arange(first * BATCH, stop * BATCH))
    return list(zip(located.source.tolist(), located.row.tolist(), strict=True))


@settings(deadline=None)
@given(
    step=st.integers(1, 30),
    weight=st.floats(0.05, 20),
    drop=st.sampled_from([[], ["a"], ["b"]]),
    ramp=st.booleans(),
)
def test_the_past_is_untouched_and_the_future_as_declared(caches, step, weight, drop, ramp):
    plain = config(caches)
    new = {"linear": {step: weight, step + 10: weight / 2}} if ramp else weight
    amended = config(caches, "abc", amendments=[AmendmentConfig(step, {"c": new}, drop=drop)])
    assert rows(amended, 0, step) == rows(plain, 0, step)
    after = np.bincount([s for s, _ in rows(amended, step, step + 40)], minlength=3)
    assert after[2] > 0
    assert all(after["abc".index(name)] == 0 for name in drop)
    kept = next(n for n in "ab" if n not in drop)
    before = [r for s, r in rows(plain, 0, 200) if s == "ab".index(kept)]
    seen = [r for s, r in rows(amended, 0, step + 40) if s == "ab".index(kept)]
    assert seen == before[: len(seen)]  # a source that stays goes on where it was


def test_a_run_records_its_amendment(caches, tmp_path):
    folder = str(tmp_path)
    manifest = open_run(folder, config(caches))
    saved = manifest.state(15)
    amended = config(caches, "abc", amendments=[AmendmentConfig(20, {"c": 3})]).loader()
    recorded = open_run(folder, amended, step=15)
    recorded.check(saved)
    assert [h["until_step"] for h in recorded.history] == [20]
    assert RunLock.load(folder) == recorded.lock
    assert open_run(folder, amended, step=90) == recorded
    with pytest.raises(PlanMismatchError, match="another run"):
        recorded.check(
            manifest.state(21)
        )  # made by the old mixture at a step that is the new one's


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": {"a": {"linear": {0: 1, 4000: 5}}, "b": 2}},
        {
            "stages": [
                StageConfig({"a": 3, "b": 1}),
                StageConfig({"b": 1}, step=900),
                StageConfig({"a": 1}, step=901),
            ]
        },
        {"policy": "greedy"},
        {"policy": "swrr"},
        {"policy": "least_consumed"},
        {"seq_len": {0: 16, 1000: 32}},
    ],
    ids=str,
)
def test_a_checkpoint_leaves_an_anchor_and_a_resumed_run_takes_it(caches, tmp_path, changes):
    folder = str(tmp_path)
    more = {"seq_len": 16} | changes
    components = {n: ComponentConfig(caches[n]) for n in "ab"}
    make = lambda: LmDataConfig(components, batch_size=BATCH, **more).loader()  # noqa: E731
    first = make()
    run = open_run(folder, first)
    run.state(2500)
    resumed = make()
    assert open_run(folder, resumed, 2500) == run
    assert (tmp_path / "anchors.json").stat().st_size < 20_000
    plain = make()
    for step in (2499, 2500, 2600):
        index = np.arange(step * BATCH, (step + 1) * BATCH)
        wanted, got = (
            cast(MixtureDataset, x.dataset).at_step(step)[0].locate(index) for x in (plain, resumed)
        )
        assert got.source.tolist() == wanted.source.tolist()
        assert got.row.tolist() == wanted.row.tolist()


def test_a_run_that_is_amended_in_a_ramp_goes_on_where_the_job_was(caches, tmp_path):
    folder = str(tmp_path)
    ramp = {"a": {"linear": {0: 1, 40_000: 9}}, "b": 2}
    begun = config(caches, weights=ramp).loader()
    run = open_run(folder, begun)
    for step in (12_000, 14_000):  # the job got further than the checkpoint that it is resumed from
        run.state(step)
    amend = lambda: config(  # noqa: E731
        caches, "abc", weights=ramp, amendments=[AmendmentConfig(12_300, {"c": 3})]
    ).loader()
    resumed = amend()
    fresh = amend()
    open_run(folder, resumed, 12_100)
    before, *after = (
        cast(MixtureDataset, loader.dataset).draws.starts_at(12_300).tolist()
        for loader in (begun, resumed, fresh)
    )
    assert after == [[*before, 0]] * 2
    walked = []
    for loader in (resumed, fresh):
        quota = cast(Stages, cast(MixtureDataset, loader.dataset).draws.policy)._quotas[0]
        assert quota is not None
        walked.append([chunk for chunk in quota._chunks if 0 < chunk * CHUNK <= 12_000 - CHUNK])
    assert not walked[0]  # with the anchor there is no walk
    assert walked[1]
    assert sorted(Anchors(folder, open_run(folder, resumed, 12_100), resumed).load()) == [
        12_000,
        12_100,
    ]


def test_an_amendment_of_an_amended_run(caches, tmp_path):
    folder = str(tmp_path)
    first = AmendmentConfig(20, {"c": 3})
    open_run(folder, config(caches))
    open_run(folder, config(caches, "abc", amendments=[first]), step=10)
    again = config(caches, "abc", amendments=[first, AmendmentConfig(50, drop=["a"])]).loader()
    assert [h["until_step"] for h in open_run(folder, again, step=50).history] == [20, 50]


def test_the_past_may_not_be_touched(caches, tmp_path):
    folder = str(tmp_path)
    open_run(folder, config(caches))
    with pytest.raises(
        PlanMismatchError, match=r"may touch the past: 25 steps are done\. Begin it at step 25"
    ):
        open_run(
            folder,
            config(caches, "abc", amendments=[AmendmentConfig(20, {"c": 3})]),
            step=25,
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"shuffle": True},
        {"max_epochs": 1.0},
        {"weights": {"a": 1, "b": 2}},
        {"amendments": [AmendmentConfig(20, weights={"b": 3})], "seed": 1},
    ],
)
def test_what_is_not_declared_is_refused(caches, tmp_path, changes):
    folder = str(tmp_path)
    open_run(folder, config(caches))
    with pytest.raises(PlanMismatchError, match="another config"):
        open_run(folder, config(caches, **changes))


def test_taking_an_amendment_back_is_refused(caches, tmp_path):
    folder = str(tmp_path)
    open_run(folder, config(caches, "abc", amendments=[AmendmentConfig(20, {"c": 3})]))
    with pytest.raises(PlanMismatchError, match="another config"):
        open_run(folder, config(caches))


def test_an_amendment_needs_the_step_that_the_run_has_reached(caches, tmp_path):
    folder = str(tmp_path)
    before = open_run(folder, config(caches))
    with pytest.raises(PlanMismatchError, match="knows of no checkpoint"):
        open_run(folder, config(caches, "abc", amendments=[AmendmentConfig(20, {"c": 3})]))
    assert RunLock.load(folder) == before.lock  # nothing was overwritten


@pytest.mark.parametrize("weights", [None, {"a": 1, "b": 2}])
def test_the_order_of_components_is_part_of_the_run(caches, weights):
    one = config(caches, "ab", weights=weights)
    other = config(caches, "ba", weights=weights)
    assert RunLock.of(one.loader()).fingerprint != RunLock.of(other.loader()).fingerprint


def test_an_added_component_may_stand_anywhere(caches, tmp_path):
    folder = str(tmp_path)
    open_run(folder, config(caches, weights={"a": 1, "b": 2}))
    last = config(
        caches, "abc", weights={"a": 1, "b": 2}, amendments=[AmendmentConfig(20, {"c": 3})]
    ).loader()
    moved = config(
        caches, "cab", weights={"a": 1, "b": 2}, amendments=[AmendmentConfig(20, {"c": 3})]
    )
    assert open_run(folder, moved, step=10).fingerprint == RunLock.of(last).fingerprint


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"amendments": [AmendmentConfig(0, weights={"b": 1})]},
            r"amendments\[0\].step = 0: is not after step 0",
        ),
        (
            {
                "amendments": [
                    AmendmentConfig(9, weights={"b": 1}),
                    AmendmentConfig(9, weights={"b": 2}),
                ]
            },
            r"amendments\[1\].step = 9",
        ),
        ({"amendments": [AmendmentConfig(9, {"bb": 1})]}, "Did you mean 'b'"),
        ({"amendments": [AmendmentConfig(9, weights={"bb": 1})]}, "Did you mean 'b'"),
        (
            {"amendments": [AmendmentConfig(9, drop=["c"])]},
            r"amendments\[0\].drop = 'c': is not in the mixture",
        ),
        ({"amendments": [AmendmentConfig(9, drop=["a", "b"])]}, "needs at least one source"),
        (
            {"amendments": [AmendmentConfig(9, weights={"a": 0, "b": 0})]},
            "all weights are zero at step 9",
        ),
        (
            {
                "amendments": [
                    AmendmentConfig(9, weights={"a": {"linear": {0: 1, 20: 0}}}, drop=["b"])
                ]
            },
            r"amendments\[0\].weights: all weights are zero at step 20",
        ),
        ({"weights": {"a": 1}, "stages": [StageConfig({"a": 1})]}, "beside stages"),
        (
            {"stages": [StageConfig({"a": 1}), StageConfig({"b": 1})]},
            r"stages\[1\].step: has no beginning",
        ),
        (
            {"stages": [StageConfig({"a": 1}), StageConfig({"c": 1}, step=5)]},
            r"stages\[1\].weights.c: is not a component",
        ),
        ({"stages": [StageConfig({"a": 1, "b": 1}, step=3)]}, "must begin at step 0"),
        ({"weights": {"a": 1}}, "components.b: has no weight anywhere"),
    ],
)
def test_bad_plans(caches, changes, said):
    with pytest.raises(ConfigError, match=said):
        config(caches, **changes).dataset()


def test_a_mixture_is_checked_on_its_own_steps_only(caches):
    until_20 = {"linear": {0: 1, 20: 0}}
    from_20 = {"step": {0: 0, 20: 1}}
    stages = [
        StageConfig({"a": until_20}),
        StageConfig({"b": from_20}, step=20),
        StageConfig({"a": 1}, step=30),
    ]
    drawn = [s for s, _ in rows(config(caches, stages=stages), 0, 40)]
    assert drawn == [0] * 20 * BATCH + [1] * 10 * BATCH + [0] * 10 * BATCH


def test_sources_of_groups_are_amended_in_place(caches):
    nested = {"x": {"weight": 3, "blend": {"a": 1, "b": 1}}, "c": 1}
    plain = config(caches, "abc", weights=nested)
    changes = [
        AmendmentConfig(10, weights={"a": 3}),
        AmendmentConfig(20, drop=["b"]),
        AmendmentConfig(30, drop=["x"]),
    ]
    amended = config(caches, "abc", weights=nested, amendments=changes)
    assert rows(amended, 0, 10) == rows(plain, 0, 10)
    drawn = [
        np.bincount([s for s, _ in rows(amended, k, k + 10)], minlength=3) for k in (0, 10, 20, 30)
    ]
    assert (
        np.abs(np.array(drawn) - [[30, 30, 20], [45, 15, 20], [60, 0, 20], [0, 0, 80]]).max() <= 1
    )


def test_stages_by_tokens_begin_after_whole_steps(caches):
    stages = [StageConfig({"a": 1}, "early", tokens=1000), StageConfig({"b": 3, "a": 1}, "late")]
    first = [stage.first_step for stage in config(caches, stages=stages).plan().stages]
    assert first == [0, 8]  # 1000 tokens are 63 rows of 16, so 8 steps of 8 rows


def test_a_source_that_was_dropped_may_come_back(caches):
    amendments = [AmendmentConfig(10, drop=["a"]), AmendmentConfig(20, {"a": 2})]
    located = config(caches, amendments=amendments).dataset().locate(np.arange(40 * BATCH))
    shares = [
        np.bincount(located.source[k * BATCH : (k + 10) * BATCH], minlength=2)[0]
        for k in (0, 10, 20)
    ]
    assert shares[1] == 0
    assert min(shares[0], shares[2]) > 0
    everything = config(caches).dataset().locate(np.arange(40 * BATCH))
    seen = located.row[located.source == 0]
    assert seen.tolist() == everything.row[everything.source == 0][: seen.size].tolist()


def test_limits_end_a_run_and_free_shares_go_to_the_others(caches):
    run = config(caches, max_epochs=1.0)
    dataset = run.dataset()
    sizes = [len(d) for d in run.datasets().values()]
    assert dataset.length is not None
    assert sum(sizes) - BATCH < dataset.length <= sum(sizes)
    located = dataset.locate(np.arange(dataset.length))
    assert (
        len(set(zip(located.source.tolist(), located.row.tolist(), strict=True))) == dataset.length
    )  # nothing twice
    assert set(np.bincount(located.source).tolist()) <= set(range(max(sizes) + 1))


def test_shares_epochs_and_tokens_are_bounded(caches):
    components = {
        "a": ComponentConfig(caches["a"], 9, max_share=0.5),
        "b": ComponentConfig(caches["b"], 1, max_tokens=320),
    }
    run = LmDataConfig(
        {**components, "c": ComponentConfig(caches["c"], 1)}, seq_len=16, batch_size=BATCH
    )
    located = run.dataset().locate(np.arange(80 * BATCH))
    counts = np.bincount(located.source, minlength=3)
    assert abs(counts[0] - 40 * BATCH) <= 1
    assert counts[1] == 20


def test_a_loss_weight_changes_from_a_step_on(caches, tmp_path):
    """The schedule says so itself: what it was before the step is the run's past."""

    def run(weight):
        components = {
            "a": ComponentConfig(caches["a"], loss_weight=weight),
            "b": ComponentConfig(caches["b"]),
        }
        return LmDataConfig(components, seq_len=16, batch_size=BATCH).loader()

    manifest = open_run(str(tmp_path), run(None))
    later = run({"step": {0: 1, 60: 2}})
    with pytest.raises(PlanMismatchError):
        open_run(str(tmp_path), later, step=61)  # step 60 is trained on already
    amended = open_run(str(tmp_path), later, step=60)
    assert [h["until_step"] for h in amended.history] == [60]
    amended.check(manifest.state(60))
    ramp = open_run(str(tmp_path), run({"linear": {0: 1, 59: 1, 60: 2, 90: 2, 100: 3}}), step=80)
    assert [h["until_step"] for h in ramp.history] == [60, 91]
    with pytest.raises(PlanMismatchError):
        open_run(str(tmp_path), run(2), step=200)
