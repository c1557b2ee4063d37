"""Some hundred configs with one thing changed: which field and value each error is about, or what
is taken, is written in a table beside this file.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace import HeadraceError
from headrace.config import LmDataConfig, load_config
from headrace.config.parsing import decode, with_overrides

TABLE: dict[str, list[list[Any]]] = json.loads(
    Path(__file__).with_name("errors_table.json").read_text()
)
LEAVE_OUT = "~leave out"
BASE: dict[str, Any] = yaml.safe_load("""
seq_len: 16
batch_size: {0: 8, 50: 12}
shuffle: {kind: braid, strands: 12}
stages: [{name: start, weights: {a: 1, b: 2}, tokens: 2560}, {weights: {a: 1, p: {linear: {0: 1, 90: 3}}}}]
amendments: [{step: 80, add: {m: 2}, weights: {a: 0.5}, drop: [p]}]
num_steps: 200
validation: {one_in: 5, by: blocks}
tokenizer: {path: bytes, eos: null}
components:
  a: {cache: caches/a}
  b: {cache: caches/b, shuffle: {kind: block, window_blocks: 4}}
  c: {cache: caches/c, max_epochs: 30, max_tokens: 90000, max_share: 0.9}
  p: {cache: caches/p, packing: {algorithm: bfd, long: split}}
  m:
    cache: caches/m
    remove: m.txt
    source:
      paths: [x.jsonl]
      kind: tokens
      fields: {tokens: ids}
      leaves: {id: {field: id, dtype: text}}
      chat: {mask: roles, variables: {x: y}}
      fim: {prefix: '1', suffix: '2', middle: '3'}
""")
"""What is changed; a path such as ``stages/0/tokens`` says where."""


def brief(value: object) -> str:
    """How Python writes a value; of a config, the fields alone that are not their default."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    given = [
        f"{field.name}={brief(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"


def outcome(load: Callable[[], LmDataConfig], path: str = "") -> str:
    """The field and the value that an error is about, or what the config holds at a path."""
    try:
        value: Any = load()
    except HeadraceError as error:
        lacking = "" if error.field and error.cure else "no field or no cure in "
        return f"{lacking}{type(error).__name__}: {error.field} = {error.value!r}"
    for name in path.split("/") if path else ():
        value = (
            value[int(name)]
            if isinstance(value, list)
            else value[name]
            if isinstance(value, dict)
            else vars(value)[name]
        )
    return f"takes {brief(value)}" if path else "takes it"


def changed(path: str, text: str) -> dict[str, Any]:
    """The base with another value at a path, or without it."""
    config = copy.deepcopy(BASE)
    *parents, last = path.split("/")
    target: Any = config
    for name in parents:
        target = target[int(name) if isinstance(target, list) else name]
    if text == LEAVE_OUT:
        del target[last]
    else:
        target[int(last) if isinstance(target, list) else last] = yaml.safe_load(text)
    return config


def outcome_of_change(path: str, text: str) -> str:
    config = changed(path, text)
    return outcome(lambda: decode(LmDataConfig, config), "" if text == LEAVE_OUT else path)


def outcome_of_settings(settings: Sequence[str]) -> str:
    return outcome(lambda: decode(LmDataConfig, with_overrides({}, settings)))


@pytest.mark.parametrize(("path", "text", "expected"), TABLE["changes"])
def test_a_config_with_one_change(path, text, expected):
    assert outcome_of_change(path, text) == expected


@pytest.mark.parametrize(("text", "expected"), TABLE["texts"])
def test_a_file(text, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(text)
    assert outcome(lambda: load_config("run.yaml")) == expected


@pytest.mark.parametrize(("settings", "expected"), TABLE["settings"])
def test_settings(settings, expected):
    assert outcome_of_settings(settings) == expected


@pytest.mark.parametrize(("path", "text", "sentence"), TABLE["sentences"])
def test_what_an_error_says(path, text, sentence):
    with pytest.raises(HeadraceError) as caught:
        decode(LmDataConfig, changed(path, text))
    assert str(caught.value) == sentence
