"""Shares of documents have as many alike pairs of rows as the documents themselves, and forecasts
that use them are those of the rows.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.analysis.long_documents import shares_of_documents
from headrace.analysis.simulate.replay import variance_ratio


def rows_of_documents(lengths: np.ndarray, seq_len: int) -> np.ndarray:
    """Of each row and document, the part of the row that is of the document."""
    document = np.repeat(np.arange(lengths.size), lengths)
    rows = document.size // seq_len
    parts = np.zeros((rows, lengths.size))
    np.add.at(parts, (np.arange(rows * seq_len) // seq_len, document[: rows * seq_len]), 1)
    return parts / seq_len


@pytest.mark.parametrize("rows", [0.25, 1.0, 1.7, 4.0, 16.3])
def test_pairs_of_rows_that_are_alike_are_those_of_the_documents(rows):
    seq_len = 32
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, int(2 * rows * seq_len), 4000)
    parts = rows_of_documents(lengths, seq_len)
    alone = np.square(parts).sum()
    pairs = np.square(parts.sum(axis=0)).sum() - alone
    shares = shares_of_documents(lengths, seq_len)
    assert sum(share * (unit - 1) for unit, share in shares.items()) == pytest.approx(
        pairs / alone, rel=0.05
    )


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(2, 100))
def test_shares_are_shares(lengths, seq_len):
    for packed in (False, True):
        shares = shares_of_documents(np.array(lengths), seq_len, packed=packed)
        assert all(share > 0 for share in shares.values())
        assert sum(shares.values()) <= 1 + 1e-9
    if max(lengths) <= seq_len:
        assert shares == {}  # of packs: no document is in two rows


def test_a_variance_ratio_is_1_where_no_rows_are_alike_and_follows_the_alike_pairs():
    rng = np.random.default_rng(0)
    table = np.stack([rng.permutation(16) // 4 + 4 * k for k in range(8)])  # 4 blocks a step
    sources = np.zeros_like(table)
    plain = variance_ratio(table, sources, 1)
    assert plain > 3
    assert variance_ratio(table, sources, 1, np.array([1.0])) == pytest.approx(plain)
    assert variance_ratio(table, sources, 1, np.array([0.0])) == pytest.approx(1)
    half = variance_ratio(table, sources, 1, np.array([0.5]))
    assert half == pytest.approx((1 + plain) / 2)
