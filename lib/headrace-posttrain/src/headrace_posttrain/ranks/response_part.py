"""Which part of a response each rank of a zig-zag split holds (:func:`headrace.batch.zigzag`)."""

from __future__ import annotations

from typing import NamedTuple

from headrace.batch.sample_numbers import checked_count
from headrace.errors import ConfigError


class ResponsePart(NamedTuple):
    """A zig-zag rank's part of a response, in each of its two chunks: ranges of positions in the
    document.

    Attributes:
        chunk: Tokens of a chunk.
        chunks: The two chunks.
        logits: Positions whose logits predict tokens of the response.
        tokens: Positions of these tokens: one further on.
    """

    chunk: int
    chunks: tuple[tuple[int, int], tuple[int, int]]
    logits: tuple[tuple[int, int], tuple[int, int]]
    tokens: tuple[tuple[int, int], tuple[int, int]]


def response_part(total: int, response: int, ranks: int, rank: int) -> ResponsePart:
    """Which positions of a response a rank has logits for. Nothing predicts the first token of a
    document.

    Args:
        total: Tokens of prompt and response.
        response: Tokens of the response, at the end.
        ranks: Context-parallel ranks.
        rank: This one.

    Raises:
        ConfigError: the response is longer than the document, or there is no such rank.

    Example:
        >>> response_part(17, 9, 4, 2)
        ResponsePart(chunk=3, chunks=((6, 9), (15, 18)), logits=((7, 9), (15, 16)),
            tokens=((8, 10), (16, 17)))
    """
    total = checked_count("total", total, 0)
    response = checked_count("response", response, 0)
    ranks = checked_count("ranks", ranks)
    rank = checked_count("rank", rank, 0)
    if response > total:
        raise ConfigError(
            f"is not within a document of {total} tokens", field="response", value=response
        )
    if rank >= ranks:
        raise ConfigError(f"is not one of {ranks}", field="rank", value=rank)
    chunk = -(-total // (2 * ranks))
    chunks = tuple((c * chunk, (c + 1) * chunk) for c in (rank, 2 * ranks - 1 - rank))
    first = max(total - response - 1, 0)
    last = total - 1
    inside = [(max(a, first), min(b, last)) for a, b in chunks]
    logits = tuple((a, b) if a < b else (0, 0) for a, b in inside)
    tokens = tuple((a + 1, b + 1) if a < b else (0, 0) for a, b in logits)
    return ResponsePart(chunk, chunks, logits, tokens)  # pyright: ignore[reportArgumentType]
