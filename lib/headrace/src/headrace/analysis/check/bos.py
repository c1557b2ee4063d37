"""Whether documents lack the token that their tokenizer puts before a text."""

from __future__ import annotations

import numpy as np

from headrace.errors import HeadraceError
from headrace.ingest.tokenize import FileTokenizer, cache_tokenizer
from headrace.store.cache import TokenCache

_LOOKED = 16
"""Documents whose first token is read."""


def missing_bos(cache: TokenCache) -> str | None:
    """The token that the tokenizer of a cache puts before a text when it adds special tokens, if
    none of the first documents begins with it; None: there is no such token, or documents have it.

    Example:
        >>> import headrace.testing
        >>> missing_bos(headrace.testing.tiny_cache()) is None
        True
    """
    if cache.is_virtual or not cache.num_documents:
        return None
    try:
        tokenizer = cache_tokenizer(cache)
    except HeadraceError:  # its copy is damaged, which does not concern a run
        return None
    if not isinstance(tokenizer, FileTokenizer) or tokenizer.template_bos is None:
        return None
    token, number = tokenizer.template_bos
    lengths = cache.lengths(0, min(cache.num_documents, _LOOKED))
    filled = np.flatnonzero(lengths).tolist()
    begins = [int(cache.document(document)[0]) == number for document in filled]
    return None if any(begins) or not begins else token
