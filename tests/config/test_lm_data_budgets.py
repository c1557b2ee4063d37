"""Budgets, lengths, stages by tokens, weights from sizes, strands over stages: what a config says,
and its errors.
"""

import json

import numpy as np
import pytest

from headrace import LmDataConfig, load_config
from headrace.analysis.check.sizes import virtual_cache
from headrace.config import ComponentConfig
from headrace.data import MixtureDataset
from headrace.data.dataset import ReorderedDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import AmendmentConfig, StageConfig
from headrace.order import BraidShuffleConfig, ValidationConfig
from headrace.order.braid import BraidShuffle
from headrace.run import RunLock, open_run
from headrace.store import TokenCache

TOKENS = {"a": 160_000, "b": 40_000, "c": 16_000}


@pytest.fixture(scope="module")
def caches() -> dict[str, TokenCache]:
    return {name: virtual_cache(name, size) for name, size in TOKENS.items()}


def config(names: str = "ab", **changes) -> LmDataConfig:
    own = changes.pop("own", {})
    components = {n: ComponentConfig("-", **own.get(n, {})) for n in names}
    return LmDataConfig(**{"components": components, "seq_len": 16, "batch_size": 8, **changes})


def opened(run: LmDataConfig, caches: dict[str, TokenCache]) -> MixtureDataset:
    dataset = run.with_caches({name: caches[name] for name in run.components}).dataset()
    assert isinstance(dataset, MixtureDataset)
    return dataset


def braids(dataset: MixtureDataset) -> dict[str, BraidShuffle]:
    found = {}
    for name, component in zip(dataset.names, dataset.components, strict=True):
        assert isinstance(component, ReorderedDataset)
        assert isinstance(component.base, ReorderedDataset)
        assert isinstance(component.base.order, BraidShuffle)
        found[name] = component.base.order
    return found


GROWING = [StageConfig({"a": 9, "b": 1}, step=0), StageConfig({"a": 1, "b": 9}, step=50)]


def test_strands_follow_the_largest_share_over_all_planned_stages(caches):
    early, late, both = (
        braids(opened(config(stages=s), caches)) for s in (GROWING[:1], GROWING[:1], GROWING)
    )
    assert early["b"].strands < 10
    assert early["a"].strands == late["a"].strands
    assert both["a"].strands >= 57  # 0.9 x 8 x 8
    assert both["b"].strands >= 57
    assert [both["a"].first_strand, both["b"].first_strand] == [0, both["a"].strands]


def test_an_amendment_changes_no_strands_of_the_past(caches):
    planned = braids(opened(config(stages=GROWING), caches))
    amended = AmendmentConfig(80, {"c": 5}, weights={"b": 40})
    after = braids(opened(config("abc", stages=GROWING, amendments=[amended]), caches))
    assert {n: after[n].describe() for n in "ab"} == {n: planned[n].describe() for n in "ab"}
    assert after["c"].strands > 1
    assert after["c"].first_strand == sum(planned[n].strands for n in "ab")


def test_a_byte_budget_is_one_budget_over_all_stages(caches):
    stages = [
        StageConfig({"a": 1}, step=0),
        StageConfig({"b": 1}, step=50),
        StageConfig({"c": 1, "a": 1}, step=90),
    ]
    row = caches["a"].parts[0].data.dtype.itemsize * 16
    budget = 12 * 4 * row
    shuffle = BraidShuffleConfig(budget_bytes=budget, io_block_size=4)
    found = braids(opened(config("abc", stages=stages, shuffle=shuffle), caches))
    assert sum(order.strands * 4 * row for order in found.values()) <= budget
    assert sum(order.strands for order in found.values()) >= 10


def test_the_manifest_records_the_strands(caches):
    text = json.dumps(opened(config(stages=GROWING), caches).describe())
    assert text.count('"strands"') == 2
    assert '"lap"' in text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"own": {"a": {"max_tokens": -4}}}, "components.a.max_tokens"),
        ({"own": {"a": {"max_tokens": 15}}}, "components.a.max_tokens"),
        ({"own": {"a": {"max_share": 2}}}, "components.a.max_share"),
        ({"own": {"a": {"max_share": 0}}}, "components.a.max_share"),
        ({"own": {"a": {"max_epochs": -1}}}, "components.a.max_epochs"),
        ({"max_epochs": float("nan")}, "max_epochs"),
        ({"stages": [StageConfig({"a": 1, "b": 1}, tokens=0)]}, "stages[0].tokens"),
        ({"stages": [StageConfig({"a": 1, "b": 1}, tokens=-5)]}, "stages[0].tokens"),
        (
            {"stages": [StageConfig({"a": 1, "b": 1}), StageConfig({"a": 1}, step=-3)]},
            "stages[1].step",
        ),
        ({"stages": [*GROWING, StageConfig({"a": 1}, step=20)]}, "stages[2].step"),
        (
            {"stages": [StageConfig({"a": 1, "b": 1}, tokens=1000), StageConfig({"a": 1}, step=9)]},
            "stages[0].tokens",
        ),
        (
            {"stages": [StageConfig({"a": 1, "b": 1}, tokens=1000)], "num_steps": 9},
            "stages[0].tokens",
        ),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 50, "stages": GROWING}, "stages[1].step"),
        (
            {"num_steps": 50, "amendments": [AmendmentConfig(50, weights={"a": 3})]},
            "amendments[0].step",
        ),
        ({"seq_len": {0: 16, 50: 32, 20: 16}}, "seq_len"),
        ({"seq_len": {0: 16, -5: 32}}, "seq_len"),
        ({"batch_size": {0: 8, 50: 16, 20: 8}}, "batch_size"),
        ({"own": {"a": {"weight": {"step": {0: 1, 50: 2, 20: 3}}}}}, "components.a.weight.step"),
        ({"unit": "bytes"}, "unit"),
        ({"num_steps": 50, "seq_len": {0: 16, 50: 32}}, "seq_len[50]"),
        ({"num_steps": 50, "batch_size": {0: 8, 20: 16, 60: 8}}, "batch_size[60]"),
        (
            {"stages": [StageConfig({"a": 1, "b": 1}, tokens=1000)], "batch_size": {0: 8, 8: 16}},
            "batch_size[8]",
        ),
        ({"amendments": [AmendmentConfig(9)]}, "amendments[0]"),
        (
            {"amendments": [AmendmentConfig(9, weights={"a": 2}, drop=["a"])]},
            "amendments[0].weights.a",
        ),
    ],
)
def test_amounts_that_cannot_be_are_refused_when_they_are_written(changes, field):
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert caught.value.field == field
    assert caught.value.cure


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path):
    text = """
components:
  a: {cache: x, max_tokens: 1e9, expected_tokens: 1.5e9, shuffle: {strands: 1e2}, weight: {step: {0: 1, 1e3: 2}}}
seq_len: {0: 16, 1e2: 64}
batch_size: 2.56e2
stages: [{weights: {a: 1}, tokens: 1.5e6}, {weights: {a: 1}, tokens: 2.0e+6}]
shuffle: 1e5
"""
    (tmp_path / "run.yaml").write_text(text.replace("max_tokens: 1e9", "max_tokens: 1_0e8"))
    run = load_config(str(tmp_path / "run.yaml"), ["validation={one_in: 1e2}"])
    component = run.components["a"]
    assert (component.max_tokens, component.expected_tokens, component.shuffle) == (
        10**9,
        1.5e9,
        BraidShuffleConfig(strands=100),
    )
    assert (run.seq_len, run.batch_size, run.shuffle) == ({0: 16, 100: 64}, 256, 100_000)
    assert [stage.tokens for stage in run.stages] == [1_500_000, 2_000_000]
    assert run.validation is not None
    assert run.validation.one_in == 100
    again = tmp_path / "again.yaml"
    again.write_text(run.to_yaml())
    assert load_config(str(again)) == run


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"shuffle": BraidShuffleConfig(strands=10**6)}, "shuffle.strands"),
        ({"shuffle": BraidShuffleConfig(budget_bytes=10)}, "shuffle.budget_bytes"),
        (
            {"shuffle": BraidShuffleConfig(strands=10**6), "seq_len": {0: 16, 5: 32}},
            "shuffle.strands",
        ),
        (
            {"shuffle": BraidShuffleConfig(io_block_size=1), "seq_len": {0: 16, 5: 32}},
            "shuffle.io_block_size",
        ),
        (
            {"own": {"b": {"shuffle": BraidShuffleConfig(strands=10**6)}}},
            "components.b.shuffle.strands",
        ),
        (
            {"own": {"a": {"shuffle": BraidShuffleConfig(budget_bytes=10)}}},
            "components.a.shuffle.budget_bytes",
        ),
        ({"max_epochs": 1e-9}, "max_epochs"),
        ({"own": {"b": {"max_epochs": 1e-9}}}, "components.b.max_epochs"),
        (
            {"max_epochs": 1, "amendments": [AmendmentConfig(10**6, weights={"a": 2})]},
            "amendments[0].step",
        ),
        (
            {"max_epochs": 1, "stages": [*GROWING, StageConfig({"a": 1}, step=10**6)]},
            "stages[2].step",
        ),
        ({"weights": {"unimax": 1}, "num_steps": 10**6}, "weights.unimax"),
        (
            {"weights": {"unimax": {"max_epochs": 1}}, "num_steps": 10**6},
            "weights.unimax.max_epochs",
        ),
        ({"weights": {"x": {"blend": {"temperature": 2}}}}, "weights.x.blend"),
    ],
    ids=str,
)
def test_what_only_sizes_can_tell_is_named_as_it_was_written(caches, changes, field):
    with pytest.raises(ConfigError) as caught:
        config(**changes).with_caches({n: caches[n] for n in "ab"}).dataset()
    assert caught.value.field == field
    assert caught.value.cure


def test_the_least_epochs_of_the_cure_hold_a_row(caches):
    with pytest.raises(ConfigError, match="holds no row") as caught:
        opened(config(max_epochs=1e-9), caches)
    least = float(str(caught.value.cure).removeprefix("Give at least ").removesuffix("."))
    with pytest.raises(ConfigError, match="component 'b'"):
        opened(config(max_epochs=least), caches)
    assert opened(config(own={"a": {"max_epochs": least}}), caches).limits["a"] == 1


def test_arguments_that_are_no_whole_numbers_are_named(caches):
    stored = config().with_caches({n: caches[n] for n in "ab"}).datasets()["a"]
    for make, field in (
        (lambda: stored.braid_shuffle(strands=4.5, seed=0), "strands"),  # pyright: ignore[reportArgumentType]
        (lambda: stored.era_shuffle("x", seed=0), "era_length"),  # pyright: ignore[reportArgumentType]
        (lambda: stored.block_shuffle(window_blocks=2.5, seed=0), "window_blocks"),  # pyright: ignore[reportArgumentType]
        (
            lambda: MixtureDataset({"a": stored}, {"a": 1}, 4, stop_strategy="never"),
            "stop_strategy",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.field == field
    draws = MixtureDataset({"a": stored}, {"a": 1}, 4).draws
    for ask in (draws.counts_at, draws.starts_at, draws.step_table, draws.anchor_at):
        with pytest.raises(IndexOutOfRangeError, match="step = -1"):
            ask(-1)


def test_yaml_keeps_the_order_of_points(tmp_path):
    (tmp_path / "run.yaml").write_text("batch_size: {0: 8, 50: 16, 20: 8}\n")
    with pytest.raises(ConfigError, match="Sort the points"):
        load_config(str(tmp_path / "run.yaml"))


@pytest.mark.parametrize("own", [{"max_tokens": 3000}, {"max_epochs": 0.02}])
def test_a_budget_that_cannot_be_met_is_named_with_a_cure_that_works(caches, own):
    field, value = next(iter(own.items()))
    both = {"a": own, "b": {"max_tokens": 3000}}
    with pytest.raises(ConfigError, match="cannot be met: 60 steps need 480 rows") as caught:
        opened(config(own=both, num_steps=60), caches)
    name = caught.value.field.split(".")[1]
    cured = float(caught.value.cure.split("Raise it to ")[1].split(" ")[0])
    kind = caught.value.field.split(".")[2]
    assert (kind, caught.value.value) in ((field, value), ("max_tokens", 3000))
    enough = {**both, name: {kind: int(cured) if kind == "max_tokens" else cured}}
    assert opened(config(own=enough, num_steps=60), caches).length == 480
    fewer = int(caught.value.cure.split("lower num_steps to ")[1].rstrip("."))
    length = len(opened(config(own=both, num_steps=fewer), caches))
    assert 8 * (fewer - 1) < length <= 8 * fewer  # the last step holds what is left
    with pytest.raises(ConfigError):
        opened(config(own=both, num_steps=fewer + 1), caches)


def test_a_run_is_held_to_its_own_steps_not_to_those_after(caches):
    own = {
        "a": {"max_tokens": 30 * 4 * 16},
        "b": {"max_share": 0.5},
    }  # nobody may fill in for a from step 30 on
    for steps in (9, 29, 30):
        assert opened(config(own=own, num_steps=steps), caches).length == 8 * steps
    assert opened(config(own=own), caches).length == 240
    with pytest.raises(
        ConfigError, match="'a' has 120 of the 124 that its weight asks for"
    ) as caught:
        opened(config(own=own, num_steps=31), caches)
    assert "largest shares of a batch are {'b': 0.5}" in str(caught.value)
    assert caught.value.field == "components.a.max_tokens"
    assert "num_steps to 30" in str(caught.value.cure)


def test_phased_runs_are_checked_too(caches):
    bounded = {"a": {"max_tokens": 9000}, "b": {"max_tokens": 900}}
    with pytest.raises(ConfigError, match="cannot be met") as caught:
        config(own=bounded, seq_len={0: 16, 40: 64}, num_steps=60).with_caches(
            {n: caches[n] for n in "ab"}
        ).dataset()
    assert caught.value.field.endswith("max_tokens")


def test_a_run_ends_after_its_steps_or_the_tokens_of_its_last_stage(caches):
    assert opened(config(num_steps=7), caches).length == 56
    stages = [StageConfig({"a": 1}, tokens=1000), StageConfig({"b": 1}, tokens=300)]
    assert opened(config(stages=stages), caches).length == 88
    assert (
        opened(config(num_steps=7), caches).describe() == opened(config(), caches).describe()
    )  # it may be prolonged


def test_repeats_with_as_many_epochs_end_after_one_pass(caches):
    """Energon's ``blend_epochized`` with ``repeat=False``."""
    times = {"a": 5, "b": 2}
    own = {name: {"weight": {"repeat": n}, "max_epochs": n} for name, n in times.items()}
    dataset = opened(config(own=own), caches)
    assert dataset.length == sum(n * TOKENS[name] // 16 for name, n in times.items())


def test_weights_from_sizes_are_resolved_and_shown(caches):
    flat = opened(config(weights={"temperature": 2}), caches)
    assert flat.describe()["stages"][0]["weights"] == pytest.approx({"a": 2 / 3, "b": 1 / 3})
    unimax = opened(config(weights={"unimax": 1}, num_steps=1000), caches)
    assert unimax.describe()["stages"][0]["weights"] == pytest.approx({"a": 0.6875, "b": 0.3125})
    grown = config("abc", weights={"temperature": 2}, amendments=[AmendmentConfig(5, {"c": 0.5})])
    assert opened(grown, caches).describe()["stages"][0] == flat.describe()["stages"][0]
    with pytest.raises(ConfigError) as caught:
        opened(config(weights={"unimax": 1}), caches)
    assert (caught.value.field, "num_steps" in str(caught.value.cure)) == ("weights.unimax", True)
    named = LmDataConfig(
        {"temperature": ComponentConfig("-")}, seq_len=16, weights={"temperature": 3}
    )
    assert opened(named, {"temperature": caches["a"]}).describe()["stages"][0]["weights"] == {
        "temperature": 3.0
    }


def test_weights_in_tokens_are_those_in_examples_also_across_phases(caches):
    run = config(own={"a": {"weight": 3}}, seq_len={0: 16, 40: 64}, unit="tokens", num_steps=80)
    dataset = run.with_caches({n: caches[n] for n in "ab"}).dataset()
    tokens = np.zeros(2)
    for step in range(80):
        mixture = dataset.at_step(step)[0]
        assert isinstance(mixture, MixtureDataset)
        tokens += mixture.draws.counts_at(step) * mixture.seq_len
    assert tokens[0] / tokens.sum() == pytest.approx(0.75, abs=64 / tokens.sum())


def test_stages_of_swrr_are_those_of_nmoe(caches):
    stages = [
        StageConfig({"a": 0.5, "b": 0.5}, "first", tokens=16 * 11),
        StageConfig({"b": 1}, "then", tokens=16 * 5),
    ]
    dataset = opened(config(stages=stages, policy="swrr"), caches)
    component, _ = dataset.draws.route(np.arange(16))
    assert component.tolist() == [
        0,
        1,
        0,
        1,
        0,
        1,
        0,
        1,
        0,
        1,
        0,
        1,
        1,
        1,
        1,
        1,
    ]  # changes within a step
    assert dataset.length == 16
    assert dataset.describe()["plan"]
    with pytest.raises(ConfigError, match="plain number"):
        opened(
            config(
                stages=[StageConfig({"a": 1, "b": {"step": {0: 1}}}, tokens=999)], policy="swrr"
            ),
            caches,
        )


class Described:
    def __init__(self, dataset) -> None:
        self.dataset = dataset

    def describe(self):
        return {"dataset": self.dataset.describe()}


@pytest.mark.parametrize("step", [20, 40, 60, 100])
def test_a_run_with_phases_may_be_amended(caches, tmp_path, step):
    phases = {0: 16, 40: 64, 80: 32}
    plain = config(seq_len=phases).with_caches({n: caches[n] for n in "ab"}).dataset()
    amended = (
        config("abc", seq_len=phases, amendments=[AmendmentConfig(step, {"c": 2})])
        .with_caches(caches)
        .dataset()
    )
    for first in range(0, step, 5):
        rows = np.arange(first * 8, first * 8 + 8)
        for ours, theirs in zip(plain.locate(rows), amended.locate(rows), strict=True):
            assert np.array_equal(ours, theirs)
    assert RunLock.of(Described(amended)).first_difference(RunLock.of(Described(plain))) == step
    open_run(str(tmp_path), Described(plain))
    assert open_run(str(tmp_path), Described(amended), step=step).history[0]["until_step"] == step
    other = (
        config("abc", seq_len=phases, seed=1, amendments=[AmendmentConfig(step, {"c": 2})])
        .with_caches(caches)
        .dataset()
    )
    assert RunLock.of(Described(other)).first_difference(RunLock.of(Described(plain))) is None


@pytest.mark.parametrize(
    ("more", "field"),
    [
        # a has far less than its weight asks for, and b stands in for it; only c ends the run
        (
            {
                "own": {"a": {"max_tokens": 160}, "c": {"max_tokens": 3600}},
                "stages": [StageConfig({"a": 5, "b": 1}), StageConfig({"c": 1}, step=30)],
            },
            "components.c.max_tokens",
        ),
        # half of a is held out, so that one pass is less than its budget
        (
            {
                "own": {"a": {"max_tokens": 16 * 400}},
                "max_epochs": 0.05,
                "validation": ValidationConfig(one_in=2),
                "weights": {"a": 1},
            },
            "max_epochs",
        ),
        # what is not drawn at the end is not to blame
        (
            {
                "own": {"b": {"max_tokens": 160}, "c": {"max_tokens": 1600}},
                "weights": {
                    "b": {"step": {0: 9, 8: 0}},
                    "a": {"step": {0: 1, 8: 0}},
                    "c": {"step": {0: 0, 8: 1}},
                },
            },
            "components.c.max_tokens",
        ),
    ],
)
def test_the_limit_that_ends_a_run_is_named_and_raising_it_helps(caches, more, field):
    own = more["own"]
    names = "a" if "weights" in more and len(more["weights"]) == 1 else "abc"

    def run(own, **changes):
        return opened(config(names, **{**more, "own": own, "num_steps": 60, **changes}), caches)

    with pytest.raises(ConfigError, match="cannot be met") as caught:
        run(own)
    assert caught.value.field == field
    cured = float((caught.value.cure or "").split("Raise it to ")[1].split(" ")[0])
    if field == "max_epochs":  # now the budget is the smaller one
        with pytest.raises(ConfigError) as caught:
            run(own, max_epochs=cured)
        assert caught.value.field == "components.a.max_tokens"
    else:
        name = field.split(".")[1]
        assert run({**own, name: {"max_tokens": int(cured)}}).length == 480


ENDING = {"a": {"linear": {0: 1, 40: 0}}, "b": {"step": {0: 1, 40: 0, 90: 2}}}


@pytest.mark.parametrize("steps", [1, 39, 40])
def test_weights_may_be_zero_where_no_step_runs(caches, steps):
    dataset = opened(config(weights=ENDING, num_steps=steps), caches)
    assert dataset.length == 8 * steps
    longest = opened(config(weights=ENDING, num_steps=40), caches)
    for step in range(steps):  # where the run ends changes no step before
        assert dataset.draws.counts_at(step).tolist() == longest.draws.counts_at(step).tolist()
    assert braids(dataset)["a"].describe() == braids(longest)["a"].describe()


@pytest.mark.parametrize(
    "end",
    [
        {"stages": [StageConfig(ENDING, tokens=40 * 8 * 16)]},
        {"weights": ENDING, "max_epochs": 0.005},
        {"weights": ENDING, "own": {"a": {"max_tokens": 800}, "b": {"max_tokens": 800}}},
        {"weights": ENDING, "stop_strategy": "first_exhausted", "seq_len": 10_000},
        {
            "weights": {"a": 1, "b": 1},
            "amendments": [AmendmentConfig(9, weights=ENDING)],
            "num_steps": 40,
        },
    ],
)
def test_data_or_tokens_that_end_before_weights_do_are_an_end_too(caches, end):
    length = len(opened(config(**end), caches))
    assert 0 < length <= 40 * 8


@pytest.mark.parametrize("end", [{}, {"num_steps": 41}, {"max_epochs": 3}])
def test_a_step_that_runs_needs_a_weight(caches, end):
    with pytest.raises(ConfigError, match="all weights are zero at step 40") as caught:
        opened(config(weights=ENDING, **end), caches)
    assert caught.value.field == "weights"
    assert "num_steps: 40" in (caught.value.cure or "")
    assert opened(config(weights=ENDING, **{**end, "num_steps": 40}), caches).length == 320
