"""Where a long text can be cut into pieces that are encoded separately, which limits the memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

PIECE_CHARS = 1 << 18
MAX_PIECE_CHARS = 1 << 22
_WINDOW_CHARS = 512
_MAX_TRIES = 64
# The line's end or the space before a word, and the full stops of scripts that have no spaces. All
# of them begin with a character, not a look behind it: then the search skips other characters, and
# is several times as fast.
_BORDER = re.compile(
    r"\n(?<=\S\n)(?=[^\W\d_])| (?<=\S )(?=[^\W\d_])|[。！？；，、](?:(?<=\w.)|(?=\w))"
)
_WORD = re.compile(r"\w")


def cut_points(
    text: str,
    encode: Callable[[str], list[int]],
    piece_chars: int = PIECE_CHARS,
    max_piece_chars: int = MAX_PIECE_CHARS,
) -> Iterator[int]:
    """Where a long text can be cut into pieces whose ids, end to end, are the ids of the whole.

    A cut is made only where the tokenizer itself shows that it changes nothing: the 512 characters
    before and after it have the same ids when encoded together or separately. Tokenizers that work
    within words or lines have such positions everywhere; one that adds a mark before each text has
    none, and then a cut is forced after ``max_piece_chars`` (4 Mi characters; shorter texts are
    always whole), to limit memory.

    Yields:
        Positions in ``text``, increasing, none at its ends.
    """
    start = 0
    while len(text) - start > piece_chars:
        start = _next_cut(text, start, encode, piece_chars, max_piece_chars)
        if start >= len(text):
            return
        yield start


def _next_cut(
    text: str, start: int, encode: Callable[[str], list[int]], least: int, most: int
) -> int:
    limit = min(start + most, len(text))
    for tries, cut in enumerate(_candidates(text, start + least, limit)):
        left_text = text[max(start, cut - _WINDOW_CHARS) : cut]
        right_text = text[cut : cut + _WINDOW_CHARS]
        if encode(left_text) + encode(right_text) == encode(left_text + right_text):
            return cut
        if tries >= _MAX_TRIES:
            break
    return limit


def _candidates(text: str, first: int, stop: int) -> Iterator[int]:
    """Where a cut may be made, from ``first`` on: after a line's end, before a word's space, around
    a full stop.
    """
    for match in _BORDER.finditer(text, max(first - 1, 0), stop):
        at = match.start()
        character = match[0]
        if (
            character == " " or (character != "\n" and at and _WORD.match(text, at - 1))
        ) and at >= first:
            yield at
        if character == "\n" or (character != " " and _WORD.match(text, at + 1, stop)):
            yield at + 1
