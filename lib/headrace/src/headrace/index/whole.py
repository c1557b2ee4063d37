"""Whole numbers as people write them: ``1e9`` is one, and YAML 1.1 reads it as text, ``1.0e+9`` as a float."""

from __future__ import annotations

import re
from decimal import Decimal

_SCIENTIFIC = re.compile(r"[+-]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][+-]?\d{1,3}")
_MOST_DIGITS = 100


def whole_number(value: object) -> object:
    """The int that a text with an exponent, or a float, stands for; whatever stands for none, as it is.

    Example:
        >>> [whole_number(v) for v in ("1e9", "1.5e9", 2e9, "1e-3", "1.5", 1.5, "12", True)]
        [1000000000, 1500000000, 2000000000, '1e-3', '1.5', 1.5, '12', True]
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
        number = Decimal(value.replace("_", ""))
        if number.adjusted() < _MOST_DIGITS and number == number.to_integral_value():
            return int(number)
    return value
