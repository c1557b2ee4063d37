"""The glossary: every word of a public name is defined there, or is one that the field uses in the same sense.

``usual_words.txt`` has the latter. A new public name with a new word needs a line in one of the two: that is the moment
to ask whether the thing has a word already.
"""

import dataclasses
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from headrace.cli.application import application
from headrace.config.component import ComponentConfig
from headrace.config.lm_data import LmDataConfig

ROOT = Path(__file__).parents[2]
TERMS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
USUAL = (Path(__file__).parent / "usual_words.txt").read_text().split()


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for key, command in group.commands.items():
        yield f"{name}{key}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{name}{key} ")


def public_names() -> set[str]:
    """Names in Python, fields of configs, commands and their options."""
    packages = runpy.run_path(str(ROOT / "scripts" / "update_api.py"))["public_names"]()
    names = {name for package in packages.values() for name in package}
    names |= {field.name for config in (LmDataConfig, ComponentConfig) for field in dataclasses.fields(config)}
    for name, command in commands(typer.main.get_command(application())):
        names |= {name, *(option for parameter in command.params for option in parameter.opts)}
    return names


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def defined() -> set[str]:
    return {word for term, _ in TERMS for word in re.findall(r"[a-z]+", term.lower())}


def test_words_of_public_names_are_known():
    words = {word for name in public_names() for word in words_of(name)}
    known = {*defined(), *USUAL}
    known |= {word + "s" for word in known} | {word.removesuffix("y") + "ies" for word in known}
    assert len(words) > 200
    assert not sorted(words - known), "define them in docs/glossary.md, or use the word that is there"


def test_a_word_that_nobody_defined_is_found():
    assert "frobnicator" not in {*defined(), *USUAL}
    assert words_of("BraidFrobnicatorConfig") == {"braid", "frobnicator", "config"}
    assert words_of("--id-leaf") == {"id", "leaf"}


def test_the_list_of_usual_words_has_none_too_many():
    words = {word for name in public_names() for word in words_of(name)}
    assert sorted(USUAL) == USUAL
    assert not sorted(set(USUAL) & defined()), "defined in the glossary"
    assert not [word for word in USUAL if not {word, word + "s", word.removesuffix("y") + "ies"} & words]


def test_each_term_is_defined_once():
    terms = [term.lower() for term, _ in TERMS]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))
    assert all(definition.endswith(".") for _, definition in TERMS)
