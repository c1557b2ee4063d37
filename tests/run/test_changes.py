"""What an edited config changes of a run; the amendment that is proposed makes of the run what was
asked.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import LmDataConfig, open_run
from headrace.config import ComponentConfig
from headrace.config.parsing import decode
from headrace.config.writing import given_fields
from headrace.errors import PlanMismatchError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.mix import AmendmentConfig
from headrace.order import BlockShuffleConfig, BraidShuffleConfig
from headrace.order.shuffle_config import MAX_HOSTS
from headrace.run import RunLock
from headrace.run.changes import amendment_between, run_changes
from headrace.run.run import amend_run
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

NAMES = ("web", "code", "math", "books")


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    for seed, name in enumerate(NAMES):
        write_cache(folder / name, [random_documents(30, seed=seed)])
    return folder


def config_of(caches, weights, **fields):
    components = {
        name: ComponentConfig(f"{caches}/{name}", weight) for name, weight in weights.items()
    }
    return LmDataConfig(components, seq_len=8, batch_size=8, **fields)


weighted = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1, 2, 3.5]), min_size=1)


@given(weighted, weighted, st.integers(1, 60))
@settings(max_examples=20)
def test_the_proposed_amendment_is_allowed_and_draws_the_edited_mixture(
    caches, before, after, step
):
    began = config_of(caches, before)
    edited = config_of(caches, after)
    manifest = RunLock.of(began.loader())
    changes = run_changes(manifest, edited, step)
    assert changes.same == (list(before.items()) == list(after.items()))
    if changes.amendment is None:  # the same weights, in another order
        assert changes.same or before == after
        return
    assert not changes.refused
    assert changes.fields
    components = {
        **began.components,
        **{n: replace(c, weight=None) for n, c in edited.components.items() if n not in before},
    }
    amended = replace(began, components=components, amendments=[changes.amendment])
    assert RunLock.of(amended.loader()).first_difference(manifest) == step
    last: dict[str, Any] = amended.plan().stages[-1].blend.to_config()
    total = sum(last.values())
    assert {n: w / total for n, w in last.items()} == pytest.approx(
        {n: w / sum(after.values()) for n, w in after.items()}
    )


def test_the_fields_of_the_config_come_first_and_what_follows_stays_behind(caches, tmp_path):
    began = config_of(caches, {"web": 3, "code": 1})
    run = open_run(tmp_path, began)
    loaded = RunLock.load(str(tmp_path))
    assert loaded is not None
    assert loaded.edited == run.lock.edited == json.loads(json.dumps(given_fields(began)))
    with pytest.raises(PlanMismatchError) as caught:
        open_run(tmp_path, config_of(caches, {"web": 3, "code": 2}, seed=1))
    assert "another config: components.code.weight: 1 -> 2; seed: not set -> 1" in str(caught.value)
    assert "run amend" not in (caught.value.cure or "")  # it cannot change the seed
    with pytest.raises(PlanMismatchError) as caught:
        open_run(tmp_path, config_of(caches, {"web": 3, "code": 2}))
    assert f"headrace run amend {tmp_path} CONFIG" in (caught.value.cure or "")
    changes = run_changes(loaded, config_of(caches, {"web": 3, "code": 2}, seed=1), 10)
    assert (changes.amendment, changes.amended) == (None, None)
    assert changes.refused == ["seed: not set -> 1"]
    assert len(changes.plan) > 2
    weighed = run_changes(
        loaded, config_of(caches, {"web": 3, "code": 2}), 10
    )  # components in an order of their own
    assert (weighed.amendment, [*weighed.refused]) == (AmendmentConfig(10, weights={"code": 2}), [])
    amended = replace(began, amendments=[AmendmentConfig(10, weights={"code": 2})])
    assert RunLock.of(amended.loader()).first_difference(loaded) == 10
    turned = run_changes(loaded, config_of(caches, {"code": 1, "web": 3}), 10)
    assert (turned.same, turned.fields) == (True, [])


def test_a_run_without_a_config(caches, tmp_path):
    run = open_run(tmp_path, config_of(caches, {"web": 3, "code": 1}))
    replace(run.lock, config=None, edited=None).save(str(tmp_path))
    loaded = RunLock.load(str(tmp_path))
    assert loaded is not None
    changes = run_changes(loaded, config_of(caches, {"web": 2, "code": 1}), 10)
    assert (changes.fields, changes.amendment) == (None, None)
    assert changes.plan
    with pytest.raises(PlanMismatchError, match="another plan"):
        open_run(tmp_path, config_of(caches, {"web": 2, "code": 1}))


def test_what_a_run_may_change_freely_is_no_difference(caches):
    began = config_of(caches, {"web": 3, "code": 1})
    manifest = RunLock.of(began.loader())
    assert run_changes(manifest, replace(began, prefetch_bytes=1 << 28, num_steps=5), 3).same
    changes = run_changes(manifest, replace(began, prefetch_bytes=1 << 28, seed=2), 3)
    assert changes.refused == ["seed: not set -> 2"]


def test_nested_blends(caches):
    def blended(weights):
        named = [name for name in NAMES if f"'{name}'" in repr(weights)]
        components = {n: ComponentConfig(f"{caches}/{n}") for n in named or NAMES}
        return LmDataConfig(components, seq_len=8, batch_size=8, weights=weights)

    group = {"web": 1, "code": 1}
    weights = {"a": {"weight": 2, "blend": group}, "math": 1}

    def change(edited):
        return amendment_between(blended(weights), blended(edited), 5)

    assert change({"a": {"weight": 3, "blend": group}, "math": 1}) == AmendmentConfig(
        5, weights={"a": 3}
    )
    assert change({"a": {"weight": 2, "blend": {"web": 1, "code": 4}}}) == AmendmentConfig(
        5, weights={"code": 4}, drop=["math"]
    )
    assert change({"math": 1}) == AmendmentConfig(5, drop=["a"])
    assert change({**weights, "books": 2}) == AmendmentConfig(5, add={"books": 2})
    joins = {"a": {"weight": 2, "blend": {**group, "books": 1}}, "math": 1}
    assert change(joins) is None
    assert change({"web": 1, "code": 1, "math": 1}) is None  # out of a group
    assert change(weights) is None
    # a rule is what it gives for these caches
    sized = amendment_between(blended({"web": 1, "math": 1}), blended({"temperature": 2}), 5)
    assert sized is not None
    assert {*sized.add} == {"code", "books"}


def test_a_mixture_that_no_amendment_makes_is_refused(caches):
    grouped = config_of(caches, dict.fromkeys(("web", "code")))
    group = {"all": {"weight": 1, "blend": {"web": 1, "code": 2}}}
    lock = RunLock.of(replace(grouped, weights=group).loader())
    changes = run_changes(lock, replace(grouped, weights={"web": 3, "code": 1}), 5)
    assert (changes.same, changes.amended) == (False, None)
    assert "weights.web: not set -> 3" in changes.refused


def test_fields_read_back():
    config = LmDataConfig(
        {
            "a": ComponentConfig("a", shuffle=BlockShuffleConfig()),
            "b": ComponentConfig("b", {"linear": {0: 1, 9: 2}}),
        },
        seq_len={0: 8, 100: 16},
        batch_size={0: 4, 50: 8},
        shuffle=BraidShuffleConfig(io_block_size=4),
    )
    fields = json.loads(json.dumps(given_fields(config)))
    again = decode(LmDataConfig, fields)
    assert json.loads(json.dumps(given_fields(again))) == fields
    assert (again.seq_len, again.batch_size, again.shuffle) == (
        config.seq_len,
        config.batch_size,
        config.shuffle,
    )
    assert again.components["a"] == config.components["a"]
    assert amendment_between(again, config, 5) is None  # steps of weights are texts in JSON
    assert "seed" not in fields


def test_the_last_checkpoint(caches, tmp_path):
    manifest = open_run(tmp_path, config_of(caches, {"web": 3, "code": 1}))
    assert manifest.last_checkpoint is None
    manifest.state(20)
    manifest.state(30)
    assert manifest.last_checkpoint == 30


@pytest.fixture(scope="module")
def shuffled(caches):
    how = ReshuffleConfig(seed=1)
    reshuffle(f"{caches}/web", f"{caches}/shuffled", how, progress=False)
    return LmDataConfig(
        {"shuffled": ComponentConfig(f"{caches}/shuffled")}, seq_len=8, batch_size=32, max_hosts=2
    )


def test_a_run_on_a_shuffled_store_keeps_the_hosts_of_its_lock(shuffled, tmp_path):
    began = open_run(tmp_path / "run", shuffled)
    assert began.config is not None
    locked = RunLock.load(str(tmp_path / "run"))
    assert locked is not None
    assert (locked.config or {})["max_hosts"] == 2
    with pytest.raises(PlanMismatchError, match=r"max_hosts: 2 -> 8"):
        open_run(tmp_path / "run", replace(shuffled, max_hosts=8))
    other = RunLock.of(replace(shuffled, max_hosts=8).loader())
    assert other.fingerprint != locked.fingerprint


def test_a_run_from_before_there_was_max_hosts_goes_on_with_its_strands(shuffled, tmp_path):
    folder = str(tmp_path / "run")
    config = replace(shuffled, max_hosts=MAX_HOSTS)
    before = RunLock.of(replace(config, max_hosts=None).loader(), config)
    older = {name: value for name, value in (before.config or {}).items() if name != "max_hosts"}
    replace(before, config=older).save(folder)
    run = open_run(folder, config)
    assert run.fingerprint == before.fingerprint
    assert run.config is not None
    assert run.config.max_hosts is None
    assert RunLock.of(config.loader()).fingerprint != before.fingerprint


def test_a_lock_with_a_field_that_is_gone_is_read(caches, tmp_path):
    config = config_of(caches, {"web": 1}, num_steps=20)
    open_run(str(tmp_path), config)
    lock = RunLock.load(str(tmp_path))
    assert lock is not None
    assert lock.config is not None
    earlier = {**lock.config, "cache_catalog": "gs://bucket/catalog.json"}
    replace(lock, config=earlier, edited=earlier).save(str(tmp_path))
    assert "catalog.json" in (tmp_path / "lock.json").read_text()
    read = RunLock.load(str(tmp_path))
    assert read is not None
    assert read.config == read.edited == lock.config
    assert decode(LmDataConfig, read.config).at_snapshots() == config.at_snapshots()


@pytest.mark.parametrize(
    ("declared", "weights"),
    [
        (AmendmentConfig(60, skip=[[60, 70]]), {"web": 0.25, "code": 0.75}),
        (AmendmentConfig(60, weights={"web": 2}), {"web": 2, "code": 0.75}),
        (AmendmentConfig(60, drop=["web"], skip=[[60, 62]]), {"code": 0.75}),
        (AmendmentConfig(60, add={"math": 1}), {"web": 0.25, "code": 0.75, "math": 1}),
        (
            AmendmentConfig(60, weights={"web": {"linear": {60: 1, 90: 3}}}),
            {"web": {"linear": {60: 1, 90: 3}}, "code": 0.75},
        ),
    ],
    ids=["skip", "weights", "drop", "add", "schedule"],
)
def test_an_amendment_that_is_declared_changes_weights_that_were_learned(
    caches, tmp_path, declared, weights
):
    began = config_of(caches, {"web": 3, "code": 1})
    learned = AmendmentConfig(40, weights={"web": 0.25, "code": 0.75}, measured={"sums": {}})
    run = open_run(tmp_path, began)
    run.state(40)
    run.reweigh(learned)
    new = {name: ComponentConfig(str(caches / name)) for name in declared.add}
    edited = replace(began, components={**began.components, **new}, amendments=[declared])
    changes = run_changes(run.lock, edited, 50)
    assert (changes.first_step, changes.amendment) == (60, None)
    assert changes.amended is not None
    assert changes.amended.amendments == [learned, declared]
    again = open_run(tmp_path, edited, 50)
    assert again.config is not None
    assert again.config.amendments == changes.amended.amendments
    assert again.config.plan().stages[-1].blend.to_config() == weights
    assert run_changes(again.lock, edited, 50).same
    # and so does what is declared after it, and a decision between the two
    later = AmendmentConfig(80, weights={"code": 3})
    again.reweigh(replace(learned, step=50))
    further = open_run(tmp_path, replace(edited, amendments=[declared, later]), 55)
    assert further.config is not None
    assert sorted(one.step for one in further.config.amendments) == [40, 50, 60, 80]


@pytest.mark.parametrize("declared_at", [41, 60, 79, 80, 90])
@pytest.mark.parametrize(
    "declared",
    [
        {"weights": {"code": 5}},
        {"weights": {"web": 5}},
        {"add": {"math": 1}},
        {"drop": ["code"]},
    ],
    ids=["code", "web", "add", "drop"],
)
def test_an_amendment_is_declared_before_one_that_was_made_live(
    caches, tmp_path, declared_at, declared
):
    """A job that is started with the config, and the command, make the same run of it."""
    began = config_of(caches, {"web": 3, "code": 1})
    names = {*began.components, *declared.get("add", {})}
    components = {name: ComponentConfig(f"{caches}/{name}") for name in names}
    declaration = AmendmentConfig(declared_at, **declared)
    edited = replace(began, components={**components, **began.components}, amendments=[declaration])
    opened, typed = (str(tmp_path / name) for name in ("opened", "typed"))
    for folder in (opened, typed):
        open_run(folder, began).state(40)
        open_run(folder, began).amend(80, weights={"web": 1})
    run = open_run(opened, edited)
    lock = RunLock.load(typed)
    assert lock is not None
    changes = run_changes(lock, edited, 40)
    assert changes.first_step == declared_at
    assert changes.amended is not None
    assert amend_run(typed, lock, changes.amended, edited).fingerprint == run.fingerprint
    assert {one.step for one in changes.amended.amendments} == {declared_at, 80}
    assert run_changes(run.lock, edited, 40).same


def test_what_is_declared_before_a_source_that_joined_live_is_refused_for_its_step(
    caches, tmp_path
):
    """The order of the source depends on the shares from its step on."""
    began = config_of(caches, {"web": 3, "code": 1})
    open_run(tmp_path, began).state(40)
    math = {"math": ComponentConfig(f"{caches}/math")}
    run = open_run(tmp_path, began).amend(80, add={"math": 1}, components=math)
    early = replace(began, amendments=[AmendmentConfig(60, weights={"code": 5})])
    for refuse in (open_run, lambda *_: run_changes(run.lock, early, 40)):
        with pytest.raises(PlanMismatchError, match=r"Give amendments\[0\].step 81") as refused:
            refuse(tmp_path, early)
        assert (refused.value.field, refused.value.value) == ("amendments[0].step", 60)
    late = replace(began, amendments=[AmendmentConfig(81, weights={"code": 5})])
    assert open_run(tmp_path, late).config is not None


@pytest.mark.parametrize("live_at", [None, 50, 80])
@pytest.mark.parametrize("declared_at", [40, 41, 60, 80])
@pytest.mark.parametrize(
    ("declared", "weights"),
    [
        ({"weights": {"code": 5}}, {"web": 2, "code": 5}),
        ({"drop": ["code"]}, {"web": 2}),
        ({"add": {"math": 1}}, {"web": 2, "code": 1, "math": 1}),
    ],
    ids=["weights", "drop", "add"],
)
def test_new_weights_begin_at_once_and_what_is_declared_with_them_at_its_step(
    caches, tmp_path, live_at, declared_at, declared, weights
):
    """No mixture between them that the config does not say."""
    began = config_of(caches, {"web": 3, "code": 1})
    open_run(tmp_path, began).state(40)
    if live_at is not None:
        open_run(tmp_path, began).amend(live_at, weights={"web": 1})
    components = {"web": ComponentConfig(f"{caches}/web", 2), "code": began.components["code"]}
    added = {name: ComponentConfig(f"{caches}/{name}") for name in declared.get("add", {})}
    amendments = [AmendmentConfig(declared_at, **declared)]
    edited = replace(began, components=components | added, amendments=amendments)
    lock = RunLock.load(str(tmp_path))
    assert lock is not None
    changes = run_changes(lock, edited, 40)
    assert changes.first_step == 40
    assert changes.amended is not None
    stages = {stage.first_step: stage.blend.to_config() for stage in changes.amended.plan().stages}
    between = {} if declared_at == 40 else {40: {"web": 2, "code": 1}}
    assert stages == {0: {"web": 3, "code": 1}, **between, declared_at: weights}
    run = amend_run(str(tmp_path), lock, changes.amended, edited)
    assert run_changes(run.lock, edited, 40).same
    assert open_run(tmp_path, edited, 45).fingerprint == run.fingerprint
