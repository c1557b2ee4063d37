"""The table of parts, over records and in columns: the same columns, records and fingerprint."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheCorruptError
from headrace.store.ledger import Ledger, read_ledger, table_of
from headrace.store.ledger_table import ChunkNames, ColumnTable, LeafRecord, PartRecord, PartTable
from headrace.testing import tiny_cache

HASHES = st.binary(min_size=32, max_size=32).map(lambda raw: f"sha256:{raw.hex()}")
DIGESTS = st.one_of(HASHES, st.text("abc:019", max_size=9))
COUNTS = st.one_of(st.integers(0, 300), st.integers(0, 2**40))
LEAVES = ["mask", "id"]


@st.composite
def tables(draw):
    names = draw(
        st.lists(
            st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True),
            unique=True,
            max_size=6,
        )
    )
    return [
        PartRecord(
            name,
            draw(COUNTS),
            draw(COUNTS),
            draw(DIGESTS),
            leaves={leaf: LeafRecord(draw(COUNTS), draw(DIGESTS)) for leaf in LEAVES},
        )
        for name in names
    ]


def as_columns(records):
    leaves = [{"name": name, "dtype": "uint8", "kind": "ragged"} for name in LEAVES]
    ledger = Ledger(True, {}, {}, parts=records, leaves=leaves)
    table = table_of(ledger, "sha256:0", ChunkNames())
    return ColumnTable("/c/ledger.bin", table), table


@given(tables())
def test_columns_say_what_records_say(records):
    """From the bytes of the table alone: there is no file beside them."""
    columns, raw = as_columns(records)
    plain = PartTable(records)
    assert len(columns) == len(plain) == len(records)
    assert columns.documents.tolist() == plain.documents.tolist() == [p.documents for p in records]
    assert columns.tokens.tolist() == plain.tokens.tolist()
    for leaf in LEAVES:
        assert columns.leaf_elements(leaf).tolist() == plain.leaf_elements(leaf).tolist()
    assert columns.fingerprint == plain.fingerprint
    assert raw == as_columns(records)[1]


def test_digests_and_records_are_read_when_they_are_asked_for(tmp_path):
    records = [
        PartRecord(
            f"{k}",
            k,
            10 * k,
            f"sha256:{k:064x}",
            leaves={n: LeafRecord(k, f"sha256:{k:064x}") for n in LEAVES},
        )
        for k in range(5)
    ]
    columns, raw = as_columns(records)
    Path(tmp_path, "ledger.bin").write_bytes(raw)
    columns = ColumnTable(f"{tmp_path}/ledger.bin", raw)
    assert list(columns) == records
    assert columns[-1] == records[-1]
    assert columns[1:4:2] == records[1:4:2]
    assert (columns.name(3), columns.digest(3), columns.digest(3, "id")) == (
        "3",
        records[3].digest,
        records[3].digest,
    )
    lines = PartTable(records).digest_lines()
    assert columns.digest_lines() == lines
    assert PartTable(records).fingerprint == f"sha256:{hashlib.sha256(lines).hexdigest()}"


def test_the_fingerprint_is_that_of_the_first_releases():
    parts = [
        PartRecord("a", 1, 2, "sha256:x"),
        PartRecord("b", 3, 4, "y", leaves={"m": LeafRecord(1, "z")}),
    ]
    lines = b"sha256:x\ny m=z"
    assert PartTable(parts).fingerprint == f"sha256:{hashlib.sha256(lines).hexdigest()}"
    cache = tiny_cache(parts=3)
    assert cache.fingerprint == PartTable.of(read_ledger(cache.path).parts).fingerprint


def test_a_part_without_a_leaf_is_named():
    with pytest.raises(CacheCorruptError, match="has no record of leaf mask"):
        PartTable([PartRecord("a", 1, 2, "")]).leaf_elements("mask")
    assert np.array_equal(PartTable([]).tokens, np.zeros(0, np.int64))
