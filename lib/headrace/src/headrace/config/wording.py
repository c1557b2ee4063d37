"""Wording of config errors: what a position accepts, and the number meant by a
string with a unit.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

_UNITS = (
    {"": 1, "%": 0.01}
    | {prefix + "ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
    | {prefix + unit: 1000**power for power, prefix in enumerate("kmgt", 1) for unit in ("b", "")}
)
_NUMBER = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>%|[A-Za-z]*)")


def number_in(text: str) -> float | None:
    """The number at the start of a string, times the unit after it if known; None: there is no
    number.

    Example:
        >>> [number_in(text) for text in ("1GB", "1.5 GiB", "40 steps", "30%", "many")]
        [1000000000, 1610612736, 40, 0.3, None]
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    number = float(match["number"]) * _UNITS.get(match["unit"].lower(), 1)
    return int(number) if number.is_integer() else number


def describe_entry(key: Any, value: Any) -> str:
    """An entry of a mapping from values of one type to values of another.

    Example:
        >>> describe_entry(int, float), describe_entry(str, str)
        ('{0: ...}', '{NAME: ...}')
    """
    entry = (
        f"{{{dataclasses.fields(value)[0].name}: ...}}"
        if dataclasses.is_dataclass(value)
        else "..."
    )
    return f"{{{'0' if key is int else 'NAME'}: {entry}}}"


def describe_record(cls: Any) -> str:
    """How a dataclass is written: a mapping with its first field, or what its shorthand accepts."""
    words = f"a mapping such as {{{dataclasses.fields(cls)[0].name}: ...}}"
    return f"a {cls.SHORTHAND} or {words}" if hasattr(cls, "SHORTHAND") else words


def join_choices(choices: Sequence[tuple[Any, Any, str]]) -> str:
    """Joins what a position accepts: the type of each choice, of a mapping's values, and its
    description.
    """
    if len(choices) == 1:
        return choices[0][2]
    words: list[str] = []
    for form, value, expected in choices:
        if kind := getattr(form, "kind", None):  # among several dataclasses, the kind decides
            words.append(f"{{kind: {kind}}}")
        else:
            words.append(
                "a mapping such as {linear: {0: 1, 1000: 2}}" if value is Any else expected
            )
    words = [*dict.fromkeys(words)]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
