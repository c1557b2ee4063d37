"""Fill-in-the-middle: a document as prefix, suffix and middle, so that a model learns to fill gaps.

Whether a document is rearranged, and where it is cut, depends only on (seed, document number): the
same in every order, on any number of hosts, for one document or for a thousand. During a build,
documents have no numbers, because parts are built separately and in any order, so a hash of the
tokens is used instead. Documents stay separate: a rearranged one is three sentinels longer, none is
cut or padded, and the returned lengths are the segments of the row.

Price: 2 us per document, besides copying it.

Reference: Bavarian et al., "Efficient training of language models to fill in the middle", 2022: PSM
is ``[prefix] P [suffix] S [middle] M``, SPM (its second variant) ``[prefix] [suffix] S [middle] P
M``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Integer

from headrace.errors import ConfigError
from headrace.ingest.choices import Kind
from headrace.ingest.source import TOKEN_MASKS, FimConfig, SourceConfig
from headrace.ingest.tokenize import Tokenizer, resolve_special
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
        sentinels = np.split(self._sentinels(tokens.dtype), 3)
        chosen = self.rearranges(lengths, documents)
        is_spm = self._uniform(documents, _MODE) < self.spm_rate
        cuts = np.stack([self._uniform(documents, part) for part in (_CUT, _OTHER_CUT)], axis=1)
        pieces = [tokens[:0]]
        stop = 0
        for size, is_chosen, suffix_first, shares in zip(
            lengths.tolist(), chosen.tolist(), is_spm.tolist(), cuts.tolist(), strict=True
        ):
            document = tokens[stop : stop + size]
            stop += size
            pieces += (
                self._rearranged(document, shares, sentinels, suffix_first)
                if is_chosen
                else [document]
            )
        return np.concatenate(pieces), lengths + 3 * chosen

    def _rearranged(
        self,
        document: np.ndarray,
        shares: Sequence[float],
        sentinels: Sequence[np.ndarray],
        is_spm: bool,
    ) -> list[np.ndarray]:
        """The pieces of a document in PSM or SPM order, cut at two shares of what lies between its
        special tokens.
        """
        first = int(document[0] == self.bos_id)
        end = document.size - int(document[-1] == self.eos_id)
        low, high = sorted(first + int(share * (end - first + 1)) for share in shares)
        prefix = document[first:low]
        middle = document[low:high]
        suffix = document[high:end]
        before_prefix, before_suffix, before_middle = sentinels
        if is_spm:
            inner = [before_prefix, before_suffix, suffix, before_middle, prefix, middle]
        else:
            inner = [before_prefix, prefix, before_suffix, suffix, before_middle, middle]
        return [document[:first], *inner, document[end:]]

    def _sentinels(self, dtype: np.dtype[Any]) -> np.ndarray:
        ids = [self.prefix_id, self.suffix_id, self.middle_id]
        limits: Any = np.iinfo(dtype)
        if min(ids) < limits.min or max(ids) > limits.max:
            raise ConfigError(
                f"do not fit the tokens' dtype {dtype}",
                field="sentinels",
                value=ids,
                cure="Widen the tokens.",
            )
        return np.array(ids, dtype)

    def _uniform(self, documents: np.ndarray, part: int) -> np.ndarray:
        """A number in [0, 1) for each document and use."""
        keys = fold(derive_keys(self.seed, "fim", last=documents), np.array([part], np.uint64))
        return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


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
