"""Tokens as a measure: whatever counts them agrees with a slow count of the batches that were
delivered.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset
from headrace.data.dataset import BatchOrder
from headrace.data.row_tokens import OrderedTokens, RowTokens
from headrace.errors import ConfigError
from headrace.mix import AmendmentConfig, StageConfig
from headrace.order import BraidShuffleConfig
from headrace.pack import PackingConfig
from headrace.run import RunLock
from headrace.store import TokenCache
from headrace.testing import write_cache

S = 32
ALGORITHMS = ("windowed", "bfd", "next_fit", "wrap", "ffd", "wfd", "bfd_split")


def every_third(tokens: np.ndarray) -> np.ndarray:
    return tokens % 3 == 0


def make_cache(path: Any, lengths: Any, *, masked: bool = False) -> TokenCache:
    rng = np.random.default_rng(len(lengths))
    documents = [rng.integers(1, 250, n) for n in lengths]
    return write_cache(path, [documents], vocab_size=256, mask=every_third if masked else None)


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> dict[str, TokenCache]:
    """``low`` fills 18 of 32 places of each row, ``full`` all, the others more or less."""
    folder = tmp_path_factory.mktemp("caches")
    rng = np.random.default_rng(0)
    lengths = {
        "low": [18] * 500,
        "full": [32] * 500,
        "mixed": rng.integers(1, 33, 700),
        "long": rng.integers(9, 99, 300),
    }
    made = {name: make_cache(folder / name, documents) for name, documents in lengths.items()}
    return {**made, "chat": make_cache(folder / "chat", rng.integers(5, 33, 400), masked=True)}


def config(names: str, **changes: Any) -> LmDataConfig:
    """A run over packed components; ``own`` are fields of theirs, ``algorithm`` packs all."""
    own = changes.pop("own", {})
    algorithm = changes.pop("algorithm", "next_fit")
    components = {
        n: ComponentConfig(n, **{"packing": PackingConfig(algorithm), **own.get(n, {})})
        for n in names.split()
    }
    return LmDataConfig(
        **{
            "components": components,
            "seq_len": S,
            "batch_size": 8,
            "unit": "content_tokens",
            **changes,
        }
    )


def opened(run: LmDataConfig, caches: dict[str, TokenCache]) -> MixtureDataset:
    dataset = run.with_caches({name: caches[name] for name in run.components}).dataset()
    assert isinstance(dataset, MixtureDataset)
    return dataset


def delivered(dataset: MixtureDataset, steps: int, counted: str = "content") -> np.ndarray:
    """Tokens of each component up to and with each step, ``[steps, d]``: counted in the batches."""
    total = np.zeros((steps, len(dataset.names)), np.int64)
    first, size = dataset.batch_schedule.rows_at(steps - 1)
    stop = first + size if dataset.length is None else min(first + size, dataset.length)
    batch = dataset.read(np.arange(stop))
    tokens = np.asarray(batch.label_mask if counted == "trained" else batch.segment_ids >= 0).sum(
        axis=1
    )
    np.add.at(
        total,
        (dataset.batch_schedule.step_of(np.arange(stop)), np.asarray(batch.source_id)),
        tokens,
    )
    return total.cumsum(axis=0)


def counts_of(
    run: LmDataConfig, caches: dict[str, TokenCache], name: str, counted: Any = "content"
) -> RowTokens:
    return RowTokens(
        run.with_caches({n: caches[n] for n in run.components}).train_datasets()[name], counted
    )


@pytest.mark.parametrize("policy", ["quota", "least_consumed"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_two_sources_of_unlike_fill_have_equal_tokens_at_every_step(caches, policy, batch_size):
    tokens = delivered(
        opened(config("low full", policy=policy, batch_size=batch_size), caches), 120
    )
    assert np.abs(tokens[:, 0] - tokens[:, 1]).max() <= S
    assert tokens[-1].min() > 0


@pytest.mark.parametrize("algorithm", ["windowed", "next_fit"])
def test_a_quota_is_within_three_standard_deviations_and_exact_over_an_epoch(caches, algorithm):
    run = config("mixed long", algorithm=algorithm, own={"mixed": {"weight": 2.0}})
    dataset = opened(run, caches)
    rows = [counts_of(run, caches, name) for name in dataset.names]
    tokens = delivered(dataset, 150)
    drawn = np.array([dataset.draws.starts_at(step + 1) for step in range(150)])
    mean = np.array([count.total / count.rows for count in rows])
    for d, count in enumerate(rows):
        deviation = count.of(dataset.components[d].locate(np.arange(count.rows))).std()
        within = drawn[:, d] % count.rows
        allowed = 3 * deviation * np.sqrt(within * (1 - within / count.rows))
        assert (np.abs(tokens[:, d] - drawn[:, d] * mean[d]) <= allowed + S).all()
        ends = np.flatnonzero(within == 0)
        assert (tokens[ends, d] == drawn[ends, d] // count.rows * count.total).all()
    wanted = drawn.sum(axis=1)[:, None] * dataset.weights_at(np.arange(150))
    assert (
        np.abs(drawn - wanted).max() < 1
    )  # rows are as exact as ever, for shares that are those of tokens
    assert (drawn[-1] * mean)[0] / (drawn[-1] * mean).sum() == pytest.approx(2 / 3, abs=0.002)


@pytest.mark.parametrize("unit", ["content_tokens", "trained_tokens"])
@pytest.mark.parametrize("budget", [1, 1800, 9001, 30_000])
def test_a_budget_is_met_to_the_row(caches, unit, budget):
    run = config("chat full", unit=unit, own={"chat": {"max_tokens": max(budget, 40)}})
    dataset = opened(run, caches)
    counted = unit.removesuffix("_tokens")
    limit = dataset.limits["chat"]
    assert limit is not None
    end = next(step for step in range(2000) if dataset.draws.starts_at(step)[0] == limit)
    got = delivered(dataset, end, counted)[-1, 0]
    following = dataset.components[0].read([limit])
    one_more = np.asarray(
        following.label_mask if counted == "trained" else following.segment_ids >= 0
    ).sum()
    assert got <= max(budget, 40) < got + one_more
    assert dataset.draws.starts_at(end + 20)[0] == limit


def test_weights_from_sizes_follow_tokens(caches):
    dataset = opened(config("low full", weights={"temperature": 1}), caches)
    assert dataset.describe()["stages"][0]["weights"] == {"low": 0.36, "full": 0.64}
    assert dataset.draws.starts_at(100).tolist() == [400, 400]  # each as often as it has rows
    unimax = config("low full", weights={"unimax": {"max_epochs": 1, "tokens": 20_000}})
    assert opened(unimax, caches).describe()["stages"][0]["weights"] == {"low": 0.45, "full": 0.55}
    for steps in (None, 100):  # num_steps would not help
        with pytest.raises(ConfigError, match="how many tokens the run has") as caught:
            opened(config("low full", weights={"unimax": 2}, num_steps=steps), caches)
        assert (
            caught.value.cure
            == "Write unimax: {max_epochs: 2, tokens: 25000}, with the tokens of your run."
        )
        written = {"unimax": {"max_epochs": 2, "tokens": 25_000}}
        opened(config("low full", weights=written, num_steps=steps), caches)


def test_largest_shares_are_of_tokens(caches):
    dataset = opened(config("low full", own={"low": {"max_share": 0.25}}), caches)
    tokens = delivered(dataset, 100)[-1]
    assert tokens[0] / tokens.sum() == pytest.approx(0.25, abs=0.002)
    bounded = {"low": {"max_share": 0.25}, "full": {"max_tokens": 9600}, "mixed": {}}
    tokens = delivered(opened(config("low full mixed", own=bounded), caches), 200)
    assert tokens[-1, 1] == 9600
    assert tokens[-1, 0] / tokens[-1].sum() == pytest.approx(0.25, abs=0.005)


STAGED = [
    StageConfig({"low": 1, "mixed": 1}, tokens=5000),
    StageConfig({"low": 1, "mixed": 3}, tokens=3001),
]


@pytest.mark.parametrize("policy", ["quota", "least_consumed"])
def test_stages_last_as_long_as_their_tokens(caches, policy):
    equal = [
        dataclasses.replace(stage, weights=dict.fromkeys(stage.weights, 1)) for stage in STAGED
    ]
    dataset = opened(
        config("low mixed", stages=STAGED if policy == "quota" else equal, policy=policy), caches
    )
    assert dataset.length is not None
    tokens = delivered(dataset, dataset.length // 8).sum(axis=1)
    border = dataset.stages[1].first_step
    assert tokens[border - 2] < 5000 <= tokens[border - 1]
    assert tokens[-2] - tokens[border - 1] < 3001 <= tokens[-1] - tokens[border - 1]


def test_a_change_of_weights_within_a_stage_does_not_move_where_it_began(caches):
    late = {
        "mixed": 1,
        "low": {"step": {0: 0, 40: 1}},
    }  # has weight only behind the place where the stage ends
    dataset = opened(
        config("low mixed", stages=[StageConfig(late, tokens=4000), STAGED[1]]), caches
    )
    tokens = delivered(dataset, 60).sum(axis=1)
    border = dataset.stages[1].first_step
    assert tokens[border - 2] < 4000 <= tokens[border - 1]


def test_an_amendment_brings_newcomers_to_least_consumed(caches):
    """A newcomer starts at the count of the others, one that comes back too, and the past stays as
    it was.
    """
    plain = config("low full", policy="least_consumed", batch_size=4)
    amendments = [
        AmendmentConfig(30, add={"mixed": 1}),
        AmendmentConfig(60, drop=["full"]),
        AmendmentConfig(80, add={"full": 1}),
    ]
    amended = dataclasses.replace(
        plain, components={**plain.components, **config("mixed").components}, amendments=amendments
    )
    before = opened(plain, caches)
    after = opened(amended, caches)
    manifests = [RunLock.of(BatchOrder(dataset)) for dataset in (before, after)]
    assert manifests[1].first_difference(manifests[0]) == 30
    rows = np.arange(30 * 4)
    for ours, theirs in zip(before.locate(rows), after.locate(rows), strict=True):
        assert np.array_equal(ours, theirs)
    tokens = delivered(after, 120)
    for begin, end, active in (
        (0, 30, [0, 1]),
        (30, 60, [0, 1, 2]),
        (60, 80, [0, 2]),
        (80, 120, [0, 1, 2]),
    ):
        gained = tokens[begin:end] - (tokens[begin - 1] if begin else 0)
        assert (
            np.ptp(gained[:, active], axis=1).max() <= 3 * S
        )  # the lead of each at the begin, and a row
        assert not gained[:, [d for d in range(3) if d not in active]].any()


def test_a_far_step_needs_no_step_before_it(caches):
    run = config("chat mixed long", policy="least_consumed", unit="trained_tokens")
    walked, jumped, anchored = (opened(run, caches) for _ in range(3))
    for step in range(0, 700, 7):
        walked.draws.step_table(step)
    anchor = walked.draws.anchor_at(700)
    assert anchor is not None
    anchored.draws.use_anchor(anchor)
    rows = np.arange(700 * 8, 701 * 8)
    for other in (jumped, anchored):
        assert all(
            np.array_equal(a, b)
            for a, b in zip(walked.locate(rows), other.locate(rows), strict=True)
        )


def test_what_is_trained_on_is_what_a_mask_says(caches):
    run = config("chat full", unit="trained_tokens")
    tokens = delivered(opened(run, caches), 100, "trained")
    assert tokens[-1, 0] / tokens[-1].sum() == pytest.approx(0.5, abs=0.01)
    unpacked = config(
        "chat full", unit="trained_tokens", own={n: {"packing": None} for n in ("chat", "full")}
    )
    dataset = opened(unpacked, caches)
    counts = dataset.tokens_of(dataset.draws.starts_at(50))
    rows = [dataset.read(np.arange(step * 8, step * 8 + 8)) for step in range(50)]
    slow = np.zeros(2, np.int64)
    for batch in rows:
        np.add.at(slow, np.asarray(batch.source_id), np.asarray(batch.label_mask).sum(axis=1))
    assert counts.tolist() == slow.tolist()


def test_units_that_are_not_counted_change_nothing(caches):
    """Where no row is packed, content is what rows hold; what packed runs say of tokens now is what
    it was.
    """
    plain = {n: {"packing": None} for n in ("mixed", "long")}
    units = ("examples", "tokens", "content_tokens")
    described = [
        opened(config("mixed long", unit=unit, own=plain), caches).describe() for unit in units
    ]
    assert described[0] == described[1] == described[2]
    packed = [
        opened(config("mixed long", unit=unit, own={"mixed": {"max_tokens": 960}}), caches)
        for unit in units
    ]
    assert packed[0].describe() == packed[1].describe() != packed[2].describe()
    assert packed[1].limits["mixed"] == 960 // S
    assert "row_tokens" not in str(packed[1].describe())
    assert (
        packed[2].describe()["stages"][0]["row_tokens"]["mixed"][1]
        == packed[2].components[0].rows_of_pass
    )


@settings(max_examples=12, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_counts_agree_with_what_is_delivered(data, tmp_path_factory):
    """Over random lengths, packers, weights, budgets, stages and amendments."""
    folder = tmp_path_factory.mktemp("random")
    names = "a b c"
    lengths = st.lists(st.integers(1, 70), min_size=40, max_size=90)
    made = {
        n: make_cache(folder / n, data.draw(lengths), masked=data.draw(st.booleans()))
        for n in names.split()
    }
    counted = data.draw(st.sampled_from(["content", "trained"]))
    policy = data.draw(st.sampled_from(["quota", "least_consumed"]))
    weights = (
        st.sampled_from([1, 2.5, {"linear": {0: 1, 20: 4}}, {"step": {0: 3, 9: 1}}])
        if policy == "quota"
        else st.just(1)
    )
    batch_size = data.draw(st.integers(1, 5))
    later = data.draw(st.integers(0, 3))
    tokens = (
        data.draw(st.integers(60, 500)) * batch_size
    )  # the second stage has begun by the step of the amendment
    stages = [StageConfig({"a": data.draw(weights), "b": data.draw(weights)}, tokens=tokens)]
    stages.append(StageConfig({"a": data.draw(weights), "b": data.draw(weights)}))
    own: dict[str, dict[str, Any]] = {
        "a": {"packing": PackingConfig(data.draw(st.sampled_from(ALGORITHMS)))}
    }
    if data.draw(st.booleans()):
        own["c"] = {"max_tokens": data.draw(st.integers(200, 2000))}
    amendments = [AmendmentConfig(140, add={"c": 1})]
    if data.draw(st.booleans()):  # one goes, and comes back
        amendments += [AmendmentConfig(146, drop=["b"]), AmendmentConfig(151, add={"b": 1})]
    run = config(
        names,
        unit=f"{counted}_tokens",
        policy=policy,
        stages=stages,
        amendments=amendments,
        own=own,
        batch_size={0: batch_size, 30: batch_size + later},
        algorithm=data.draw(st.sampled_from(ALGORITHMS)),
        shuffle=data.draw(st.sampled_from([True, False, BraidShuffleConfig(strands=3)])),
    )
    dataset = opened(run, made)
    steps = dataset.stages[-1].first_step + 12
    tokens = delivered(dataset, steps, counted)
    for step in range(1, steps + 1):
        assert (
            dataset.tokens_of(dataset.draws.starts_at(step)).tolist() == tokens[step - 1].tolist()
        )
    border = dataset.stages[1].first_step
    budget = stages[0].tokens
    assert tokens[border - 1].sum() >= budget
    assert border == 1 or tokens[border - 2].sum() < budget
    limit = dataset.limits["c"]
    if limit is not None:
        order = OrderedTokens(dataset.components[2], counts_of(run, made, "c", counted))
        assert order.count_first(limit) <= own["c"]["max_tokens"] < order.count_first(limit + 1)
    if policy == "least_consumed":
        longest = S + 1
        gained = tokens[border : dataset.stages[2].first_step, :2]
        assert np.ptp(gained, axis=1).max(initial=0) <= longest
    fresh = opened(run, made)
    rows = np.arange(
        dataset.batch_schedule.rows_at(steps - 1)[0], dataset.batch_schedule.rows_at(steps)[0]
    )
    assert all(
        np.array_equal(a, b) for a, b in zip(fresh.locate(rows), dataset.locate(rows), strict=True)
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": "swrr"}, "unit"),
        ({"policy": "greedy"}, "unit"),
        (
            {
                "unit": "trained_tokens",
                "seq_len": {0: 32, 9: 64},
                "own": {"low": {"packing": None}},
            },
            "unit",
        ),
        (
            {"stages": [StageConfig({"low": 1}, tokens=99), StageConfig({"low": 1}, step=9)]},
            "stages[1].step",
        ),
        ({"stages": [StageConfig({"low": 1}, tokens=99)], "num_steps": 9}, "num_steps"),
        ({"own": {"low": {"max_tokens": 17}}}, "components.low.max_tokens"),
        ({"own": {"low": {"max_tokens": 700}}, "num_steps": 60}, "components.low.max_tokens"),
        ({"stages": [StageConfig({"low": 1}, tokens=9999)], "max_epochs": 0.5}, "stages[0].tokens"),
        (
            {
                "stages": [StageConfig({"low": 1}, tokens=999), StageConfig({"low": 1})],
                "amendments": [AmendmentConfig(6, weights={"low": 2})],
            },
            "amendments[0].step",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_known_or_met_is_refused_with_a_cure(caches, changes, field):
    with pytest.raises(ConfigError) as caught:
        opened(config("low", **changes), caches)
    assert caught.value.field == field
    assert caught.value.cure


def test_cures_work(caches):
    with pytest.raises(ConfigError) as caught:
        opened(config("low", own={"low": {"max_tokens": 700}}, num_steps=60), caches)
    enough = int(str(caught.value.cure).split("Raise it to ")[1].split(" ")[0])
    opened(config("low", own={"low": {"max_tokens": enough}}, num_steps=60), caches)
    stages = [StageConfig({"low": 1}, tokens=9999)]
    with pytest.raises(ConfigError) as caught:
        opened(config("low", stages=stages, max_epochs=0.5), caches)
    fewer = int(str(caught.value.cure).removeprefix("Lower it to ").split(" ")[0])
    opened(config("low", stages=[StageConfig({"low": 1}, tokens=fewer)], max_epochs=0.5), caches)
    with pytest.raises(ConfigError) as caught:
        opened(config("low", own={"low": {"max_tokens": 17}}), caches)
    assert caught.value.cure == "Give at least 18 tokens."
    opened(config("low", own={"low": {"max_tokens": 18}}), caches)


def test_a_source_without_an_end_or_without_tokens_is_refused(caches, tmp_path):
    packed = config("mixed").with_caches({"mixed": caches["mixed"]}).datasets()["mixed"]
    with pytest.raises(ConfigError, match="has no end"):
        RowTokens(packed.repeat(), "content", "mixed")  # pyright: ignore[reportArgumentType]
    silent = write_cache(tmp_path / "silent", [[np.arange(1, 9)] * 20], mask=np.zeros_like)
    with pytest.raises(ConfigError, match="has no token that counts"):
        opened(config("silent", unit="trained_tokens"), {"silent": silent})


def test_examples_that_are_asked_for_few_at_a_time_are_looked_up_many_at_a_time(
    caches, monkeypatch
):
    """As a walk over many sources asks for those of each."""
    run = config("mixed", algorithm="windowed")
    component = opened(run, caches).components[0]
    tokens, once = (OrderedTokens(component, counts_of(run, caches, "mixed")) for _ in range(2))
    looked_up = []
    locate = component.locate
    monkeypatch.setattr(
        component, "locate", lambda rows: looked_up.append(rows.size) or locate(rows)
    )
    rng = np.random.default_rng(0)
    borders = np.cumsum([0, *rng.integers(0, 9, 700)])
    pieces = [tokens.between(first, stop) for first, stop in itertools.pairwise(borders.tolist())]
    assert len(looked_up) <= borders[-1] // 1000 + 1
    assert np.concatenate(pieces).tolist() == once.between(0, int(borders[-1])).tolist()
    for first in rng.integers(0, 5000, 50).tolist():  # anywhere, too
        assert tokens.between(first, first + 3).tolist() == once.between(first, first + 3).tolist()
