"""What an amendment ``extend`` makes of a run: the past stays, the old epoch goes on, new documents
come in.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
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
from headrace.store import TokenCache, open_cache
from headrace.store.generations import add_generation, generation_path
from headrace.store.tombstones import remove_documents
from headrace.testing import random_documents, tiny_cache, write_cache

ONE = Mesh(np.array(jax.devices()[:1]), "data")


def grown(root: Path, sizes: list[int], start: int = 1) -> str:
    """A cache whose generations have so many documents."""
    for number, documents in enumerate(sizes, start=start):
        path = generation_path(str(root), number)
        write_cache(path, [random_documents(documents, seed=100 + number)])
        if number > 1:
            add_generation(TokenCache.open(str(root)), number, TokenCache.open(path))
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
        plain = config_of(folder, web={**web, "generations": 1}, **how)
        last = len(sizes)
        amendments = [{"step": steps[0], "extend": {"web": 2}}]
        amendments += [{"step": steps[1], "extend": {"web": last}}] if last > 2 else []
        longer = config_of(folder, *amendments, web=web, **how)
        assert [*longer.components] == [
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
    open_run(tmp_path / "run", config.loader(ONE))
    grown(tmp_path / "web", [30], start=2)
    fresh = batches(config_of(root), range(12))
    assert not same(fresh, first)
    assert same(batches(config_of(root, web={"generations": 1}), range(12)), first)
    assert open_cache(f"{root}/web").num_documents == 70
    with config_of(root).loader(ONE) as loader:  # the same config, resumed
        manifest = open_run(tmp_path / "run", loader, 5)
        resumed = [
            [np.asarray(leaf) for leaf in jax.tree.leaves(loader.batch_at(step))]
            for step in range(12)
        ]
    assert same(resumed, first)
    state = manifest.state(5)
    amended = config_of(root, {"step": 8, "extend": {"web": 2}})
    with pytest.raises(PlanMismatchError, match="may touch the past"):
        open_run(tmp_path / "run", amended.loader(ONE), 9)
    with amended.loader(ONE) as loader:
        longer = open_run(tmp_path / "run", loader, 5)
        longer.check(state)
        longer.check(LoaderState.from_json(longer.state(10).to_json()))
        later = [
            [np.asarray(leaf) for leaf in jax.tree.leaves(loader.batch_at(step))]
            for step in range(12)
        ]
    assert same(later[:8], first[:8])
    assert not same(later[8:], first[8:])
    grown(tmp_path / "web", [20], start=3)
    with config_of(root, {"step": 8, "extend": {"web": 2}}).loader(ONE) as loader:
        assert open_run(tmp_path / "run", loader, 10).fingerprint == longer.fingerprint
    both = config_of(
        root,
        {"step": 8, "extend": {"web": 2}},
        {"step": 11, "extend": {"web": 3}, "weights": {"web": 2}},
    )
    with both.loader(ONE) as loader:
        assert open_run(tmp_path / "run", loader, 11).history[-1]["until_step"] == 11


def test_a_run_that_began_with_several_generations_keeps_them(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30], start=2)
    config = config_of(root)
    first = batches(config, range(6))
    open_run(tmp_path / "run", config.loader(ONE))
    grown(tmp_path / "web", [20], start=3)
    with config_of(root).loader(ONE) as loader:
        open_run(tmp_path / "run", loader, 3)
        assert same(
            [[np.asarray(x) for x in jax.tree.leaves(loader.batch_at(step))] for step in range(6)],
            first,
        )
    with config_of(root, {"step": 4, "extend": {"web": 3}}).loader(ONE) as loader:
        open_run(tmp_path / "run", loader, 3)
        assert same(
            [[np.asarray(x) for x in jax.tree.leaves(loader.batch_at(step))] for step in range(4)],
            first[:4],
        )
    # an amendment over two generations, of a run that began with one
    grown(tmp_path / "code", [5], start=2)
    jump = config_of(root, {"step": 4, "extend": {"web": 3}}, web={"generations": 1})
    assert jump.components["web@3"].cache == [f"{root}/web/generations/{n}" for n in (2, 3)]
    assert same(batches(jump, range(4)), batches(config_of(root, web={"generations": 1}), range(4)))


def test_removed_documents_are_numbered_through_all_generations(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30], start=2)
    remove_documents(open_cache(f"{root}/web").members[1], Intervals.of_numbers(np.array([3])))
    plain = config_of(root, web={"tombstones": [0, 0]})
    seen = sightings(plain.dataset(), "web", Intervals.of_numbers(np.array([43])), 30)
    assert seen
    assert not any(one.removed for one in seen)
    assert all(one.removed for one in sightings(config_of(root).dataset(), "web", numbers(43), 30))
    pinned = config_of(root, web={"tombstones": 0})  # from before there was a second generation
    assert same(batches(pinned, range(5)), batches(plain, range(5)))
    amendments = {"step": 3, "extend": {"web": 2}}, {"step": 9, "remove": {"web": [0, 1]}}
    longer = config_of(root, *amendments, web={"tombstones": 0})
    found = sightings(longer.dataset(), "web", numbers(2, 43), 40)
    assert {one.document for one in found} == {2, 43}
    assert all(one.removed for one in found if one.document == 43)  # taken in with its tombstones
    assert not any(one.removed for one in found if one.document == 2)


def numbers(*documents: int) -> Intervals:
    return Intervals.of_numbers(np.array(documents, np.int64))


@pytest.mark.parametrize(
    ("amendments", "web", "expected"),
    [
        (
            [{"step": 5, "extend": {"web": 3}}],
            {},
            "amendments[0].extend.web = 3: is not a generation of ",
        ),
        (
            [{"step": 5, "extend": {"wbe": 2}}],
            {},
            "amendments[0].extend.wbe = 2: is not a component. Did you mean 'web'?",
        ),
        ([{"step": 0, "extend": {"web": 2}}], {}, "amendments[0].step = 0: is not after step 0"),
        (
            [{"step": 5, "extend": {"web": 1}}],
            {},
            "amendments[0].extend.web = 1: is not later than generation 1",
        ),
        (
            [{"step": 5, "extend": {"web": 2}}, {"step": 6, "extend": {"web": 2}}],
            {},
            "amendments[1].extend.web = 2: is not later than generation 2, which the run has by"
            " then",
        ),
        ([{"step": 5, "extend": {"web": 2}}], {"generations": 2}, "is not later than generation 2"),
        ([{"step": 5, "extend": {"web": [2, 2]}}], {}, "does not say it of its 1 cache"),
        (
            [{"step": 5, "extend": {"web": 2}}],
            {"max_tokens": 4096},
            "does not go with components.web.max_tokens",
        ),
        (
            [{"step": 5, "extend": {"web": 4}}],
            {},
            "amendments[0].extend.web = 4: is more than there are",
        ),
        (
            [{"step": 5, "drop": ["web"]}, {"step": 6, "extend": {"web": 2}}],
            {},
            "extend.web: is not in the mixture",
        ),
        (
            [],
            {"generations": 0},
            "components.web.generations = 0: is not how many generations its 1 cache can have",
        ),
        ([], {"generations": [1, 1]}, "is not how many generations its 1 cache can have"),
        ([], {"generations": 7}, "components.web.generations = 7: is more than there are"),
    ],
)
def test_bad_input_is_named(root: str, tmp_path: Path, amendments: Any, web: Any, expected: str):
    grown(tmp_path / "web", [30], start=2)
    with pytest.raises(ConfigError) as error:
        config_of(root, *amendments, web=web).dataset()
    assert expected in str(error.value)


def test_names_of_newcomers_are_not_those_of_others(root: str):
    with pytest.raises(ConfigError, match="is the name of what extends a component"):
        LmDataConfig(
            {"web": ComponentConfig(f"{root}/web"), "web@2": ComponentConfig(f"{root}/code")},
            amendments=[AmendmentConfig(3, extend={"web": 2})],
        )


def test_what_amendments_say_later_means_all_of_an_extended_component(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30], start=2)
    config = config_of(
        root,
        {"step": 3, "extend": {"web": 2}},
        {"step": 5, "weights": {"web": 3}},
        {"step": 7, "drop": ["web"]},
    )
    stages: list[dict[str, Any]] = [stage.blend.to_config() for stage in config.resolved_stages()]
    assert stages[2]["web"]["weight"] == 3
    assert [*stages[3]] == ["code"]
    assert load_config(None, [f"{k}={v}" for k, v in {"seq_len": 16}.items()]).amendments == []
    again = LmDataConfig(**{**vars(config)})
    assert again == config


def test_settings_go_to_what_extends(root: str):
    config = LmDataConfig(
        {
            "web": ComponentConfig(
                f"{root}/web", packing=PackingConfig(), max_epochs=2, weight=3, remove="ids.txt"
            )
        },
        validation=ValidationConfig(one_in=10, by="documents"),
        amendments=[AmendmentConfig(3, extend={"web": 2})],
        split_documents=True,
    )
    newcomer = config.components["web@2"]
    assert (newcomer.packing, newcomer.max_epochs, newcomer.weight, newcomer.remove) == (
        PackingConfig(),
        2,
        None,
        None,
    )


def test_an_extended_run_goes_on_when_new_documents_are_removed_later(root: str, tmp_path: Path):
    open_run(tmp_path / "run", config_of(root).loader(ONE))
    grown(tmp_path / "web", [30], start=2)
    longer = config_of(root, {"step": 4, "extend": {"web": 2}})
    open_run(tmp_path / "run", longer.loader(ONE), 3)
    expected = batches(longer, range(12))
    remove_documents(open_cache(f"{root}/web").members[1], numbers(*range(20)))
    with config_of(root, {"step": 4, "extend": {"web": 2}}).loader(ONE) as loader:
        open_run(tmp_path / "run", loader, 8)
        assert same(
            [[np.asarray(x) for x in jax.tree.leaves(loader.batch_at(step))] for step in range(12)],
            expected,
        )


def test_what_extends_a_component_is_not_extended_itself(root: str, tmp_path: Path):
    grown(tmp_path / "web", [30, 10], start=2)
    with pytest.raises(
        ConfigError,
        match=r"amendments\[1\].extend.web@2 = 3: is itself what extends web.*\{web: 3\}",
    ):
        config_of(
            root, {"step": 3, "extend": {"web": 2}}, {"step": 5, "extend": {"web@2": 3}}
        ).dataset()


def test_tombstones_of_more_generations_than_the_run_has_are_counted_over_all(
    root: str, tmp_path: Path
):
    grown(tmp_path / "web", [30, 10], start=2)
    for member in open_cache(f"{root}/web").members:
        remove_documents(member, numbers(3))
    amendments = {"step": 3, "extend": {"web": 2}}, {"step": 5, "remove": {"web": [1, 1, 1]}}
    with pytest.raises(
        ConfigError, match=r"\[1, 1, 1\]: gives 3 generations, .* 2 caches. .*: \[1, 1\]"
    ):
        config_of(root, *amendments, web={"tombstones": 0}).dataset()


def test_what_comes_in_with_tombstones_changes_nothing_of_the_steps_before(root: str):
    grown(Path(root) / "web", [30], start=2)
    plain = config_of(root, web={"generations": 1, "tombstones": 0})
    remove_documents(open_cache(f"{root}/web").members[1], numbers(*range(20)))
    longer = config_of(root, {"step": 4, "extend": {"web": 2}}, web={"tombstones": 0})
    expected = batches(plain, range(4))
    found = batches(longer, range(5))
    assert same(found[:4], expected)
    assert [len(leaves) for leaves in found[:4]] == [
        len(leaves) for leaves in expected
    ]  # no program is compiled anew
    assert len(found[4]) > len(found[3])


def test_weights_do_not_name_what_an_amendment_brings_in(root: str):
    config = config_of(root, {"step": 3, "extend": {"web": 2}})
    for weights in ({"web": {"repeat": 1}, "web@2": 1}, {"web": 1, "web@2": 1}):
        with pytest.raises(
            ConfigError, match=r"weights.web@2 = 1: is not there yet. Leave it out: amendments\[0\]"
        ):
            replace(config, weights=weights).dataset()
