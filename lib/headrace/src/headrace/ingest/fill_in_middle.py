"""Documents rearranged for filling in the middle while a cache is built: what a source says, as what does it.

Parts are built apart and in any order, so no document has a number yet: what becomes of it follows from its tokens.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise

import numpy as np
from jaxtyping import Int64, Integer

from headrace.errors import ConfigError
from headrace.index.fim import FillInMiddle
from headrace.ingest.source import FimConfig, Kind, SourceConfig
from headrace.ingest.special_tokens import resolve_special
from headrace.ingest.tokenize import Tokenizer


def fill_in_middle(config: SourceConfig, fim: FimConfig, kind: Kind, tokenizer: Tokenizer) -> FillInMiddle:
    """What rearranges documents, if the source says so.

    Raises:
        ConfigError: a token is none of the tokenizer's, or two are the same; documents of the kind have parts that
            belong together.
    """
    if kind not in ("text", "tokens") or (kind == "tokens" and config.requires(kind, "loss_mask")):
        raise ConfigError(
            f"is for whole texts; of {kind} documents some tokens belong together, or are not trained on",
            field="fim",
            cure="Build these documents into a cache of their own, without it.",
        )
    signs: list[int] = []
    for name in ("prefix", "suffix", "middle"):
        _, found = resolve_special(f"fim.{name}", getattr(fim, name), list(tokenizer.special), (), tokenizer.id_of)
        if found is None or found in signs:
            raise ConfigError(
                "is no token of its own", field=f"fim.{name}", value=getattr(fim, name), cure="Name three tokens."
            )
        signs.append(found)
    prefix, suffix, middle = signs
    return FillInMiddle(
        prefix, suffix, middle, fim.seed, fim.rate, fim.spm_rate, eos_id=tokenizer.eos_id, bos_id=tokenizer.bos_id
    )


def content_keys(tokens: Integer[np.ndarray, " t"], lengths: Int64[np.ndarray, " d"]) -> Int64[np.ndarray, " d"]:
    """A number for each document that follows from its tokens alone: parts are built apart, so none has a number."""
    raw = memoryview(tokens.tobytes())
    borders = np.concatenate([[0], np.cumsum(lengths)]) * tokens.itemsize
    digests = [blake2b(raw[begin:stop], digest_size=8).digest() for begin, stop in pairwise(borders.tolist())]
    return np.frombuffer(b"".join(digests), "<i8")
