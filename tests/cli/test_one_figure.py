"""What ``config check``, ``config simulate``, ``run where`` and ``run tree`` say of the same thing is
one figure.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.testing import tiny_cache

NAMES = "abc"


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    for seed, name in enumerate(NAMES):
        tiny_cache(folder / name, documents=40 + 150 * seed, parts=1 + seed, seed=seed)
    return folder


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a config: any mixture of what bears on reads, steps and rows."""
    names = NAMES[: draw(st.integers(1, 3))]
    optional: dict[str, st.SearchStrategy[Any]] = {
        "max_epochs": st.sampled_from([0.4, 1, 2.5]),
        "stop_strategy": st.sampled_from(["restart", "first_exhausted", "all_exhausted"]),
        "last_batch": st.sampled_from(["pad", "drop", "fill"]),
        "row_order": st.sampled_from(["locality", "stream"]),
        "validation": st.just({"one_in": 9}),
        "subset": st.just({"fraction": 0.7}),
        "shuffle": st.sampled_from([False, True, 64, {"strands": 3}]),
        "prefetch_bytes": st.sampled_from([1 << 20, 1 << 30]),
        "unit": st.sampled_from(["tokens", "examples"]),
    }
    chosen = draw(st.fixed_dictionaries({}, optional=optional))
    sources = {name: {"weight": draw(st.integers(1, 5))} for name in names}
    if draw(st.booleans()):
        sources[names[-1]]["max_tokens"] = draw(st.integers(500, 5000))
    return {
        "seq_len": draw(st.sampled_from([8, 16, {0: 8, 11: 16}])),
        "num_steps": draw(st.integers(1, 90)),
        "batch_size": draw(st.sampled_from([4, 8, {0: 4, 7: 12}])),
        "components": sources,
        **chosen,
    }


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs())
def test_commands_agree(headrace, caches, config):
    agree(headrace, caches, config)


def test_they_agree_on_a_run_of_which_a_part_is_examined(headrace, caches):
    sources: dict[str, Any] = {"a": {}, "c": {"weight": 2}}
    config = {"seq_len": 8, "batch_size": 256, "shuffle": {"strands": 3}, "components": sources}
    agree(headrace, caches, config)
    agree(headrace, caches, {**config, "num_steps": 6000})


def agree(headrace, caches, config):
    components = {
        name: {"cache": str(caches / name), **fields}
        for name, fields in config["components"].items()
    }
    path = caches / "run.yaml"
    path.write_text(json.dumps({**config, "components": components}))

    def ask(*command: str) -> Any:
        done = headrace(*command, str(path), "--json")
        assert done.code in (0, 1, 2), done.err
        return None if done.code == 2 else json.loads(done.out)

    checked = ask("config", "check", "--hosts", "1,2")
    simulated = ask("config", "simulate", "--hosts", "1,2")
    if checked is None:
        assert simulated is None
        assert ask("run", "tree") is None
        return
    plan = checked["plan"]
    if simulated is None:
        assert plan["refused"]
    else:
        assert {name: simulated[name] for name in plan["forecast"]} == plan["forecast"]
    tree = ask("run", "tree")
    assert tree["steps"] == plan["steps"]
    assert tree["tokens"] == plan["tokens"]
    here = None
    if plan["steps"] is not None:
        here = ask("run", "where", "--step", str(plan["steps"]))
        assert here["num_steps"] == plan["steps"]
        assert here["tokens"] == plan["tokens"]
    for one in plan["components"]:
        node = tree["sources"][one["name"]]
        assert node["cache"]["tokens"] == one["tokens"]
        assert (node["rows"]["rows"], node["order"]["kind"]) == (one["rows"], one["shuffle"])
        assert node["drawn"]["rows"] == one["drawn_rows"]
        assert node["drawn"]["epochs"] == one["epochs"]
        if here is not None:
            source = here["sources"][one["name"]]
            assert (source["rows"], source["epochs"]) == (one["drawn_rows"], one["epochs"])
