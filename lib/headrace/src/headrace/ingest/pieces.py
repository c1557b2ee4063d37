"""Where long texts are cut before they are encoded, so that memory ends somewhere and all cores have work.

Encoding holds about 115 bytes a byte of text and runs one text on one core: a document of 200 MB as one text takes 23
GB and two minutes on any machine. In pieces it takes what the pieces take, on all cores.

The invariant: where a text is cut depends on the text and the tokenizer alone.
Price: three encodings of at most 1024 characters a cut, one cut in 256 Ki characters: under 1%.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

THREADS_VARIABLE = "RAYON_NUM_THREADS"
"""The variable by which the tokenizers library is told how many threads to use."""
PIECE_CHARS = 1 << 18
MAX_PIECE_CHARS = 1 << 22
_WINDOW_CHARS = 512
_MAX_TRIES = 64
# After a line's end, before the space of a word, around a full stop of scripts that have no spaces.
_CANDIDATE = re.compile(
    r"(?<=\S\n)(?=[^\W\d_])|(?<=\S)(?= [^\W\d_])|(?<=\w)(?=[。！？；，、])|(?<=[。！？；，、])(?=\w)"
)


def batch_chars() -> int:
    """Characters to encode at once: enough to keep all cores busy, little enough to bound memory (0.25 Mi a core)."""
    return max(2, min(64, encoding_threads())) << 18


def cores() -> int:
    """Cores that this process may use."""
    # Not every system tells which cores are ours.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoding_threads() -> int:
    """Threads that encode in this process: one a core, unless the environment gives it fewer (a worker's share)."""
    said = os.environ.get(THREADS_VARIABLE, "")
    return int(said) if said.isdigit() and int(said) > 0 else cores()


def cut_points(
    text: str,
    encode: Callable[[str], list[int]],
    piece_chars: int = PIECE_CHARS,
    max_piece_chars: int = MAX_PIECE_CHARS,
) -> Iterator[int]:
    """Where a long text can be cut into pieces whose ids, end to end, are the ids of the whole.

    A cut is made only where the tokenizer itself shows that it changes nothing: the 512 characters before and after it,
    encoded together, have the same ids as encoded apart. Tokenizers that work within words or lines have such places
    everywhere; one that puts a mark before each text has none, and then a cut is forced after ``max_piece_chars``
    (4 Mi characters; shorter texts are always whole): memory must end somewhere.

    Args:
        text: A text of any length.
        encode: Ids of a text, without special tokens.
        piece_chars: Pieces are a little longer than this.
        max_piece_chars: And never longer than this.

    Yields:
        Positions in ``text``, increasing, none at its ends.
    """
    start = 0
    while len(text) - start > piece_chars:
        start = _next_cut(text, start, encode, piece_chars, max_piece_chars)
        if start >= len(text):
            return
        yield start


def _next_cut(text: str, start: int, encode: Callable[[str], list[int]], least: int, most: int) -> int:
    limit = min(start + most, len(text))
    for tries, match in enumerate(_CANDIDATE.finditer(text, start + least, limit)):
        cut = match.start()
        before, after = text[max(start, cut - _WINDOW_CHARS) : cut], text[cut : cut + _WINDOW_CHARS]
        if encode(before) + encode(after) == encode(before + after):
            return cut
        if tries >= _MAX_TRIES:
            break
    return limit
