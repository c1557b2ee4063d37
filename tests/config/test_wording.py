"""Words of errors about configs, and numbers with units."""

from dataclasses import dataclass
from typing import Any

import pytest

from headrace.config.wording import describe_record, join_choices, number_in


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1GB", 10**9),
        ("4 KiB", 4096),
        ("1.5", 1.5),
        ("2k", 2000),
        ("25%", 0.25),
        ("7 rows", 7),
        ("", None),
        ("x1", None),
    ],
)
def test_numbers_with_units(text, number):
    assert number_in(text) == number


@dataclass
class Own:
    path: str = ""
    kind: str = "own"


def test_several_things_are_told_apart():
    assert describe_record(Own) == "a mapping such as {path: ...}"
    assert join_choices([(int, None, "a whole number")]) == "a whole number"
    several = join_choices(
        [(bool, None, "true or false"), (Own, None, "unused"), (dict, Any, "unused")]
    )
    assert several == "true or false, {kind: own} or a mapping such as {linear: {0: 1, 1000: 2}}"
