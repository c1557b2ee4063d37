"""The code points on which two encoders of one tokenizer disagree, found by comparing all of them.

Encoders cut a text into words by classes of characters (letters, digits, spaces, the rest), which
depend on the version of Unicode that each was built with. A cut is visible in the ids only where a
token could have crossed it, so the ids of a tokenizer prove little. A **probe** shows all cuts: a
tokenizer with the same cutting rules, in whose vocabulary every byte that can end a character
merges with every byte that can begin one. With the probe, each code point is compared between
letters and between punctuation; letters also between capitals; and everything that is neither an
ideograph (``Lo``), private nor unassigned also between digits, spaces, line ends and quotes. With
the tokenizer itself, each is compared alone.

Price: 1.1 million code points take 12 to 20 s of CPU on all cores, nearly all of it in the
``tokenizers`` library. The result is cached in the user's cache folder
(``$XDG_CACHE_HOME/headrace``, 20 kB), by a digest of the tokenizer and the versions of both
libraries.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from headrace.errors import HeadraceError
from headrace.store.records import RecordKind, read_record, write_record

ALL_POINTS = 0x110000
"""One more than the largest code point."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points as runs ``start .. stop``, increasing."""
Encode: TypeAlias = Callable[[Sequence[str]], list[bytes]]
"""Encodes texts; returns the ids of each as the bytes of uint32."""

_VERSION = 1
_KIND = RecordKind("code points", 1, Ranges)
_SURROGATES = range(0xD800, 0xE000)
_POINTS_A_TEXT = 64
_TEXTS_AT_ONCE = 256
_BETWEEN_ALL = ("aa", "!!")
_BETWEEN_SOME = ("11", "  ", "\n\n", "''", "//", "..", "AA")


def differing_code_points(
    tokenizer: tuple[Encode, Encode],
    probe: tuple[Encode, Encode],
    points: Iterable[int] = range(ALL_POINTS),
) -> Ranges:
    """The code points among ``points`` for which the two encoders of a pair give different ids.

    Args:
        tokenizer: Two encoders of the tokenizer.
        probe: Two encoders of its probe, see :func:`probe_of`.
        points: Code points to compare; surrogates are left out.
    """
    every = [p for p in points if p not in _SURROGATES]
    categories = {p: unicodedata.category(chr(p)) for p in every}
    letters = [p for p in every if categories[p] == "Lo"]
    others = [p for p in every if categories[p] not in ("Lo", "Co", "Cn")]
    rounds = [(tokenizer, "\n", every), *((probe, between, every) for between in _BETWEEN_ALL)]
    rounds += [(probe, "AA", letters), *((probe, between, others) for between in _BETWEEN_SOME)]
    differing: set[int] = set()
    for encoders, between, chosen in rounds:
        differing.update(_compare(encoders, between, chosen))
    return _ranges(sorted(differing))


def known_or_computed(digest: str, compute: Callable[[], Ranges]) -> Ranges:
    """The ranges in the user's cache folder for a digest; computes and saves them if there are
    none.
    """
    path = str(_folder() / f"code-points-{digest}.json")
    with suppress(OSError, HeadraceError):
        ranges = read_record(path, _KIND)
        if ranges is not None:
            return ranges
    ranges = compute()
    # If the folder cannot be written, they are computed again next time.
    with suppress(OSError, HeadraceError):
        write_record(path, _KIND, ranges, shared=True)
    return ranges


def digest_of(tokenizer: bytes, *versions: str) -> str:
    """Digest of a comparison: the tokenizer, and the versions of the libraries."""
    return hashlib.sha256(
        "\n".join((str(_VERSION), *versions)).encode() + b"\n" + tokenizer
    ).hexdigest()


def table_of(ranges: Ranges) -> np.ndarray:
    """Whether each code point is in one of the ranges: bool ``[0x110000]``."""
    table = np.zeros(ALL_POINTS, bool)
    for start, stop in ranges:
        table[start:stop] = True
    return table


def probe_of(content: dict[str, Any]) -> dict[str, Any]:
    """A byte-level ``tokenizer.json`` with the cuts of another one, and a vocabulary that shows all
    of them.

    Merges of a byte of ASCII with one that is not come first: a text in which every code point
    stands between two pairs of ASCII characters shows each cut between code point and pair.
    """
    names = byte_names()
    last = range(0x80, 0xC0)
    first = range(0xC2, 0xF5)
    plain = range(0x80)
    sides = ((last, plain), (plain, first), (last, first), (plain, plain))
    pairs = [(a, b) for ends, begins in sides for a in ends for b in begins]
    vocabulary = {names[b]: b for b in range(256)}
    for a, b in pairs:
        vocabulary[names[a] + names[b]] = len(vocabulary)
    merges = [[names[a], names[b]] for a, b in pairs]
    model = {
        **content["model"],
        "vocab": vocabulary,
        "merges": merges,
        "ignore_merges": False,
        "unk_token": None,
    }
    return {**content, "model": model, "added_tokens": [], "post_processor": None}


def byte_names() -> list[str]:
    """How byte-level vocabularies spell each byte: itself if it is printable, else a character from
    U+0100 on.

    Example:
        >>> byte_names()[ord("a")], byte_names()[ord(" ")]
        ('a', 'Ġ')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def _compare(encoders: tuple[Encode, Encode], between: str, points: Sequence[int]) -> Iterator[int]:
    """The points for which the encoders give different ids, each between two of ``between``."""
    runs = [points[i : i + _POINTS_A_TEXT] for i in range(0, len(points), _POINTS_A_TEXT)]
    for start in range(0, len(runs), _TEXTS_AT_ONCE):
        some = runs[start : start + _TEXTS_AT_ONCE]
        for i in _unequal(encoders, [_text(between, run) for run in some]):
            alone = list(_unequal(encoders, [_text(between, [point]) for point in some[i]]))
            yield from (some[i][j] for j in alone) if alone else some[i]


def _unequal(encoders: tuple[Encode, Encode], texts: list[str]) -> Iterator[int]:
    ids, others = (encode(texts) for encode in encoders)
    return (i for i, (one, other) in enumerate(zip(ids, others, strict=True)) if one != other)


def _text(between: str, points: Iterable[int]) -> str:
    return between + between.join(map(chr, points)) + between


def _ranges(points: Sequence[int]) -> Ranges:
    ends = [i for i in range(1, len(points)) if points[i] != points[i - 1] + 1]
    starts = [0, *ends] if points else []
    return tuple(
        (points[a], points[b - 1] + 1)
        for a, b in zip(starts, [*ends, len(points)], strict=bool(points))
    )


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
