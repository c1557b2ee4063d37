"""Numbers for people: few digits, a unit, thousands separators."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_SHORT = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_CLOCK = ((60, "min", "s", 1, 60), (3600, "h", "min", 60, 24), (86400, "d", "h", 3600, math.inf))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NOTHING = "–"


def count(value: float | None) -> str:
    """A whole number with thousands separators.

    Example:
        >>> count(1234567), count(None)
        ('1,234,567', '–')
    """
    return NOTHING if value is None or not math.isfinite(value) else f"{round(value):,}"


def short(value: float | None) -> str:
    """A number in three digits and a letter, from ten thousand on.

    Example:
        >>> short(999), short(9_876), short(999_999), short(1.5e12), short(0.1234)
        ('999', '9,876', '1.00 M', '1.50 T', '0.123')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) < 1e4:
        return count(value) if float(value).is_integer() else digits(value)
    rounded = float(f"{value:.3g}")
    unit, letter = next(one for one in _SHORT if abs(rounded) >= one[0])
    return f"{digits(rounded / unit)} {letter}"


def digits(value: float | None) -> str:
    """Three significant digits.

    Example:
        >>> digits(0.0012345), digits(12.345), digits(1234.5), digits(0), digits(99.96)
        ('0.00123', '12.3', '1,234', '0', '100')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    value = float(f"{value:.3g}") if abs(value) < 1000 else value  # so that 99.96 counts as 100
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 9)}f}"


def in_bytes(value: float | None) -> str:
    """Bytes in the unit that gives up to three digits before the point.

    Example:
        >>> [in_bytes(value) for value in (512, 1 << 20, 1.5 * 2**30, None)]
        ['512 B', '1.00 MiB', '1.50 GiB', '–']
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    power = 0
    while abs(value) >= 1000 and power < len(_SIZES) - 1:
        value = value / 1024
        power = power + 1
    return f"{count(value) if power == 0 else digits(value)} {_SIZES[power]}"


def duration(seconds: float | None) -> str:
    """A time in the unit that fits.

    Example:
        >>> duration(0.00012), duration(0.84), duration(75), duration(7500), duration(200_000)
        ('0.12 ms', '840 ms', '1 min 15 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 1:
        return f"{float(f'{seconds * 1000:.3g}'):g} ms"
    if seconds < 60:
        return f"{digits(seconds)} s"
    unit, name, lower, below = next(step for step in _CLOCK if seconds < step[0] * step[4])[:4]
    count, rest = divmod(round(seconds), unit)
    return f"{count} {name}" + (f" {rest // below} {lower}" if rest // below else "")


def percent(share: float | None) -> str:
    """A share of one.

    Example:
        >>> percent(0.25), percent(0.00012), percent(1.0), percent(0)
        ('25.0%', '0.012%', '100%', '0%')
    """
    if share is None or not math.isfinite(share):
        return NOTHING
    if abs(share) >= 0.9995 or share == 0:
        return f"{share:.0%}"
    return f"{share * 100:.1f}%" if abs(share) >= 0.1 else f"{float(f'{share * 100:.2g}'):g}%"


def moment(unix_s: float | None) -> str:
    """A time of day.

    Example:
        >>> moment(0)
        '1970-01-01 00:00 UTC'
    """
    return (
        NOTHING
        if unix_s is None
        else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    )
