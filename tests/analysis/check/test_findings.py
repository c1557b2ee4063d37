"""Each rule finds what it is there for, says where it comes from and what to write, and keeps quiet
otherwise.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headrace.analysis.check.findings import findings
from headrace.analysis.check.plan import RunPlan
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.attributes import AttributeConfig
from headrace.errors import ConfigError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.order import BlockShuffleConfig, BraidShuffleConfig
from headrace.pack import PackingConfig
from headrace.testing import tiny_cache, write_cache

GIB = 1 << 30


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> str:
    """The folder of a cache that is there."""
    return tiny_cache(tmp_path_factory.mktemp("caches") / "here", documents=2000).path


@pytest.fixture(scope="module")
def shuffled(here, tmp_path_factory) -> str:
    """The folder of its shuffled copy."""
    folder = str(tmp_path_factory.mktemp("caches") / "shuffled")
    reshuffle(here, folder, ReshuffleConfig(seed=1), progress=False)
    return folder


def found(own=(), *, hosts=(1, 8), sizes=(4e9, 1e9), **changes):
    components = {
        n: ComponentConfig(**{"cache": f"no/{n}", "expected_tokens": size, **dict(own).get(n, {})})
        for n, size in zip("ab", sizes, strict=True)
    }
    config = LmDataConfig(
        **{
            "components": components,
            "seq_len": 2048,
            "batch_size": 64,
            "num_steps": 1000,
            **changes,
        }
    )
    return {f.rule: f for f in findings(RunPlan.of(config, hosts=list(hosts), max_rows=1 << 15))}


def test_a_sound_config_has_only_its_missing_caches_to_say():
    assert set(found()) == {"cache_missing"}
    assert "components.{a,b}.cache" in str(found()["cache_missing"])


def test_a_config_whose_caches_are_there_has_nothing_to_say(here):
    config = LmDataConfig({"a": ComponentConfig(here)}, seq_len=128, batch_size=8, num_steps=20)
    assert findings(RunPlan.of(config, hosts=[1])) == []


CASES = {
    "random_reads": ({"own": {"a": {"shuffle": True}}}, "components.a.shuffle", "up to 32 times"),
    "not_shuffled": ({"shuffle": False}, "components.{a,b}.shuffle", "stored order"),
    "small_window": (
        {"shuffle": BlockShuffleConfig(32, 8)},
        "shuffle",
        "Raise window_blocks to 32",
    ),
    "shared_blocks": (
        {"shuffle": BlockShuffleConfig(32, 64), "row_exchange": False},
        "shuffle",
        "on 8 hosts each block is read",
    ),
    "no_memory": (
        {"prefetch_bytes": 1 << 26, "hosts": (1,)},
        "prefetch_bytes",
        "the loader refuses",
    ),
    "many_epochs": ({"sizes": (4e9, 1e6)}, "components.b.weight", "components.b.max_epochs"),
    "never_drawn": ({"own": {"b": {"weight": 1e-9}}}, "components.b.weight", "is never reached"),
    "weight_before_schedule": (
        {"own": {"b": {"weight": {"step": {5: 2}}}}},
        "components.b.weight",
        "it is 2 from the start. Say so: {step: {0: 2, ...}}, or {step: {0: 0, 5: 2}}",
    ),
    "weight_not_reached": (
        {"own": {"b": {"weight": {"step": {0: 1, 5000: 2}}}}},
        "components.b.weight",
        "has a point at step 5,000",
    ),
    "capped": (
        {"own": {"b": {"max_epochs": 0.01}}},
        "components.b",
        "is used up before the run ends",
    ),
    "shorter_than_a_batch": ({"sizes": (4e9, 2e4)}, "components.b", "rows repeat within one batch"),
    "small_chunks": (
        {"seq_len": 1 << 17, "sizes": (4e10, 1e10)},
        "components.{a,b}.cache",
        "a row takes 2 reads",
    ),
    "uneven_hosts": ({"hosts": (1, 7)}, "batch_size", "do not divide over 7 hosts"),
    "no_end": ({"num_steps": None}, "num_steps", "Set num_steps"),
    "ends_early": (
        {"stop_strategy": "first_exhausted", "num_steps": 10**6},
        "num_steps",
        "end the run after step",
    ),
    "planned_unpacked": (
        {"own": {n: {"packing": PackingConfig()} for n in "ab"}},
        "components.{a,b}.packing",
        "streams",
    ),
}
PROBLEMS = {"no_memory", "uneven_hosts", "ends_early"}


@pytest.mark.parametrize("rule", CASES)
def test_what_a_rule_is_there_for(rule):
    changes, field, said = CASES[rule]
    finding = found(**changes)[rule]
    assert finding.field == field
    assert said in str(finding)
    assert finding.cure
    assert "\n" not in str(finding)
    assert finding.level == ("problem" if rule in PROBLEMS else "warning")


def test_a_size_that_differs_from_the_cache(here):
    config = LmDataConfig(
        {"a": ComponentConfig(here, expected_tokens=1e9)}, seq_len=128, batch_size=8, num_steps=20
    )
    (finding,) = findings(RunPlan.of(config, hosts=[1]))
    assert (finding.rule, finding.field) == ("size_differs", "components.a.expected_tokens")


def test_an_attribute_that_nothing_asks_for(here, tmp_path):
    np.save(tmp_path / "dup.npy", np.arange(2000) % 2)
    attributes = {name: AttributeConfig(f"{tmp_path}/{name}.npy") for name in ("dup", "missing")}
    components = {"a": ComponentConfig(here, attributes=attributes, where="not dup")}
    config = LmDataConfig(components, seq_len=128, batch_size=8, num_steps=20)
    (finding,) = findings(RunPlan.of(config, hosts=[1]))
    assert (finding.rule, finding.field) == ("unused_attribute", "components.a.attributes")
    assert finding.problem.startswith("has missing, which")


def test_little_memory_reads_blocks_again():
    big = BraidShuffleConfig(strands=64)
    plenty = found(shuffle=big, hosts=(8,), prefetch_bytes=GIB)
    assert "little_memory" not in plenty
    assert "no_memory" not in plenty


def test_memory_that_some_numbers_of_hosts_lack_is_a_warning():
    some = found(hosts=(1, 8), prefetch_bytes=1 << 26)["no_memory"]
    assert some.level == "warning"
    assert "hosts or more" in some.cure


def test_a_plain_store_of_neighbours_that_are_alike_costs_loss_until_it_is_shuffled():
    components = {n: ComponentConfig(f"no/{n}", expected_tokens=1e9) for n in "ab"}
    config = LmDataConfig(components, seq_len=2048, batch_size=64, num_steps=4000)
    (finding,) = (
        f
        for f in findings(RunPlan.of(config, hosts=[1], icc={"a": 0.45, "b": 0.0}))
        if "excess" in f.rule
    )
    assert (finding.level, finding.field) == ("warning", "components.a")
    assert "is 45% between blocks: expect +" in finding.problem
    assert "headrace cache reshuffle no/a OUTPUT" in finding.cure
    full = LmDataConfig(components, seq_len=2048, batch_size=64, num_steps=4000, shuffle=True)
    assert not [
        f for f in findings(RunPlan.of(full, hosts=[1], icc={"a": 0.45})) if "excess" in f.rule
    ]


def test_problems_come_first():
    config = LmDataConfig(
        {"a": ComponentConfig("no/a", expected_tokens=1e9)},
        batch_size=64,
        num_steps=10,
        shuffle=True,
    )
    levels = [f.level for f in findings(RunPlan.of(config, hosts=[1, 7]))]
    assert levels == sorted(levels)
    assert levels[0] == "problem"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"unit": "tokens"}, "unit"),
        ({"policy": "least_consumed"}, "policy"),
        ({"weights": {"temperature": 2}}, "weights"),
        ({"own": {"max_tokens": 9000}}, "components.a.max_tokens"),
    ],
)
def test_padding_that_counts_is_said(here, changes, field, caplog):
    packed = ComponentConfig(here, packing=PackingConfig("next_fit"), **changes.pop("own", {}))
    config = LmDataConfig(
        {"a": packed}, **{"seq_len": 128, "batch_size": 8, "num_steps": 8, **changes}
    )
    said = {f.rule: f for f in findings(RunPlan.of(config, hosts=[1]))}
    assert said["padding_counts"].field == field
    assert not caplog.records
    config.loader()
    assert caplog.messages == [
        f"{field}: counts padding of packed rows (a); unit: content_tokens does not"
    ]
    dataclasses.replace(config, unit="content_tokens").loader()
    assert len(caplog.records) == 1
    cured = RunPlan.of(dataclasses.replace(config, unit="content_tokens"), hosts=[1])
    assert "padding_counts" not in {f.rule for f in findings(cured)}
    assert cured.components[0].row_tokens < said_rows(config) * 128
    assert cured.tokens is not None
    assert cured.tokens < 8 * 8 * 128


def said_rows(config: LmDataConfig) -> int:
    return RunPlan.of(config, hosts=[1]).components[0].rows


def test_what_a_mask_says_cannot_be_counted_before_there_is_a_cache():
    with pytest.raises(ConfigError, match="is not there yet") as caught:
        found({"a": {"loss_mask": "loss_mask"}}, unit="trained_tokens")
    assert caught.value.cure == "Build the cache, or plan with unit: content_tokens."
    assert "padding_counts" not in found({"a": {"loss_mask": "loss_mask"}}, unit="content_tokens")


def test_more_hosts_than_the_strands_of_a_shuffled_store_are_for(shuffled):
    config = LmDataConfig(
        {"a": ComponentConfig(shuffled)}, seq_len=16, batch_size=64, num_steps=20, max_hosts=4
    )
    (finding,) = (f for f in findings(RunPlan.of(config, hosts=[2, 8])) if f.rule == "more_hosts")
    assert finding.field == "max_hosts"
    assert "is less than the 8 hosts: strands of components in shuffled stores (a)" in str(finding)
    assert "max_hosts: 8" in finding.cure
    for cured in (
        dataclasses.replace(config, max_hosts=8),
        dataclasses.replace(config, max_hosts=None),
    ):
        assert "more_hosts" not in {f.rule for f in findings(RunPlan.of(cured, hosts=[2, 8]))}


def test_neighbours_of_a_shuffled_store_are_alike_only_within_documents(here, shuffled):
    """The order of blocks costs nothing there, whatever the strands; on a plain store it does."""
    ratios = {}
    advice = {}
    for cache in (here, shuffled):
        config = LmDataConfig(
            {"a": ComponentConfig(cache)},
            seq_len=16,
            batch_size=16,
            num_steps=500,
            shuffle=BraidShuffleConfig(strands=16, io_block_size=64),
        )
        plan = RunPlan.of(config, hosts=[1], icc={"a": 0.5})
        ratios[cache] = max(plan.unlimited.variance_ratio.values()), plan.noise["a"].excess
        advice[cache] = plan.noise["a"].between, plan.noise["a"].cure(cache)
    assert advice[here] == (
        "blocks",
        f"Train on a copy that shuffles documents: headrace cache reshuffle {here} OUTPUT",
    )
    assert advice[shuffled][0] == "documents"
    assert "ORIGINAL OUTPUT --split" in advice[shuffled][1]  # documents alone are shuffled already
    assert ratios[here][0] > 5
    assert ratios[here][1] > 1.3
    assert 1.0 < ratios[shuffled][0] < 2.5
    assert 1.0 < ratios[shuffled][1] < 1.2


def test_a_point_that_is_not_reached_is_one_that_the_user_wrote(tmp_path):
    """Of a cosine, not the end of one of the straight pieces that it becomes."""
    cache = write_cache(tmp_path / "web", [[np.arange(40, dtype=np.uint8)] * 50]).path
    written = {"cosine": {0: 1, 100: 3, 1000: 2}, "linear": {0: 1, 1000: 2}}
    for kind, points in written.items():
        parts = {
            "a": ComponentConfig(cache, weight={kind: points}),
            "b": ComponentConfig(cache, weight=1),
        }
        config = LmDataConfig(parts, seq_len=8, batch_size=2, num_steps=150)
        said = {f.rule: str(f) for f in findings(RunPlan.of(config, hosts=[1]))}
        assert "has a point at step 1,000, and" in said["weight_not_reached"]


def test_rows_that_end_with_small_parts_leave_tokens_out(tmp_path):
    """Of a part, what fills no row is in none; both cures bring nearly all tokens into rows."""
    documents = [np.arange(40, dtype=np.uint8)] * 5
    cache = write_cache(tmp_path / "parts", [documents] * 20).path
    config = LmDataConfig({"a": ComponentConfig(cache)}, seq_len=150, batch_size=2, num_steps=10)

    def left_out(config: LmDataConfig) -> str | None:
        said = {f.rule: f for f in findings(RunPlan.of(config, hosts=[1]))}
        return str(said["unfilled_rows"]) if "unfilled_rows" in said else None

    said = left_out(config)
    assert said is not None
    assert "1,000 tokens (25.0%)" in said
    copy = str(tmp_path / "COPY")
    assert f"headrace cache reshuffle {cache} COPY" in said
    reshuffle(cache, copy, ReshuffleConfig(seed=0), progress=False)
    plans = PackingConfig(plans=str(tmp_path / "FOLDER"))
    cures = [{"a": ComponentConfig(copy)}, {"a": ComponentConfig(cache, packing=plans)}]
    for cured in cures:
        assert left_out(dataclasses.replace(config, components=cured)) is None
    assert left_out(dataclasses.replace(config, seq_len=199)) is None  # a twohundredth
    fiftieth = left_out(dataclasses.replace(config, seq_len=49))  # 4 tokens of 200
    assert fiftieth is not None
    assert "(2.0%)" in fiftieth
    longer = dataclasses.replace(config, seq_len=300)  # than any part
    with pytest.raises(ConfigError, match=f"headrace cache reshuffle {cache} COPY") as refused:
        longer.dataset()
    assert refused.value.field == "seq_len"
    for cured in cures:
        assert dataclasses.replace(longer, components=cured).dataset()
