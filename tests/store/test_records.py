"""Sealed records: what is written is read, and anything else is refused with its file and a cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheCorruptError
from headrace.store.records import RecordKind, read_record, write_record

NOTES = RecordKind("notes", 2, dict[str, list[int]])
CONTENTS = st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 2**60), max_size=4))


@given(CONTENTS, st.text(max_size=5))
def test_a_record_is_read_as_it_was_written(content: dict[str, list[int]], of: str):
    raw = NOTES.encode(content, of)
    assert NOTES.decode(raw, "notes.json", of) == content
    assert NOTES.encode(content, of) == raw
    assert raw.count(b"\n") == 2


def test_every_damaged_byte_and_every_cut_is_refused():
    raw = NOTES.encode({"a": [1, 2], "b": []}, "sha256:12")
    for at in range(len(raw)):
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(CacheCorruptError) as error:
            NOTES.decode(damaged, "notes.json", "sha256:12", "Write it again.")
        assert (error.value.field, error.value.value) == ("notes", "notes.json")
        assert error.value.cure == "Write it again."
    for cut in range(len(raw)):
        with pytest.raises(CacheCorruptError):
            NOTES.decode(raw[:cut], "notes.json")


@pytest.mark.parametrize(
    ("kind", "of", "expected"),
    [
        (RecordKind("notes", 3, dict[str, list[int]]), "", "its format is 2, and this one reads 3"),
        (RecordKind("plan", 2, dict[str, list[int]]), "", "is a file of another kind: 'notes'"),
        (RecordKind("notes", 2, list[int]), "", "cannot be used"),
        (NOTES, "sha256:12", "is of another cache: it names , and this one is sha256:12"),
    ],
)
def test_what_is_something_else_is_refused(
    tmp_path: Path, kind: RecordKind[object], of: str, expected: str
):
    url = str(tmp_path / "notes.json")
    write_record(url, NOTES, {"a": [1]})
    with pytest.raises(CacheCorruptError, match=expected):
        read_record(url, kind, of)
    assert read_record(str(tmp_path / "none.json"), kind, of) is None
