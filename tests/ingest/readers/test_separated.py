"""Tables of separated values: any texts come back, a bad row is named by its line and none after it
is lost, and memory is that of one row.
"""

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.ingest import LeafConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.base_tokenizer import ByteTokenizer
from headrace.ingest.documents import DocumentReader, make_kind, open_reader
from headrace.ingest.origins import find_origins
from headrace.ingest.readers import streams
from headrace.ingest.records import BadRecordError, Columns
from headrace.ingest.survey import survey
from headrace.store import open_cache

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TEXT = st.text(st.characters(exclude_categories=("Cs",))) | st.text('",\t\n\r a')
ROWS = st.lists(st.tuples(st.none() | TEXT, st.none() | TEXT), max_size=8)


def as_table(rows: list[tuple[str | None, ...]], separator: str, newline: str = "\n") -> str:
    """Texts in quotes, and nothing for a null."""

    def cell(value: str | None) -> str:
        return "" if value is None else '"' + value.replace('"', '""') + '"'

    return "".join(separator.join(map(cell, row)) + newline for row in rows)


def rows_of(path: Path, *names: str, **settings: Any) -> list[tuple[int, Any]]:
    (file,) = SourceConfig([str(path)]).files()
    return list(open_reader(file, Columns(names, **settings)))


def problems(path: Path, **settings: Any) -> list[tuple[int, str]]:
    found = rows_of(path, "text", **settings)
    return [
        (row, one.problem if isinstance(one, BadRecordError) else one["text"]) for row, one in found
    ]


def documents_of(path: Path, **settings: Any) -> DocumentReader:
    config = SourceConfig([str(path)], **settings)
    return DocumentReader(config.files()[0], make_kind(config, "text", ByteTokenizer(), None))


@given(
    rows=ROWS,
    newline=st.sampled_from(["\n", "\r\n", "\n\n"]),
    packing=st.sampled_from([*PACKED]),
    ending=st.sampled_from(["csv", "tsv"]),
    block_bytes=st.integers(3, 40),
)
def test_any_texts_and_nulls_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str | None, str | None]],
    newline: str,
    packing: str,
    ending: str,
    block_bytes: int,
):
    separator = {"csv": ",", "tsv": "\t"}[ending]
    data = "\ufeff" + as_table([("id", "text"), *rows], separator, newline)
    path = tmp_path_factory.mktemp("d") / f"a.{ending}{packing}"
    path.write_bytes(PACKED[packing](data.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK_BYTES", block_bytes)
        found = rows_of(path, "text", "id")
    assert [(record["id"], record["text"]) for _, record in found] == rows
    lines = data.split("\n")
    for (line, _), row in zip(found, rows, strict=True):
        first = as_table([row], separator, newline).split("\n")[0]
        assert lines[line - 1] == first


@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8))
def test_what_other_programs_write_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
):
    folder = tmp_path_factory.mktemp("d")
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text"), *rows])
    columns = [[row[k] for row in rows] for k in (0, 1)]
    table = pyarrow.table(dict(zip(("id", "text"), columns, strict=True)))
    pyarrow.csv.write_csv(table, folder / "b.csv")
    plain, arrow = (
        [record["text"] for _, record in rows_of(folder / name, "text")]
        for name in ("a.csv", "b.csv")
    )
    assert arrow == columns[1]
    assert plain == [text or None for text in columns[1]]  # the csv module writes no quotes


def test_only_columns_that_are_asked_for_are_read(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("other,meta.id,text\nx,7,a\n")
    (file,) = SourceConfig([str(path)]).files()
    reader = open_reader(file, Columns(["text", "meta.id"]))
    assert list(reader) == [(2, {"meta.id": "7", "text": "a"})]
    assert reader.unread == ["other"]
    with pytest.raises(SourceError, match=r"has no column 'txet' \(it has .*Did you mean 'text'"):
        rows_of(path, "txet")
    assert rows_of(path) == [(2, {})]


def test_fields_of_numbers_are_json(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('text,n\n7,7\n,0.5\n"","[1, 2]"\n1,True\n1,007\n1,\n')
    typed = frozenset(["n"])
    found = [(r["text"], r["n"]) for _, r in rows_of(path, "text", "n", typed=typed)]
    assert found == [
        ("7", 7),
        (None, 0.5),
        ("", [1, 2]),
        ("1", True),
        ("1", "007"),
        ("1", None),
    ]


GOOD = b"id,text\n1,one\n"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"2\n", "has 1 fields, and the first line names 2 columns"),
        (b'2,"a\nb",c\n', "has 3 fields, and the first line names 2 columns"),
        (b'2,"a"b\n', "is no row of a table (',' expected after '\"')"),
        (b"2,a\rb\n", "is no row of a table (new-line character seen in unquoted field"),
        (b"2,caf\xe9\n", "is not UTF-8 (byte 0xe9 at byte 5 of the line)"),
        (b'2,"a\n\xe9"\n', "is not UTF-8 (byte 0xe9 at byte 0 of the line)"),
        (b"2," + b"x" * 99 + b"\n", "has more than 20 bytes"),
        (b'2,"' + "x é,".encode() * 99 + b'\n"","\n', "has more than 20 bytes"),
        (b'2,5"' + b"x" * 99 + b"\n", "has more than 20 bytes"),
    ],
)
def test_a_bad_row_is_named_and_those_around_it_are_read(tmp_path: Path, bad: bytes, said: str):
    path = tmp_path / "a.csv"
    path.write_bytes(GOOD + bad + b'\n3,"three\n3"\n4,four')
    line = 5 + bad.count(b"\n")
    (first, second, third, fourth) = problems(path, max_record_bytes=20)
    assert second[0] == 3
    assert second[1].startswith(said)
    assert [first, third, fourth] == [(2, "one"), (line - 1, "three\n3"), (line + 1, "four")]
    limit = {"max_record_bytes": 20}
    reader = documents_of(path, on_bad_line="skip", **limit)
    assert [d.text for d in reader] == ["one", "three\n3", "four"]
    assert reader.skipped_lines == 1
    with pytest.raises(SourceError) as caught:
        list(documents_of(path, **limit))
    assert caught.value.field == f"{path}, line 3"


def test_a_quote_that_is_not_closed_is_named_where_it_opens(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(GOOD + b'2,"two\n3,three\n')
    assert problems(path) == [(2, "one"), (3, "has a quote that is not closed")]


def test_a_row_has_as_many_bytes_as_it_may(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"n,text\n" + b'2,"three\nfour"\n' * 2)
    assert len(b'2,"three\nfour"') == 14
    for most, said in ((14, "three\nfour"), (13, "has more than 13 bytes")):
        assert [text for _, text in problems(path, max_record_bytes=most)] == [said] * 2


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("id,text\n1,é\n".encode("utf-16"), r"not UTF-8.*iconv -f utf-16"),
        (b'id,"text\n1,a\n', "is not UTF-8|has a quote that is not closed"),
        (b"text,text\na,b\n", "has 2 columns 'text'"),
        (b"1," + b"a long text " * 30 + b"\n2,b\n", "does not begin with the names of its columns"),
        (b"text,\xe9\na,b\n", "has no line of column names: its first is not UTF-8"),
    ],
)
def test_a_file_without_names_of_columns_is_refused(tmp_path: Path, data: bytes, said: str):
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    for on_bad_line in ("error", "skip"):
        with pytest.raises(SourceError, match=said):
            list(documents_of(path, on_bad_line=on_bad_line))


def test_files_without_rows_hold_no_documents(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("\n\nid,text\n\n")
    assert rows_of(path, "text") == []
    (tmp_path / "b.csv").touch()
    assert list(open_reader(SourceConfig([str(tmp_path)]).files()[1], Columns(["text"]))) == []


@given(
    rows=st.lists(st.tuples(st.none() | TEXT, TEXT), max_size=6),
    block_bytes=st.integers(3, 40),
    limit=st.integers(3, 30),
)
def test_of_rows_that_are_too_long_all_others_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str | None, str]],
    block_bytes: int,
    limit: int,
):
    path = tmp_path_factory.mktemp("d") / "a.csv"
    path.write_bytes(as_table([("i", "n"), *rows], ",").replace('"i","n"', "i,n", 1).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK_BYTES", block_bytes)
        found = rows_of(path, "i", "n", max_record_bytes=limit)
    sizes = [len(as_table([row], ",").encode()) - 1 for row in rows]
    assert [
        "long" if isinstance(record, BadRecordError) else (record["i"], record["n"])
        for _, record in found
    ] == ["long" if size > limit else row for size, row in zip(sizes, rows, strict=True)]
    lines = [line for line, _ in found]
    ends = [as_table([row], ",").count("\n") for row in rows]
    assert lines == [2 + sum(ends[:k]) for k in range(len(rows))]


@pytest.mark.parametrize("line", [b'line, of ""text""\n', b"text", b'""", '])
def test_a_row_without_end_is_not_held(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams, "BLOCK_BYTES", 1 << 14)
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.write(b'text\n"')
        file.write(line * ((1 << 21) // len(line)))
    tracemalloc.start()
    try:
        (bad,) = problems(path, max_record_bytes=1 << 16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bad == (2, "has more than 65,536 bytes")
    assert peak < 1 << 20


def test_a_build_is_that_of_the_same_records_as_jsonl(tmp_path: Path):
    records = [{"text": f'text, "{i}"\n{"é" * i}', "id": f"0{i}", "score": i / 4} for i in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    with (tmp_path / "a.tsv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["score", "text", "id"], delimiter="\t")
        table.writeheader()
        table.writerows(records)
    leaves = {"id": LeafConfig("id"), "score": LeafConfig("score", "float32")}
    caches = []
    for name in ("a.jsonl", "a.tsv"):
        config = SourceConfig([str(tmp_path / name)], leaves=leaves)
        build_cache(config, TokenizerConfig(), str(tmp_path / f"{name}.c"), progress=False)
        caches.append(open_cache(str(tmp_path / f"{name}.c")))
    by_json, by_table = caches
    for i in range(len(records)):
        assert np.array_equal(by_table.document(i), by_json.document(i))
        for name in leaves:
            wanted = by_json.leaf(name).document(i)
            assert np.array_equal(by_table.leaf(name).document(i), wanted)
    assert find_origins(by_table, [4])[4].origin.endswith("a.tsv, line 10")


def test_a_number_that_is_none_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text("text,score\na,1\nb,much\n")
    leaves = {"score": LeafConfig("score", "float32")}
    with pytest.raises(SourceError, match="in field 'score'") as caught:
        list(documents_of(tmp_path / "a.csv", leaves=leaves))
    assert caught.value.field == f"{tmp_path / 'a.csv'}, line 3"


def test_rejected_answers_are_seen(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("prompt,completion,label\na,b,False\n")
    fields = {"question": "prompt", "answer": "completion"}
    config = SourceConfig([str(path)], kind="chat", fields=fields)
    ((_, record),) = open_reader(config.files()[0], config.columns("chat"))
    assert not isinstance(record, BadRecordError)
    assert record["label"] is False


def test_a_column_for_each_id_that_nothing_is_known_of_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text('input_ids,secret\n"[1, 2]","[0, 1]"\n')
    config = SourceConfig([str(tmp_path / "a.csv")], kind="tokens")
    with pytest.raises(SourceError, match=r"has a number for each id.*secret"):
        build_cache(config, TokenizerConfig("ids:9"), str(tmp_path / "c"), progress=False)


def test_init_finds_tables_and_their_text(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.csv").write_text("id,content\n1,a text\n")
    (tmp_path / "texts" / "b.tsv.gz").write_bytes(gzip.compress(b"id\tcontent\n1\tb text\n"))
    (found,) = survey(str(tmp_path / "texts"))
    assert (found.files, found.endings) == (2, [".csv", ".tsv"])
    config = found.config()
    assert config.text_field == "content"
    report = build_cache(config, TokenizerConfig(), str(tmp_path / "c"), progress=False)
    assert (report.documents, report.unused_fields) == (2, {"id": 2})


def test_the_limit_of_the_csv_module_is_none_of_ours(tmp_path: Path):
    before = csv.field_size_limit(10)
    try:
        text = "x" * 200_000
        (tmp_path / "a.csv").write_text(f"text\n{text}\n")
        assert problems(tmp_path / "a.csv") == [(2, text)]
        assert len(next(csv.reader(io.StringIO(text)))[0]) == len(text)
    finally:
        csv.field_size_limit(before)
