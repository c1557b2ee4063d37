"""Documents out of bytes: any text, line ends, packing and cut into blocks; and each way that a
line can be bad.
"""

import gzip
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, SourceError
from headrace.ingest import LeafConfig, SourceConfig
from headrace.ingest.documents import DocumentKind, DocumentReader, make_kind, open_reader
from headrace.ingest.readers.streams import (
    PACKED_BLOCK_BYTES,
    JsonlReader,
    lines_between,
    split_lines,
    unpack,
    without_bom,
)
from headrace.ingest.records import Columns, Slice, SourceFile, lookup
from headrace.ingest.tokenize import ByteTokenizer

TEXTS = st.lists(st.text(), max_size=8)


def maker(config: SourceConfig) -> DocumentKind:
    return make_kind(config, "text", ByteTokenizer(), None)


def reader(path: Path, **settings: object) -> DocumentReader:
    config = SourceConfig([str(path)], **settings)
    return DocumentReader(config.files()[0], maker(config))


def texts(path: Path, **settings: object) -> list[str]:
    return [d.text for d in reader(path, **settings)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b""))),
    places=st.lists(st.integers(0, 200)),
)
def test_lines_do_not_depend_on_blocks(lines: list[bytes], places: list[int]):
    data = b"\n".join(lines)
    want = data.split(b"\n")
    if want[-1] == b"":
        want.pop()
    assert list(split_lines(cut(data, places))) == want


@given(text=st.text(), places=st.lists(st.integers(0, 200)))
def test_a_byte_order_mark_is_dropped_at_the_start_only(text: str, places: list[int]):
    data = text.encode()
    assert b"".join(without_bom(cut(b"\xef\xbb\xbf" + data, places))) == data
    plain = b"".join(without_bom(cut(data, places)))
    assert plain == data.removeprefix(b"\xef\xbb\xbf")


@given(
    values=TEXTS,
    ascii_only=st.booleans(),
    newline=st.sampled_from(["\n", "\r\n", "\n\n", "\n  \t\n"]),
    final=st.booleans(),
    packing=st.sampled_from(["", ".gz", ".zst"]),
)
def test_jsonl_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[str],
    ascii_only: bool,
    newline: str,
    final: bool,
    packing: str,
):
    lines = [json.dumps({"n": i, "text": t}, ensure_ascii=ascii_only) for i, t in enumerate(values)]
    data = ("\ufeff" + newline.join(lines) + (newline if final else "")).encode()
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packing]
    path = tmp_path_factory.mktemp("d") / f"a.jsonl{packing}"
    path.write_bytes(pack(data))
    read = list(reader(path))
    assert [d.text for d in read] == values
    assert [d.num_bytes for d in read] == [len(t.encode()) for t in values]


@given(text=st.text(min_size=1), packing=st.sampled_from(["", ".gz", ".zst"]))
def test_text_round_trip(tmp_path_factory: pytest.TempPathFactory, text: str, packing: str):
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packing]
    path = tmp_path_factory.mktemp("d") / f"a.txt{packing}"
    path.write_bytes(pack(text.encode()))
    assert texts(path) == [text.removeprefix("\ufeff")]


def test_escapes_and_surrogate_pairs(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\\ud83d\\ude00 \\u00e9 \\n \\\\n \\u0000"}\n')
    assert texts(tmp_path / "a.jsonl") == ["\U0001f600 é \n \\n \x00"]


def test_places_are_files_and_lines(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"text": "x"}\r\n\r\n  \n{"text": "y\xc3\xa9"}')
    assert [(d.text, d.num_bytes) for d in reader(path)] == [("x", 1), ("yé", 3)]
    rows = open_reader(SourceFile(str(path), "jsonl"), Columns(["text"]))
    assert [(rows.describe_row(row), lookup(record, "text")) for row, record in rows] == [
        (f"{path}, line 2", "x"),
        (f"{path}, line 5", "yé"),
    ]


def test_empty_texts_are_documents(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "x"}\n')
    assert texts(tmp_path / "a.jsonl") == ["", "x"]
    (tmp_path / "b.txt").touch()
    assert [d.text for d in DocumentReader(*only(tmp_path / "b.txt"))] == [""]


def only(path: Path) -> tuple[SourceFile, DocumentKind]:
    config = SourceConfig([str(path)], format="text")
    status = path.stat()
    return (
        SourceFile(str(path), "text", size=status.st_size, version=f"mtime:{status.st_mtime_ns}"),
        maker(config),
    )


def test_line_ends_within_a_text_stay(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\rc\n\n")
    assert texts(tmp_path / "a.txt") == ["a\r\nb\rc\n\n"]


def test_another_field(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": 1, "content": "x"}\n')
    assert texts(tmp_path / "a.jsonl", text_field="content") == ["x"]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_several_streams_in_one_file(tmp_path: Path, packing: str):
    pack = gzip.compress if packing == ".gz" else zstandard.ZstdCompressor().compress
    path = tmp_path / f"a.jsonl{packing}"
    path.write_bytes(
        pack(b'{"text": "a"}\n{"te')
        + pack(b'xt": "b"}\n')
        + pack(b"")
        + (b"\0" * 40 if packing == ".gz" else b"")
    )
    assert texts(path) == ["a", "b"]


def test_a_line_of_many_blocks_is_read_in_linear_time(tmp_path: Path):
    long = "x" * (8 << 20)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": long}) + "\n" + json.dumps({"text": "y"}))
    assert texts(tmp_path / "a.jsonl") == [long, "y"]


def test_consumed_bytes_add_up_to_the_file(tmp_path: Path):
    for name, pack in (("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(b'{"text": "abc"}\n' * 9))
        r = reader(tmp_path / name)
        assert len(list(r)) == 9
        assert r.stored_bytes == (tmp_path / name).stat().st_size


BAD_LINES = {
    "not json": (b'{"text": "x"', r"is not valid JSON \(Expecting ',' delimiter, column 13\)"),
    "not an object": (b'["x"]', "holds a JSON list, not an object"),
    "a number": (b"17", "holds a JSON number"),
    "null": (b"null", "holds a JSON null"),
    "missing field": (
        b'{"content": "x", "id": 3}',
        r"has no field 'text' \(it has 'content', 'id'\).*--text-field",
    ),
    "empty object": (b"{}", "the object is empty"),
    "wrong type": (b'{"text": null}', "holds a null in field 'text', not a string"),
    "number as text": (b'{"text": 3.5}', "holds a number in field 'text'"),
    "bad utf-8": (b'{"text": "abc\xff"}', "is not UTF-8 .byte 0xff at byte 13 of the line.*iconv"),
    "utf-16": ('{"text": "a"}'.encode("utf-16"), "byte 0xff at byte 0.*iconv -f utf-16 -t utf-8"),
    "cut utf-8": (b'{"text": "\xc3', "is not UTF-8"),
    "overlong utf-8": (b'{"text": "\xc0\x80"}', "byte 0xc0"),
    "encoded surrogate": (b'{"text": "\xed\xa0\x80"}', "byte 0xed"),
    "lone surrogate": (
        b'{"text": "ab\\ud800"}',
        r"half a character \(\\ud800, a lone surrogate, at character 3",
    ),
    "huge number": (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "JSON that cannot be read"),
    "endless nesting": (
        b'{"text": "x", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "JSON that cannot be read",
    ),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}\n')
    with pytest.raises(SourceError, match=message) as caught:
        texts(path)
    assert caught.value.field == f"{path}, line 3"
    assert "--on-bad-line skip" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_skipped_and_counted(tmp_path: Path, line: bytes, message: str):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n' + line)
    r = reader(path, on_bad_line="skip")
    assert [d.text for d in r] == ["a", "b"]
    assert r.skipped_lines == 2
    assert r.first_skipped is not None
    assert r.first_skipped[0] == 2
    assert r.first_skipped[1].startswith(f"{path}, line 2: ")


@pytest.mark.parametrize("encoding", ["latin1", "utf-16"])
@pytest.mark.parametrize("name", ["a.txt", "it's a.jsonl"])
def test_the_cure_of_another_encoding_works_as_printed(tmp_path: Path, name: str, encoding: str):
    text = "caf\xe9"
    path = tmp_path / name
    written = text if path.suffix == ".txt" else json.dumps({"text": text}, ensure_ascii=False)
    path.write_bytes(written.encode(encoding))
    with pytest.raises(SourceError) as caught:
        texts(path)
    command = re.search(r"\(e\.g\. (.*)\)\. Or leave", str(caught.value))
    assert command is not None
    subprocess.run(command[1], shell=True, check=True)
    assert texts(path) == [text]
    packed = path.with_name(f"{name}.gz")  # of which a converter reads nothing
    packed.write_bytes(gzip.compress(written.encode(encoding)))
    with pytest.raises(SourceError, match=r"utf-8 FILE > FILE\.new"):
        texts(packed)


def test_a_text_file_with_a_bad_byte(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nthr\xe9e\n")
    with pytest.raises(SourceError, match="byte 0xe9 at byte 11 of the file") as caught:
        texts(path)
    assert caught.value.field == f"{path}, line 3"
    r = reader(path, on_bad_line="skip")
    assert list(r) == []
    assert r.skipped_lines == 1


@pytest.mark.parametrize("packing", [".gz", ".zst"])
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_file_that_is_cut_off_is_an_error_whatever_the_policy(
    tmp_path: Path, packing: str, policy: str
):
    data = b"".join(json.dumps({"text": str(i) * 50}).encode() + b"\n" for i in range(2000))
    whole = gzip.compress(data) if packing == ".gz" else zstandard.ZstdCompressor().compress(data)
    path = tmp_path / f"a.jsonl{packing}"
    for keep in (1, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(
            SourceError, match=r"ends in the middle of its (gzip|zstd) stream|is not valid JSON"
        ) as caught:
            texts(path, on_bad_line=policy)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_damaged_file(tmp_path: Path, packing: str):
    path = tmp_path / f"a.jsonl{packing}"
    path.write_bytes(b'{"text": "not packed at all"}\n')
    with pytest.raises(SourceError, match="is damaged"):
        texts(path)
    good = bytearray(gzip.compress(b'{"text": "x"}\n' * 100))
    good[-6] ^= 1  # the checksum
    (tmp_path / "b.jsonl.gz").write_bytes(good)
    with pytest.raises(SourceError, match="is damaged"):
        texts(tmp_path / "b.jsonl.gz")


def test_zstd_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.jsonl.zst").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[zstd\]'"):
        texts(tmp_path / "a.jsonl.zst")


@pytest.mark.parametrize(
    ("compression", "pack", "most"),
    [("gzip", gzip.compress, 20 << 20), ("zstd", zstandard.compress, 64 << 20)],
)
def test_what_is_unpacked_at_once_is_bounded(
    compression: str, pack: Callable[[bytes], bytes], most: int
):
    bomb = pack(b"\0" * (96 << 20))
    blocks = [bomb[i : i + PACKED_BLOCK_BYTES] for i in range(0, len(bomb), PACKED_BLOCK_BYTES)]
    largest = total = 0
    for block in unpack(blocks, compression, "a"):
        largest = max(largest, len(block))
        total = total + len(block)
    assert total == 96 << 20
    assert largest <= most


@pytest.mark.parametrize("added", ['{"text": "c"', '{"text": "c"}\n'])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, added: str):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    r = reader(path)
    documents_read = iter(r)
    next(documents_read)
    with path.open("a") as f:
        f.write(added)
    with pytest.raises(SourceError, match="changed while"):
        list(documents_read)


def test_a_file_that_is_gone(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n')
    r = reader(path)
    path.unlink()
    with pytest.raises(SourceError, match="is gone"):
        list(r)


def blocks_from(data: bytes, start: int, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(max(0, start - 1), len(data), size))


@given(
    lines=st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=12),
    final=st.booleans(),
    cuts=st.lists(st.integers(0, 120), max_size=5),
    block_bytes=st.sampled_from([1, 3, 7, 1000]),
)
def test_a_line_belongs_to_the_slice_in_which_it_begins(
    lines: list[bytes], final: bool, cuts: list[int], block_bytes: int
):
    data = b"\n".join(lines) + (b"\n" if final else b"")
    bounds = sorted({0, *(c for c in cuts if c < len(data))})
    found = []
    for start, stop in zip(bounds, [*bounds[1:], None], strict=True):
        part = b"".join(lines_between(blocks_from(data, start, block_bytes), start, stop))
        begins = [0] if data else []
        begins += [i + 1 for i, byte in enumerate(data) if byte == 10 and i + 1 < len(data)]
        wanted = [b for b in begins if start <= b and (stop is None or b < stop)]
        assert len(list(split_lines([part]))) == len(wanted)
        assert not wanted or data[wanted[0] :].startswith(part)
        found.append(part)
    assert b"".join(found) == data


@given(
    lines=st.lists(st.text(max_size=9), max_size=12),
    cuts=st.lists(st.integers(1, 150), max_size=4),
    packing=st.sampled_from(["gz", "zst"]),
    bom=st.booleans(),
)
def test_slices_of_a_compressed_file_hold_each_document_once(
    tmp_path_factory, lines, cuts, packing, bom
):
    data = (b"\xef\xbb\xbf" if bom else b"") + b"".join(
        json.dumps({"text": t}).encode() + b"\n" for t in lines
    )
    path = tmp_path_factory.mktemp("packed") / f"a.jsonl.{packing}"
    path.write_bytes(gzip.compress(data) if packing == "gz" else zstandard.compress(data))
    config = SourceConfig([str(path)])
    (whole,) = config.files()
    bounds = sorted({0, *cuts})  # some lie behind the end
    slices = [Slice(a, b, 1) for a, b in zip(bounds, [*bounds[1:], None], strict=True)]
    readers = [DocumentReader(replace(whole, part=part), maker(config)) for part in slices]
    assert [d.text for one in readers for d in one] == lines


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_a_compressed_file_is_cut_where_it_unpacks_to_about_as_much(tmp_path, packing):
    lines = [json.dumps({"text": f"{i * i:x} " * 40}).encode() for i in range(20_000)]
    path = tmp_path / f"a.jsonl.{packing}"
    data = b"\n".join(lines)
    path.write_bytes(gzip.compress(data, 1) if packing == "gz" else zstandard.compress(data))
    config = SourceConfig([str(path)])
    (whole,) = config.files()
    assert whole.size
    for pieces, expected in ((3, 3), (50, 8), (1, 0)):
        slices = JsonlReader.split(whole, whole.size // pieces)
        assert len(slices) == expected
        if not slices:
            continue
        counts = [
            sum(1 for _ in DocumentReader(replace(whole, part=s), maker(config))) for s in slices
        ]
        assert sum(counts) == len(lines)
        assert min(counts) > 0.4 * max(counts)
        assert sum(s.num_bytes for s in slices) == whole.size
    path.write_bytes(b"no such thing")
    assert JsonlReader.split(replace(whole, size=13), 4) == []


@given(size=st.integers(1, 10_000), target=st.integers(1, 3000))
def test_slices_of_bytes_cover_the_file(size: int, target: int):
    slices = JsonlReader.split(SourceFile("", "jsonl", size=size), target)
    if size < 2 * target:
        assert slices == []
        return
    assert [s.start for s in slices[1:]] == [s.stop for s in slices[:-1]]
    assert (slices[0].start, slices[-1].stop) == (0, None)
    assert sum(s.num_bytes for s in slices) == size
    sizes = [s.num_bytes for s in slices]
    assert target <= min(sizes) <= max(sizes) < 2 * target


def test_a_bad_line_of_a_slice_is_named_by_its_line_in_the_file(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n\n' * 50 + "bad\n")
    config = SourceConfig([str(path)])
    (file,) = config.files()
    slices = JsonlReader.split(file, 100)
    last = DocumentReader(replace(file, part=slices[-1]), maker(config))
    with pytest.raises(SourceError, match=r"a\.jsonl, line 101: is not valid JSON"):
        list(last)


@pytest.mark.parametrize("stored", ["binary", "large_binary"])
def test_bytes_of_a_table_are_text(tmp_path: Path, stored: str):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"

    def write(*values: bytes | None) -> None:
        column = arrow.array(values, getattr(arrow, stored)())
        parquet.write_table(arrow.table({"text": column}), path)

    write("é日".encode(), b"plain")
    assert texts(path) == ["é日", "plain"]
    write(b"plain", b"caf\xe9")
    with pytest.raises(SourceError, match="in field 'text': is not UTF-8") as caught:
        texts(path)
    assert caught.value.field == f"{path}, row 1"
    assert "iconv" not in str(caught.value)
    write(b"plain", None)
    with pytest.raises(SourceError, match="holds a null"):
        texts(path)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_ids_of_any_type_are_kept(tmp_path: Path, suffix: str):
    records = [{"text": "a", "id": 7}, {"text": "b"}, {"text": "c", "id": None}, {"text": "d"}]
    records[3]["id"] = "doc-1"
    for number, record in enumerate(records):
        path = tmp_path / f"{number}.{suffix}"
        if suffix == "jsonl":
            path.write_text(json.dumps(record))
        else:
            arrow = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(
                arrow.Table.from_pylist([record]), path
            )
    config = SourceConfig([str(tmp_path)], leaves={"id": LeafConfig("id", "any")})
    documents = [
        document for file in config.files() for document in DocumentReader(file, maker(config))
    ]
    assert [bytes(document.leaves[0]) for document in documents] == [b"7", b"", b"", b"doc-1"]
    strict = SourceConfig([str(tmp_path)], leaves={"id": LeafConfig("id", "text")})
    with pytest.raises(SourceError, match="holds a number in field 'id'") as caught:
        list(DocumentReader(strict.files()[0], maker(strict)))
    assert "id:any" in (caught.value.cure or "")
