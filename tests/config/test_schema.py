"""The schema and the loader agree: what loads is valid, and what has an unknown key or a wrong type
is not.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Literal, Union

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace import HeadraceError
from headrace.config import LmDataConfig, load_config
from headrace.config.parsing import Slot, decode, fields_of
from headrace.config.schema import attribute_texts, json_schema
from headrace.errors import ConfigError
from headrace.mix.plan import policy_names

SCHEMA = json_schema(LmDataConfig)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

steps = st.dictionaries(st.integers(0, 9999), st.floats(0.5, 9), min_size=1, max_size=3).map(
    lambda d: dict(sorted(d.items()))
)
weights = st.one_of(
    st.floats(0.1, 9),
    st.just("1e-2"),
    st.builds(
        lambda kind, points: {kind: points, "scale": 2.0},
        st.sampled_from(["step", "linear"]),
        steps,
    ),
)
shuffles = st.one_of(
    st.booleans(),
    st.integers(1, 99),
    st.just({"strands": 4}),
    st.just({"kind": "block", "window_blocks": 4, "perm_type": "linear"}),
)
components = st.fixed_dictionaries(
    {"cache": st.just("caches/a")},
    optional={
        "weight": weights,
        "shuffle": shuffles,
        "max_epochs": st.floats(0.5, 9),
        "expected_tokens": st.just("2.5e11") | st.integers(1, 10**12),
        "packing": st.just({"algorithm": "bfd"}),
        "source": st.just(
            {
                "paths": ["a.jsonl"],
                "kind": "chat",
                "leaves": {"id": {"field": "id", "dtype": "text"}},
            }
        ),
    },
)
blends = st.just(
    {
        "web": {"weight": 3, "blend": {"cc": 1, "wiki": {"linear": {0: 1, 9: 2}}}},
        "code": {"weight": 2},
    }
)
configs = st.fixed_dictionaries(
    {"components": st.dictionaries(st.sampled_from(["a", "b", "c/d"]), components, max_size=2)},
    optional={
        "seq_len": st.integers(2, 999),
        "batch_size": st.integers(1, 99) | st.just({0: 8, 100: 16}),
        "shuffle": shuffles,
        "weights": blends
        | st.just({"temperature": 2})
        | st.just({"unimax": {"max_epochs": 4, "tokens": "1e10"}}),
        "amendments": st.just([{"step": 5, "add": {"d": 1}, "drop": ["b"], "weights": {"a": 2}}]),
        "policy": st.sampled_from(["quota", "greedy"]),
        "validation": st.just({"fraction": 0.01}) | st.none(),
        "tokenizer": st.just({"path": "t.json", "eos": None}) | st.none(),
        "num_steps": st.integers(101, 999) | st.none(),
    },
)


def as_json(config: dict[str, Any]) -> Any:
    return json.loads(json.dumps(config))


@given(configs)
def test_what_loads_is_valid(config):
    decode(LmDataConfig, config)
    VALIDATOR.validate(as_json(config))


WORDS = [
    *(
        "auto",
        "none",
        "on",
        "off",
        "count",
        "refuse",
        "chat",
        "text",
        "jsonl",
        "parquet",
        "a",
        "a.jsonl",
    ),
    *("keep", "split", "drop", "truncate", "truncate_start", "error"),
    *("bfd", "wfd", "ffd", "next_fit", "bfd_split", "wrap", "windowed"),
    *("restart", "first_exhausted", "all_exhausted", "pad", "fill"),
    *(*policy_names(), "969,30,1"),
    *("examples", "tokens", "content_tokens", "trained_tokens", "locality", "stream"),
    *("braid", "block", "feistel", "linear", "blocks", "documents", "start"),
]
SCHEDULES = [1, "1e-2", {"step": {0: 1, "1e1": 2}}, {"linear": [[0, 1], [9, 2]], "scale": "2"}]
WEIGHTS = [*SCHEDULES, *({"repeat": schedule} for schedule in SCHEDULES)]
BLENDS = [
    *({"a": weight} for weight in WEIGHTS),
    {"g": {"weight": 2, "blend": {"a": 1}}},
    {"g": {"weight": {"repeat": 2}, "blend": {"a": {"repeat": 1}}}},
    {"temperature": "2"},
    {"unimax": 4},
    {"unimax": {"max_epochs": 4, "tokens": "1e10"}},
]
SPELLINGS = {
    bool: [True, False, "true"],
    int: [0, 1, 2, 8, 4096, "8", "1e3", 1000.0, "1_000", " 8 "],
    float: [0, 1, 0.5, "0.5", "1e-2", "1e10", ".5", "5."],
    str: [*WORDS, 7, 2.5],
    Any: WEIGHTS,
}
"""How a value of a plain type may be written."""
NEEDED = {
    "ComponentConfig": {"cache": "c"},
    "SourceConfig": {"paths": ["a.jsonl"]},
    "StageConfig": {"weights": {"a": 1}},
    "AmendmentConfig": {"step": 5, "weights": {"a": 2}},
    "BucketsConfig": {"column": "score", "bounds": [1]},
    "TokenizerConfig": {"path": "bytes"},
}


def spelled(slot: Slot, inside: tuple[type, ...] = ()) -> list[Any]:
    """Values that a place in a config may take, and some that it may not."""
    if slot.form in SPELLINGS or slot.form is Literal:
        values = SPELLINGS.get(slot.form, [*slot.choices])
    elif slot.form is Union:
        values = [value for part in slot.parts for value in spelled(part, inside)]
    elif slot.form is list:
        values = [[], *([item] for item in spelled(slot.parts[0], inside))]
    elif slot.form is dict and slot.parts[1].form is Any:
        values = BLENDS
    elif slot.form is dict:
        keys = [0, "1e2", 200.0] if slot.parts[0].form is int else ["a"]
        values = [dict.fromkeys(keys, value) for value in spelled(slot.parts[1], inside)]
    else:
        needed = NEEDED.get(slot.form.__name__, {})
        values = [needed]
        fields = {} if slot.form in inside else fields_of(slot.form)
        for name, field in fields.items():
            of_field = spelled(field.slot, (*inside, slot.form))
            values += [{**needed, name: value} for value in of_field]
            if name == getattr(slot.form, "SHORTHAND", None):
                values += of_field
    return [None, *values] if slot.optional else values


def loads(config: dict[str, Any]) -> bool:
    try:
        decode(LmDataConfig, config).plan()  # blends are read when they are used
    except ConfigError:
        return False
    except HeadraceError:  # there are no caches here to look at
        pass
    return True


PLAIN = {"components": {"a": {"cache": "c"}}}
FIELDS = fields_of(LmDataConfig)


@cache  # takes seconds: not in every process that only imports this file
def loading(name: str) -> list[Any]:
    """Values of a field that load."""
    return [value for value in spelled(FIELDS[name].slot) if loads({**PLAIN, name: value})]


@pytest.mark.parametrize("name", FIELDS)
def test_whatever_loads_is_valid(name):
    assert loading(name)
    for value in loading(name):
        VALIDATOR.validate(as_json({**PLAIN, name: value}))


several_fields = st.deferred(
    lambda: st.fixed_dictionaries({}, optional={n: st.sampled_from(loading(n)) for n in FIELDS})
)


@given(several_fields)
def test_whatever_loads_together_is_valid(config):
    if loads(config):
        VALIDATOR.validate(as_json(config))


@given(configs)
def test_what_is_written_is_valid(config):
    VALIDATOR.validate(as_json(yaml.safe_load(decode(LmDataConfig, config).to_yaml())))


@pytest.mark.parametrize(
    "text",
    [
        "seqlen: 3",
        "seq_len: many",
        "seq_len: {first: 8}",
        "components: [a]",
        "components: {a: {weight: 1}}",
        "components: {a: {cache: x, wieght: 1}}",
        "components: {a: {cache: x, weight: [1]}}",
        "components: {a: {cache: x, weight: {lin: {0: 1}}}}",
        "components: {a: {cache: x, source: {paths: text}}}",
        "components: {a: {cache: x, source: {paths: [t], kind: chats}}}",
        "components: {a: {cache: x, packing: {algorithm: best}}}",
        "shuffle: full",
        "shuffle: {window: 3}",
        "shuffle: {kind: blok}",
        "policy: quotas",
        "row_order: local",
        "stages: {step: 3}",
        "stages: [{weight: {a: 1}}]",
        "weights: {a: {wieght: 1, blend: {b: 1}}}",
        "validation: {by: rows}",
        "split_documents: 1",
    ],
)
def test_neither_takes_what_is_wrong(text):
    config = yaml.safe_load(text)
    assert not VALIDATOR.is_valid(as_json(config))
    with pytest.raises(ConfigError):  # blends are read when they are used
        decode(LmDataConfig, config).plan()


def test_the_schema_is_one_and_says_what_every_field_means():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for name, definition in SCHEMA["$defs"].items():
        assert definition.get("description"), name
        for field, schema in definition.get("properties", {}).items():
            if name not in ("Schedule", "Weight", "Blend", "SizeRule"):
                assert len(schema.get("description", "")) > 5, f"{name}.{field}"


def test_texts_of_fields_hold_no_marks():
    for definition in SCHEMA["$defs"].values():
        for schema in definition.get("properties", {}).values():
            assert ":class:" not in schema.get("description", "")
            assert "``" not in schema.get("description", "")


def test_defaults_are_those_of_the_loader():
    VALIDATOR.validate(as_json(yaml.safe_load(load_config().to_yaml())))
    properties = SCHEMA["$defs"]["LmDataConfig"]["properties"]
    written = as_json(yaml.safe_load(load_config().to_yaml()))
    for name, schema in properties.items():
        if name != "shuffle":
            assert schema["default"] == written[name], name


def test_a_field_without_a_text_is_found_to_have_none():
    class Plain:
        """Nothing.

        Attributes:
            a: One ``thing``,
                on two lines.
        """

    assert attribute_texts(Plain) == {"a": "One `thing`, on two lines."}
