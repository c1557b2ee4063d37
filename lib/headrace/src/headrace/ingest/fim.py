"""Fill-in-the-middle: a document as prefix, suffix and middle, so that a model learns to fill gaps.

Whether a document is rearranged, and where it is cut, depends only on (seed, document number): the
same in every order, on any number of hosts, for one document or for a thousand. During a build,
documents have no numbers, because parts are built separately and in any order, so a hash of the
tokens is used instead. Documents stay separate: a rearranged one is three sentinels longer, none is
cut or padded, and the returned lengths are the segments of the row.

Price: 0.1 us per token, vectorised over documents.

Reference: Bavarian et al., "Efficient training of language models to fill in the middle", 2022: PSM
is ``[prefix] P [suffix] S [middle] M``, SPM (its second variant) ``[prefix] [suffix] S [middle] P
M``.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Integer

from headrace.errors import ConfigError
from headrace.ingest.base_tokenizer import Tokenizer, resolve_special
from headrace.ingest.choices import Kind
from headrace.ingest.source import TOKEN_MASKS, FimConfig, SourceConfig
from headrace.order.seeds import check_seed, derive_keys, fold

_CHOOSE, _MODE, _CUT, _OTHER_CUT = range(4)


@dataclass(frozen=True)
class FillInMiddle:
    """How documents are rearranged.

    Attributes:
        prefix_id: Sentinel before the prefix.
        suffix_id: Sentinel before the suffix.
        middle_id: Sentinel before the middle.
        seed: Integer seed.
        rate: Share of the documents that are rearranged.
        spm_rate: Share of these that are in SPM order.
        eos_id: If this is the last token of a document, it stays last.
        bos_id: If this is the first token of a document, it stays first.

    Raises:
        ConfigError: a share is not within 0 .. 1.

    Example:
        >>> fim = FillInMiddle(100, 101, 102, rate=1.0, spm_rate=0.0, eos_id=0)
        >>> tokens, lengths = fim(np.array([5, 6, 7, 8, 0]), np.array([5]), np.array([6]))
        >>> tokens.tolist(), lengths.tolist()
        ([100, 5, 101, 8, 102, 6, 7, 0], [8])
    """

    prefix_id: int
    suffix_id: int
    middle_id: int
    seed: int = 0
    rate: float = 0.5
    spm_rate: float = 0.5
    eos_id: int | None = None
    bos_id: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("rate", "spm_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(
                    "must be a share", field=name, value=getattr(self, name), cure="E.g. 0.5."
                )

    def rearranges(
        self, lengths: Int64[np.ndarray, " d"], documents: Int64[np.ndarray, " d"]
    ) -> Bool[np.ndarray, " d"]:
        """Which documents are rearranged. Those with a single token besides a first ``bos_id``
        never are.
        """
        least = 1 if self.bos_id is None else 2
        return (self._uniform(documents, _CHOOSE) < self.rate) & (np.asarray(lengths) > least)

    def lengths(
        self, lengths: Int64[np.ndarray, " d"], documents: Int64[np.ndarray, " d"]
    ) -> Int64[np.ndarray, " d"]:
        """Tokens of each document afterwards, for a pack plan."""
        return np.asarray(lengths, np.int64) + 3 * self.rearranges(lengths, documents)

    def __call__(
        self,
        tokens: Integer[np.ndarray, " t"],
        lengths: Int64[np.ndarray, " d"],
        documents: Int64[np.ndarray, " d"],
    ) -> tuple[Integer[np.ndarray, " u"], Int64[np.ndarray, " d"]]:
        """Rearranges documents.

        Args:
            tokens: Documents end to end.
            lengths: Tokens of each.
            documents: Their numbers in the corpus.

        Returns:
            The documents, rearranged, and their new lengths.

        Raises:
            ConfigError: lengths do not add up to the tokens, or a sentinel does not fit their
                dtype.
        """
        lengths = np.asarray(lengths, np.int64)
        documents = np.asarray(documents, np.int64)
        if int(lengths.sum()) != tokens.size or lengths.shape != documents.shape:
            raise ConfigError(
                f"add up to {int(lengths.sum())}, not to the {tokens.size} tokens", field="lengths"
            )
        source = self._with_sentinels(tokens)
        begin = np.cumsum(lengths) - lengths
        stop = begin + lengths
        first = begin + _is(self.bos_id, tokens, begin, lengths > 0)
        end = stop - _is(self.eos_id, tokens, stop - 1, stop > first)
        borders = np.stack([begin, first, end, stop])
        start, size = self._runs(
            tokens.size, borders, self.rearranges(lengths, documents), documents
        )
        flat = size.ravel()
        positions = np.arange(int(flat.sum())) + np.repeat(
            start.ravel() - (np.cumsum(flat) - flat), flat
        )
        return source[positions], size.sum(axis=1)

    def _runs(
        self,
        sentinel: int,
        borders: Int64[np.ndarray, "4 d"],
        chosen: np.ndarray,
        documents: np.ndarray,
    ) -> tuple[Int64[np.ndarray, "d 8"], Int64[np.ndarray, "d 8"]]:
        """Each document as eight runs of the source: their starts and sizes. ``borders`` has its
        begin, the range that may be rearranged, and its end.
        """
        begin, first, end, stop = borders
        cuts = [
            (self._uniform(documents, part) * (end - first + 1)).astype(np.int64) + first
            for part in (_CUT, _OTHER_CUT)
        ]
        low = np.where(chosen, np.minimum(*cuts), end)
        high = np.where(chosen, np.maximum(*cuts), end)
        one = chosen.astype(np.int64)
        signs = [(np.full_like(first, sentinel + k), one) for k in range(3)]
        prefix = (first, low - first)
        middle = (low, high - low)
        suffix = (high, end - high)
        head = (begin, first - begin)
        tail = (end, stop - end)
        psm = [head, signs[0], prefix, signs[1], suffix, signs[2], middle, tail]
        spm = [head, signs[0], signs[1], suffix, signs[2], prefix, middle, tail]
        second = (self._uniform(documents, _MODE) < self.spm_rate)[:, None]
        starts, sizes = (
            np.where(second, *(np.stack([run[k] for run in runs], axis=1) for runs in (spm, psm)))
            for k in (0, 1)
        )
        return starts, sizes

    def _with_sentinels(self, tokens: np.ndarray) -> np.ndarray:
        ids = [self.prefix_id, self.suffix_id, self.middle_id]
        limits: Any = np.iinfo(tokens.dtype)
        if min(ids) < limits.min or max(ids) > limits.max:
            raise ConfigError(
                f"do not fit the tokens' dtype {tokens.dtype}",
                field="sentinels",
                value=ids,
                cure="Widen the tokens.",
            )
        return np.append(tokens, np.asarray(ids, tokens.dtype))

    def _uniform(self, documents: np.ndarray, part: int) -> np.ndarray:
        """A number in [0, 1) for each document and use."""
        keys = fold(derive_keys(self.seed, "fim", last=documents), np.array([part], np.uint64))
        return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _is(
    token: int | None, tokens: np.ndarray, places: np.ndarray, there: np.ndarray
) -> Int64[np.ndarray, " d"]:
    """1 where ``token`` is what stands at a place that is ``there``, else 0."""
    if token is None or tokens.size == 0:
        return np.zeros(places.size, np.int64)
    return (there & (tokens[np.where(there, places, 0)] == token)).astype(np.int64)


def fill_in_middle(
    config: SourceConfig, fim: FimConfig, kind: Kind, tokenizer: Tokenizer
) -> FillInMiddle:
    """The function that rearranges documents, if the source has one.

    Raises:
        ConfigError: a token is unknown to the tokenizer, or two are equal; documents of the kind
            have parts that belong together.
    """
    has_masks = kind == "tokens" and any(
        name in TOKEN_MASKS and not read.is_optional for name, read in config.reads(kind).items()
    )
    if kind not in ("text", "tokens") or has_masks:
        raise ConfigError(
            f"is for whole texts; of {kind} documents some tokens belong together, or are not"
            " trained on",
            field="fim",
            cure="Build these documents into a cache of their own, without it.",
        )
    signs: list[int] = []
    for name in ("prefix", "suffix", "middle"):
        _, token_id = resolve_special(
            f"fim.{name}", getattr(fim, name), list(tokenizer.special), (), tokenizer.id_of
        )
        if token_id is None or token_id in signs:
            raise ConfigError(
                "is no token of its own",
                field=f"fim.{name}",
                value=getattr(fim, name),
                cure="Name three tokens.",
            )
        signs.append(token_id)
    prefix, suffix, middle = signs
    return FillInMiddle(
        prefix,
        suffix,
        middle,
        fim.seed,
        fim.rate,
        fim.spm_rate,
        eos_id=tokenizer.eos_id,
        bos_id=tokenizer.bos_id,
    )


def content_keys(
    tokens: Integer[np.ndarray, " t"], lengths: Int64[np.ndarray, " d"]
) -> Int64[np.ndarray, " d"]:
    """A number for each document that depends only on its tokens, because documents have no numbers
    during a build.
    """
    raw = memoryview(tokens.tobytes())
    borders = np.concatenate([[0], np.cumsum(lengths)]) * tokens.itemsize
    digests = [
        blake2b(raw[begin:stop], digest_size=8).digest()
        for begin, stop in pairwise(borders.tolist())
    ]
    return np.frombuffer(b"".join(digests), "<i8")
