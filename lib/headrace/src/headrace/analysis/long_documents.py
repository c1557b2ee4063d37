"""What rows of a shuffled store still have in common: those that are cut from one document.

Documents of such a store are in random order, so the rows of a block are alike only where one
document goes through several. A document of ``x`` rows, which begins anywhere in a row, has pieces
of ``f`` rows each, and two rows with pieces of it have a likeness of the product of the two. Over
all documents, pairs of rows weigh ``sum x**2 - sum f**2``, and rows alone ``sum f**2``, which is
``x - 1/3`` on average (``x**2 - x**3 / 3`` for a document below a row). The quotient is what a
variance ratio has above 1 in a window that holds all rows of each document.

Forecasts take *shares*, as for other stores (:mod:`headrace.analysis.icc`): a share of the variance
for each number of neighbouring rows. They are chosen such that each length of documents has its
pairs.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from headrace.analysis.probe import saved_shares
from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import mixture_of
from headrace.data.rows import BlockSpace

_LOOKED = 1 << 16
"""Documents whose lengths are read. They are in random order, so the first ones are a sample."""


def shares_of_documents(
    lengths: Int64[np.ndarray, " n"], seq_len: int, *, packed: bool = False
) -> dict[int, float]:
    """Share of the variance of a row by the number of neighbouring rows that are alike, of a value
    that is constant in a document.

    Args:
        lengths: Tokens of documents.
        seq_len: Tokens of a row.
        packed: Whether rows are packs, in which a document begins with a row of its own if it is
            longer than one.

    Example:
        >>> shares_of_documents(np.array([100, 200]), seq_len=4096, packed=True)
        {}
        >>> long = shares_of_documents(np.array([8192] * 9), seq_len=4096)
        >>> {rows: round(share, 2) for rows, share in long.items()}  # in 3 rows each, as a rule
        {4: 0.47}
    """
    x = lengths[lengths > 0] / seq_len
    alone = np.where(x < 1, x**2 - x**3 / 3, x - 1 / 3)
    if packed:
        alone = np.where(x < 1, x**2, np.floor(x) + (x % 1) ** 2)
    pairs = x**2 - alone
    rows = np.exp2(np.ceil(np.log2(np.ceil(x) + 1))).astype(np.int64)
    total = np.maximum(alone.sum(), 1e-12)
    shares = {
        unit: float(pairs[rows == unit].sum() / total / (unit - 1))
        for unit in np.unique(rows).tolist()
    }
    return {unit: share for unit, share in shares.items() if share > 0}


def document_shares(dataset: PlannedDataset) -> dict[int, float]:
    """:func:`shares_of_documents` of a component in a shuffled store; empty if its documents are
    not there yet.
    """
    cache = dataset.caches()[0]
    if cache.is_virtual:
        return {}
    lengths = cache.lengths(0, min(cache.num_documents, _LOOKED))
    return shares_of_documents(lengths, dataset.seq_len, packed=dataset.pack_plan is not None)


def known_shares(dataset: PlannedDataset, icc: float | None) -> dict[int, float]:
    """Shares of a component's variance, as far as they are known: an ICC that is given, or else
    what was measured and saved beside its caches.

    An ICC is that of the rows of a block; in a shuffled store, it is that of the rows of a
    document, as those of a block have nothing else in common.
    """
    if icc is None:
        return saved_shares(dataset)
    if not dataset.in_shuffled_store:
        return {dataset.default_io_block_size(): icc}
    return {rows: icc * share for rows, share in document_shares(dataset).items()}


def alike_in_blocks(dataset: PlannedDataset, space: BlockSpace) -> Float64[np.ndarray, " s"] | None:
    """The share of the pairs of rows in a block that are alike: 1 where stored neighbours are, less
    in shuffled stores; None: 1 everywhere. Sources of ``space`` are numbered from 1.
    """
    mixture = mixture_of(dataset.at_step(0)[0])
    components = [dataset] if mixture is None else mixture.components
    if not any(component.in_shuffled_store for component in components):
        return None
    stored, first = np.unique(space.first_array, return_index=True)
    alike = np.ones(1 + stored.size)
    for number, source in enumerate(first.tolist(), start=1):
        component = components[source]
        if component.in_shuffled_store:
            block = component.default_io_block_size()
            shares = document_shares(component)
            pairs = sum(share * (min(rows, block) - 1) for rows, share in shares.items())
            alike[number] = min(pairs / max(block - 1, 1), 1.0)
    return alike
