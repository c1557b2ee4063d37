"""What the walk makes of plain values is what was written, and what it refuses it names by its
path.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import LmDataConfig, load_config
from headrace.config.parsing import decode, fields_of, read, slot_of, with_overrides
from headrace.errors import ConfigError
from headrace.order import BraidShuffleConfig


@dataclass(frozen=True)
class Leaf:
    size: int
    share: float = 0.5
    how: Literal["near", "far"] = "near"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(
                "must not be negative", field="size", value=self.size, cure="Write 1."
            )


@dataclass(frozen=True)
class Tree:
    leaves: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    rows: list[Leaf] = field(default_factory=list[Leaf])
    by_step: int | dict[int, int] | None = None
    on: bool = False
    name: str = ""


TREE = slot_of(Tree)
leaf = st.fixed_dictionaries(
    {"size": st.integers(0)},
    optional={"share": st.floats(0, 1), "how": st.sampled_from(["near", "far"])},
)
trees = st.fixed_dictionaries(
    {},
    optional={
        "leaves": st.dictionaries(st.text("ab", min_size=1), leaf),
        "rows": st.lists(leaf),
        "by_step": st.none() | st.integers() | st.dictionaries(st.integers(0), st.integers()),
        "on": st.booleans(),
        "name": st.text("xyz"),
    },
)


@given(trees)
def test_it_builds_what_the_dataclasses_build(values):
    made = {
        **values,
        "leaves": {name: Leaf(**one) for name, one in values.get("leaves", {}).items()},
    }
    assert read(TREE, values) == Tree(
        **{**made, "rows": [Leaf(**one) for one in values.get("rows", [])]}
    )


@pytest.mark.parametrize("value", [-1, True, "many", [1], {"a": 1}, None, 1.5])
@given(depth=st.sampled_from(["leaves", "rows"]), others=st.lists(leaf, max_size=3))
def test_a_wrong_value_is_named_where_it_stands(value, depth, others):
    wrong = [*others, {"size": value}]
    config: dict[str, Any] = {
        depth: wrong if depth == "rows" else {f"l{n}": one for n, one in enumerate(wrong)}
    }
    with pytest.raises(ConfigError) as info:
        read(TREE, config)
    path = f"rows[{len(others)}]" if depth == "rows" else f"leaves.l{len(others)}"
    assert (info.value.field, info.value.value) == (f"{path}.size", value)
    assert info.value.cure


@given(st.integers(0, 10**12))
def test_whole_numbers_may_have_an_exponent_also_as_keys(number):
    text = f"{number}e0"
    assert read(TREE, {"by_step": {text: text}}).by_step == {number: number}
    with pytest.raises(ConfigError, match="twice"):
        read(TREE, {"by_step": {text: 1, number: 2}})


def test_a_type_that_no_config_holds_is_an_error_of_the_program():
    with pytest.raises(TypeError, match="set"):
        slot_of(set[int])


def test_fields_without_a_default_are_required():
    assert [name for name, one in fields_of(Leaf).items() if one.required] == ["size"]


@given(st.text("abc/", min_size=1) | st.lists(st.text("abc", min_size=1), min_size=1))
def test_a_cache_stands_for_its_component(cache):
    raw = {"components": {"web": cache, "code": {"cache": "c", "weight": 2}}}
    config = decode(LmDataConfig, raw)
    assert config == decode(
        LmDataConfig, {"components": {"web": {"cache": cache}, "code": raw["components"]["code"]}}
    )
    overridden = decode(
        LmDataConfig, with_overrides(raw, ["components.web.weight=3"], LmDataConfig)
    )
    assert overridden.components["web"] == replace(config.components["web"], weight=3.0)
    assert raw["components"]["web"] == cache


def test_another_kind_leaves_the_fields_of_the_old_one():
    shuffle = {"kind": "block", "io_block_size": 16, "window_blocks": 4}
    raw = {"components": {"web": "web"}, "shuffle": shuffle}
    config = decode(LmDataConfig, with_overrides(raw, ["shuffle.kind=braid"], LmDataConfig))
    assert config.shuffle == BraidShuffleConfig(io_block_size=16)
    assert len(shuffle) == 3
    same = decode(LmDataConfig, with_overrides(raw, ["shuffle.kind=block"], LmDataConfig))
    assert same.shuffle == decode(LmDataConfig, raw).shuffle
    for settings in (["shuffle.kind=braid", "shuffle.window_blocks=8"], ["shuffle.kind=brad"]):
        with pytest.raises(ConfigError):
            decode(LmDataConfig, with_overrides(raw, settings, LmDataConfig))


@pytest.mark.parametrize("cache", [3, True, None, [1, {}]])
def test_what_stands_for_no_component(cache):
    with pytest.raises(ConfigError) as caught:
        decode(LmDataConfig, {"components": {"web": cache}})
    assert str(caught.value.field).startswith("components.web")


def test_a_config_is_named_by_a_path(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("seq_len: 8\ncomponents: {a: {cache: a}}\n")
    assert load_config(file) == load_config(str(file))
