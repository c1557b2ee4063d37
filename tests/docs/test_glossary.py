"""The glossary is a table of terms, each defined once, in a sentence."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TERMS = re.findall(
    r"^\| \*\*(.+?)\*\* \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
)


def test_each_term_is_defined_once():
    terms = [term.lower() for term, _ in TERMS]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))
    assert all(definition.endswith(".") for _, definition in TERMS)
