"""What an amendment ``caches`` makes of a run: the past stays, the old epoch goes on, new documents
come in, and removed ones are gone.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.data.mixture import mixture_of
from headrace.errors import ConfigError, PlanMismatchError
from headrace.mix import AmendmentConfig
from headrace.order import ValidationConfig
from headrace.order.intervals import Intervals
from headrace.pack import PackingConfig
from headrace.run import LoaderState, open_run
from headrace.run.sightings import sightings
from headrace.store import open_cache
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import grow, random_documents, remove

ONE = Mesh(np.array(jax.devices()[:1]), "data")


def grown(root: Path, sizes: list[int], start: int = 1) -> str:
    """A cache to which so many documents were appended one after the other."""
    for number, documents in enumerate(sizes, start=start):
        if number == 1:
            write_cache(root, [random_documents(documents, seed=101)])
        else:
            grow(root, documents, seed=100 + number)
    return str(root)


def config_of(root: str, *amendments: dict[str, Any], **fields: Any) -> LmDataConfig:
    web = {"cache": f"{root}/web", **fields.pop("web", {})}
    code = {"cache": f"{root}/code", "weight": 0.5}
    return load_config(
        overrides=[
            f"components={{web: {web}, code: {code}}}".replace("None", "null"),
            f"amendments={list(amendments)}",
            *(
                f"{name}={value}"
                for name, value in {"seq_len": 16, "batch_size": 6, **fields}.items()
            ),
        ]
    )


def batches(config: LmDataConfig, steps: range) -> list[list[np.ndarray]]:
    with config.loader(ONE) as loader:
        return [
            [np.asarray(leaf) for leaf in jax.tree.leaves(loader.batch_at(step))] for step in steps
        ]


def same(one: list[list[np.ndarray]], other: list[list[np.ndarray]]) -> bool:
    return all(
        np.array_equal(a, b)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


@settings(max_examples=6)
@given(
    sizes=st.lists(st.integers(3, 70), min_size=2, max_size=4),
    steps=st.lists(st.integers(1, 19), min_size=2, max_size=2, unique=True).map(sorted),
    packed=st.booleans(),
    held_out=st.booleans(),
    seed=st.integers(0, 3),
)
def test_the_past_stays_the_old_epoch_goes_on_and_new_documents_come_in(
    sizes: list[int], steps: list[int], packed: bool, held_out: bool, seed: int
):
    with tempfile.TemporaryDirectory() as folder:
        grown(Path(folder, "web"), sizes)
        tiny_cache(Path(folder, "code"), documents=40, seed=9)
        how: dict[str, Any] = {"seed": seed}
        web: dict[str, Any] = {"packing": {"long": "split"}} if packed else {}
        if held_out:
            how["validation"] = "{one_in: 3, by: documents}"
        plain = config_of(folder, web={**web, "snapshot": 1}, **how)
        last = len(sizes)
        amendments = [{"step": steps[0], "caches": {"web": 2}}]
        amendments += [{"step": steps[1], "caches": {"web": last}}] if last > 2 else []
        longer = config_of(folder, *amendments, web=web, **how)
        assert [*longer.at_snapshots().components] == [
            "web",
            "code",
            "web@2",
            *([f"web@{last}"] if last > 2 else []),
        ]
        check_draws(plain, longer, steps[0])


def check_draws(plain: LmDataConfig, longer: LmDataConfig, step: int) -> None:
    """Rows of the old documents come in the same order, none left out; all of the component have
    its share.
    """
    examples = np.arange(6 * 40)
    before, after = (mixture_of(config.dataset()) for config in (plain, longer))
    assert before is not None
    assert after is not None
    past = [mixture.locate(examples[: 6 * step]) for mixture in (before, after)]
    assert all(np.array_equal(a, b) for a, b in zip(*past, strict=True))
    old = before.explain(examples)
    new = after.explain(examples)
    for number, name in enumerate(after.names):
        ordinals = new.ordinal[new.component == number]
        assert np.array_equal(ordinals, np.arange(ordinals.size)), name
    number = after.names.index("web")
    drawn = np.arange(int((new.component == number).sum()))
    rows = [
        mixture.components[mixture.names.index("web")].locate(drawn) for mixture in (before, after)
    ]
    assert np.array_equal(rows[0].row, rows[1].row)
    family = [n for n, name in enumerate(after.names) if name.startswith("web")]
    share = [
        np.cumsum(old.component == before.names.index("web")),
        np.cumsum(np.isin(new.component, family)),
    ]
    assert int(np.abs(share[0] - share[1]).max()) <= len(family) + 1
    newcomers = [n for n in family if n != number]
    assert not np.isin(new.component[: 6 * step], newcomers).any()
    sizes = {name: len(dataset) for name, dataset in longer.train_datasets().items()}
    late = new.component[6 * 20 :]  # all amendments are in force
    wanted = np.array([sizes[after.names[n]] for n in family], float)
    counts = np.array([int((late == n).sum()) for n in family])
    assert np.abs(counts - counts.sum() * wanted / wanted.sum()).max() <= len(family) + 1


@pytest.fixture
def root(tmp_path: Path) -> str:
    grown(tmp_path / "web", [40])
    tiny_cache(tmp_path / "code", documents=40, seed=9)
    return str(tmp_path)


def test_a_run_keeps_the_generation_that_it_began_with(root: str, tmp_path: Path):
    config = config_of(root)
    first = batches(config, range(12))
    open_run(tmp_path / "run", config)
    grown(tmp_path / "web", [30], start=2)
    fresh = batches(config_of(root), range(12))
    assert not same(fresh, first)
    assert same(batches(config_of(root, web={"snapshot": 1}), range(12)), first)
    assert open_cache(f"{root}/web").num_documents == 70
    manifest = open_run(tmp_path / "run", config_of(root), 5)  # the same config, resumed
    with manifest.loader(ONE) as loader:
        resumed = [
            [np.asarray(leaf) for leaf in jax.tree.leaves(loader.batch_at(step))]
            for step in range(12)
        ]
    assert same(resumed, first)
    state = manifest.state(5)
    amended = config_of(root, {"step": 8, "caches": {"web": 2}})
    with pytest.raises(PlanMismatchError, match="may touch the past"):
        open_run(tmp_path / "run", amended, 9)
    longer = open_run(tmp_path / "run", amended, 5)
    with longer.loader(ONE) as loader:
        longer.check(state)
        longer.check(LoaderState.from_dict(longer.state(10).to_dict()))
        later = [
            [np.asarray(leaf) for leaf in jax.tree.leaves(loader.batch_at(step))]
            for step in range(12)
        ]
    assert same(later[:8], first[:8])
    assert not same(later[8:], first[8:])
    grown(tmp_path / "web", [20], start=3)
    with config_of(root, {"step": 8, "caches": {"web": 2}}).loader(ONE) as loader:
        assert open_run(tmp_path / "run", loader, 10).fingerprint == longer.fingerprint
    both = config_of(
        root,
        {"step": 8, "caches": {"web": 2}},
        {"step": 11, "caches": {"web": 3}, "weights": {"web": 2}},
    )
    with both.loader(ONE) as loader:
        assert open_run(tmp_path / "run", loader, 11).history[-1]["until_step"] == 11


def test_a_run_that_began_with_a_later_snapshot_keeps_it(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30], start=2)
    config = config_of(root)
    first = batches(config, range(6))
    open_run(tmp_path / "run", config)
    grown(tmp_path / "web", [20], start=3)
    run = open_run(tmp_path / "run", config_of(root), 3)
    with run.loader(ONE) as loader:
        assert same(
            [[np.asarray(x) for x in jax.tree.leaves(loader.batch_at(step))] for step in range(6)],
            first,
        )
    run = open_run(tmp_path / "run", config_of(root, {"step": 4, "caches": {"web": 3}}), 3)
    with run.loader(ONE) as loader:
        assert same(
            [[np.asarray(x) for x in jax.tree.leaves(loader.batch_at(step))] for step in range(4)],
            first[:4],
        )
    # an amendment over two snapshots, of a run that began with the first
    grow(tmp_path / "code", 5)
    jump = config_of(root, {"step": 4, "caches": {"web": 3}}, web={"snapshot": 1})
    newcomer = jump.at_snapshots().components["web@3"]
    assert (newcomer.snapshot, newcomer.after) == ([3], [1])
    assert same(batches(jump, range(4)), batches(config_of(root, web={"snapshot": 1}), range(4)))


def test_what_came_after_a_snapshot_is_a_component_by_itself(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30, 20], start=2)
    remove(f"{root}/web", 45, 80)
    late = config_of(root, web={"snapshot": 4, "after": 1}).open_caches()["web"]
    assert late.num_documents == 50
    assert late.removed() == numbers(5, 40)
    assert config_of(root, web={"after": 2}).open_caches()["web"].num_documents == 20
    with pytest.raises(ConfigError, match="begins where nothing was appended"):
        config_of(root, web={"after": 3}).dataset()


def test_documents_are_numbered_through_all_snapshots(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30], start=2)
    assert remove(f"{root}/web", 43) == 3
    plain = config_of(root, web={"snapshot": 2})
    seen = sightings(plain.dataset(), "web", numbers(43), 30)
    assert seen
    assert not any(one.removed for one in seen)
    assert all(one.removed for one in sightings(config_of(root).dataset(), "web", numbers(43), 30))
    assert remove(f"{root}/web", 2) == 4
    amendments = {"step": 3, "caches": {"web": 3}}, {"step": 9, "caches": {"web": 4}}
    longer = config_of(root, *amendments, web={"snapshot": 1})
    found = sightings(longer.dataset(), "web", numbers(2, 43), 40)
    assert {one.document for one in found} == {2, 43}
    assert all(one.removed for one in found if one.document == 43)  # it came in removed
    assert all(one.removed == (one.step >= 9) for one in found if one.document == 2)


def numbers(*documents: int) -> Intervals:
    return Intervals.of_numbers(np.array(documents, np.int64))


@pytest.mark.parametrize(
    ("amendments", "web", "expected"),
    [
        (
            [{"step": 5, "caches": {"web": 3}}],
            {},
            "amendments[0].caches.web = 3: is not a snapshot of ",
        ),
        (
            [{"step": 5, "caches": {"wbe": 2}}],
            {},
            "amendments[0].caches.wbe = 2: is not a component. Did you mean 'web'?",
        ),
        ([{"step": 0, "caches": {"web": 2}}], {}, "amendments[0].step = 0: is not after step 0"),
        (
            [{"step": 5, "caches": {"web": 1}}],
            {},
            "amendments[0].caches.web = 1: is not later than snapshot 1",
        ),
        (
            [{"step": 5, "caches": {"web": 2}}, {"step": 6, "caches": {"web": 2}}],
            {},
            "amendments[1].caches.web = 2: is not later than snapshot 2, which the run has by then",
        ),
        ([{"step": 5, "caches": {"web": 2}}], {"snapshot": 2}, "is not later than snapshot 2"),
        (
            [{"step": 5, "caches": {"web": [2, 2]}}],
            {},
            "amendments[0].caches.web = [2, 2]: does not say it of its 1 cache. Give one number",
        ),
        (
            [{"step": 5, "caches": {"web": 2}}],
            {"max_tokens": 4096},
            "brings in documents, which does not go with components.web.max_tokens",
        ),
        (
            [{"step": 5, "drop": ["web"]}, {"step": 6, "caches": {"web": 2}}],
            {},
            "caches.web: is not in the mixture",
        ),
        (
            [],
            {"snapshot": 0},
            "components.web.snapshot = 0: is not a number, from 1, for each of its 1 cache",
        ),
        ([], {"snapshot": [1, 1]}, "is not a number, from 1, for each of its 1 cache. Give"),
        ([], {"snapshot": 7}, "components.web.snapshot = 7: is not a snapshot of "),
    ],
)
def test_bad_input_is_named(root: str, tmp_path: Path, amendments: Any, web: Any, expected: str):
    grown(tmp_path / "web", [30], start=2)
    with pytest.raises(ConfigError) as error:
        config_of(root, *amendments, web=web).dataset()
    assert expected in str(error.value)


def test_names_of_newcomers_are_not_those_of_others(root: str):
    grow(f"{root}/web", 3)
    with pytest.raises(ConfigError, match=r"'web@2': is the name of what amendments\[0\]\.caches"):
        LmDataConfig(
            {"web": ComponentConfig(f"{root}/web"), "web@2": ComponentConfig(f"{root}/code")},
            amendments=[AmendmentConfig(3, caches={"web": 2})],
        ).dataset()


def test_what_amendments_say_later_means_all_of_an_extended_component(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30], start=2)
    config = config_of(
        root,
        {"step": 3, "caches": {"web": 2}},
        {"step": 5, "weights": {"web": 3}},
        {"step": 7, "drop": ["web"]},
    )
    stages: list[dict[str, Any]] = [stage.blend.to_config() for stage in config.plan().stages]
    assert stages[2]["web"]["weight"] == 3
    assert [*stages[3]] == ["code"]
    assert load_config(None, [f"{k}={v}" for k, v in {"seq_len": 16}.items()]).amendments == []
    assert replace(config) == config
    settled = config.at_snapshots()
    assert settled.at_snapshots() is settled


def test_settings_go_to_what_comes_in(root: str):
    grow(f"{root}/web", 3)
    config = LmDataConfig(
        {
            "web": ComponentConfig(
                f"{root}/web", packing=PackingConfig(), max_epochs=2, weight=3, remove="ids.txt"
            )
        },
        validation=ValidationConfig(one_in=10, by="documents"),
        amendments=[AmendmentConfig(3, caches={"web": 2})],
        split_documents=True,
    )
    newcomer = config.at_snapshots().components["web@2"]
    assert (newcomer.packing, newcomer.max_epochs, newcomer.weight, newcomer.remove) == (
        PackingConfig(),
        2,
        None,
        None,
    )


def test_a_run_goes_on_when_new_documents_are_removed_later(root: str, tmp_path: Path):
    open_run(tmp_path / "run", config_of(root))
    grown(tmp_path / "web", [30], start=2)
    longer = config_of(root, {"step": 4, "caches": {"web": 2}})
    open_run(tmp_path / "run", longer, 3)
    expected = batches(longer, range(12))
    remove(f"{root}/web", *range(40, 60))
    run = open_run(tmp_path / "run", config_of(root, {"step": 4, "caches": {"web": 2}}), 8)
    with run.loader(ONE) as loader:
        assert same(
            [[np.asarray(x) for x in jax.tree.leaves(loader.batch_at(step))] for step in range(12)],
            expected,
        )


def test_what_came_in_is_not_moved_by_itself(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30, 10], start=2)
    with pytest.raises(
        ConfigError,
        match=r"amendments\[1\].caches.web@2 = 3: came with an amendment of web.*\{web: 3\}",
    ):
        config_of(
            root, {"step": 3, "caches": {"web": 2}}, {"step": 5, "caches": {"web@2": 3}}
        ).dataset()


def test_what_comes_in_with_removed_documents_changes_nothing_of_the_steps_before(root: str):
    grown(Path(root) / "web", [30], start=2)
    plain = config_of(root, web={"snapshot": 1})
    remove(f"{root}/web", *range(40, 60))
    longer = config_of(root, {"step": 4, "caches": {"web": 3}}, web={"snapshot": 1})
    expected = batches(plain, range(4))
    found = batches(longer, range(5))
    assert same(found[:4], expected)
    assert [len(leaves) for leaves in found[:4]] == [
        len(leaves) for leaves in expected
    ]  # no program is compiled anew
    assert len(found[4]) > len(found[3])


def test_a_source_with_a_file_of_scores_does_not_grow(root: str):
    documents = open_cache(f"{root}/web").num_documents
    np.save(f"{root}/scores.npy", np.arange(documents))
    grow(f"{root}/web", 30)
    scored = {"snapshot": 1, "shuffle": {"by": f"{root}/scores.npy"}}
    amendment = {"step": 4, "caches": {"web": 2}}
    with pytest.raises(ConfigError, match="does not go with components") as refused:
        config_of(root, amendment, web=scored).dataset()
    assert refused.value.field == "amendments[0].caches.web"
    cure = str(refused.value.cure)
    new = yaml.safe_load(cure[cure.index("{") : cure.index("}") + 1])
    plain = config_of(root, web=scored)
    component = replace(plain.components["web"], shuffle=None, **new)
    added = AmendmentConfig(4, add={"new": 1})
    components = {**plain.components, "new": component}
    replace(plain, components=components, amendments=[added]).dataset()


def test_a_move_that_only_removes_changes_no_draw(root: str):
    """Only tokens of removed documents differ; the mixture has no new stage."""
    remove(f"{root}/web", 2, 30)
    plain = config_of(root, web={"snapshot": 1})
    moved = config_of(root, {"step": 4, "caches": {"web": 2}}, web={"snapshot": 1})
    assert len(moved.plan().stages) == 1
    assert [*moved.at_snapshots().components] == ["web", "code"]
    examples = np.arange(6 * 30)
    before, after = (config.dataset().explain(examples) for config in (plain, moved))
    assert np.array_equal(before.component, after.component)
    assert np.array_equal(before.ordinal, after.ordinal)


GOLDEN = json.loads((Path(__file__).parents[1] / "golden/snapshots.json").read_text())
"""Digests of the batches of twenty steps, by components and moves. They were made when documents
were appended and removed by two mechanisms, each with numbers of its own, for the same documents.
"""
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "packed": ({"packing": {"long": "split"}}, {"validation": "{one_in: 3, by: documents}"}),
    "divided": ({}, {"split_documents": "true", "seed": 3}),
}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache that was appended to twice, and from which documents were removed twice."""
    root = tmp_path_factory.mktemp("history")
    tiny_cache(root / "code", documents=40, seed=9)
    grown(root / "web", [40, 30])
    remove(root / "web", 2, 43)
    grown(root / "web", [20], start=3)
    remove(root / "web", 5, 71)
    return str(root)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: str([*case.values()][:-1]))
def test_batches_are_what_they_were(history: str, case: dict[str, Any]):
    name = "both" if case["kind"] == "both" else "web"
    moves = [{"step": case["step"], "caches": {name: case["to"]}}] if "to" in case else []
    if name == "both":
        paths = [f"{history}/web", f"{history}/code"]
        components = {name: ComponentConfig(paths, snapshot=case["snapshot"])}
        amendments = [AmendmentConfig(**one) for one in moves]
        config = LmDataConfig(components, seq_len=16, batch_size=6, amendments=amendments)
    else:
        of_kind, fields = KINDS[case["kind"]]
        web = {**of_kind, "snapshot": case["snapshot"]}
        config = config_of(history, *moves, web=web, **fields)
    for step, leaves in enumerate(batches(config, range(20))):
        digest = hashlib.sha256()
        for leaf in leaves:
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        assert digest.hexdigest()[:16] == case["digests"][step], step


def test_weights_do_not_name_what_an_amendment_brings_in(root: str):
    grow(f"{root}/web", 3)
    config = config_of(root, {"step": 3, "caches": {"web": 2}})
    for weights in ({"web": {"repeat": 1}, "web@2": 1}, {"web": 1, "web@2": 1}):
        with pytest.raises(
            ConfigError, match=r"weights.web@2 = 1: is not there yet. Leave it out: amendments\[0\]"
        ):
            replace(config, weights=weights).dataset()


def test_a_removal_is_reached_before_an_append_that_fills_no_row(tmp_path: Path):
    """As docs/caches.md says: one behind it waits until more is appended."""
    root = str(tmp_path)
    for name in ("web", "code"):
        grown(tmp_path / name, [90])

    def moved_to(*snapshots: int) -> LmDataConfig:
        amendments = [{"step": 2, "caches": {"web": number}} for number in snapshots]
        return config_of(root, *amendments, seq_len=512, web={"snapshot": 1})

    before = batches(moved_to(), range(4))
    remove(tmp_path / "web", *range(40))
    grow(tmp_path / "web", 3)
    removed = batches(moved_to(2), range(4))
    assert same(removed[:2], before[:2])
    assert not same(removed[2:], before[2:])
    with pytest.raises(ConfigError, match="is longer than the data") as caught:
        moved_to(3).dataset()
    assert "Append more, and move the run then: headrace build" in str(caught.value)
    grow(tmp_path / "web", 60, seed=7)
    assert same(batches(moved_to(4), range(2)), before[:2])
