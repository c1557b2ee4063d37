"""Every container gives the same records whole and in slices, and names what is
wrong with a file.
"""

import gzip
import io
import json
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, SourceError, install_command
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache, documents
from headrace.ingest.documents import described, open_reader, split_file
from headrace.ingest.readers import columnar, streams
from headrace.ingest.readers.datasets import HubAddress, HubReader, load_function
from headrace.ingest.records import BadRecordError, Columns, Slice, SourceFile, lookup
from headrace.store import open_cache, retry
from headrace.store.remote import PatientFile

TEXTS = [f"text {i} é日" * (i % 5) for i in range(40)]
SETTINGS = {"part_bytes": 400, "chunk_tokens": 64, "progress": False}


def rows_of(reader: Any) -> list[tuple[int, Any]]:
    return list(reader)


def records_of(file: SourceFile, *columns: str) -> list:
    return [record for _, record in open_reader(file, Columns(columns))]


def table() -> pa.Table:
    return pa.table(
        {
            "text": TEXTS,
            "meta": [{"id": i} for i in range(len(TEXTS))],
            "other": [b"x" * 50] * len(TEXTS),
        }
    )


def write_parquet(path: Path) -> None:
    pq.write_table(table(), path, row_group_size=7)


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(path, table().schema) as file:
        file.write_table(table(), max_chunksize=6)


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, table().schema) as file:
        file.write_table(table(), max_chunksize=6)


COLUMNAR = {"a.parquet": write_parquet, "a.arrow": write_arrow, "s.arrow": write_stream}


@pytest.mark.parametrize("name", [*COLUMNAR, "a.feather"])
def test_columnar_files(tmp_path: Path, name: str):
    if name == "a.feather":
        pyarrow.feather.write_feather(table(), tmp_path / name)
    else:
        COLUMNAR[name](tmp_path / name)
    (file,) = SourceConfig([str(tmp_path)]).files()
    records = records_of(file, "text", "meta.id")
    assert [(r["text"], lookup(r, "meta.id")) for r in records] == list(
        zip(TEXTS, range(40), strict=True)
    )
    assert set(records[0]) == {"text", "meta"}  # no other column was read
    reader = open_reader(file, Columns(["txet"]))
    with pytest.raises(
        SourceError, match=r"has no column 'txet' \(it has 'text', .*Did you mean 'text'"
    ):
        list(reader)


@pytest.mark.parametrize("name", COLUMNAR)
def test_slices_of_columnar_files_are_the_whole(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(documents, "MIN_SLICE_BYTES", 1)
    COLUMNAR[name](tmp_path / name)
    (file,) = SourceConfig([str(tmp_path)]).files()
    slices = split_file(file, 300)
    assert (len(slices) > 3) == (name != "s.arrow")  # a stream can only be read from its start
    whole = list(open_reader(file, Columns(["text"])))
    assert [row for s in slices for row in open_reader(s, Columns(["text"]))] == whole
    assert [row for row, _ in whole] == list(range(40))


def test_lists_of_numbers_come_as_arrays():
    rows = [[1, 2], [], [3]]
    values = columnar.column_values(pa.array(rows, pa.list_(pa.int32())))
    assert [v.tolist() for v in values] == rows
    assert all(isinstance(v, np.ndarray) for v in values)
    assert [v.tolist() for v in columnar.column_values(pa.array(rows)[1:])] == rows[1:]
    assert columnar.column_values(pa.array([[1], None])) == [[1], None]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("keep", [0, 3, 400, -9])
def test_a_columnar_file_that_is_cut_off(tmp_path: Path, name: str, keep: int):
    COLUMNAR[name](tmp_path / name)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=rf"{name}: (is no|is empty|cannot be read|holds)"):
        records_of(SourceFile(str(path), "parquet" if "parquet" in name else "arrow"), "text")


def warc_record(kind: str, body: bytes, http: bytes = b"") -> bytes:
    payload = http + body
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI:"
        f" http://x/{len(body)}\r\nWARC-Record-ID: <urn:1>\r\n"
    )
    kind_of = "application/http; msgtype=response" if http else "text/plain"
    head += f"Content-Type: {kind_of}\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload + b"\r\n\r\n"


def http_head(kind: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode()


WARC = [
    warc_record("warcinfo", b"software: x"),
    warc_record("conversion", "première page\nline".encode()),
    warc_record("response", b"<p>hi</p>", http_head("text/html; charset=utf-8")),
    warc_record("response", "Grüße".encode("latin-1"), http_head("text/plain; charset=ISO-8859-1")),
    warc_record("conversion", b""),
]


@pytest.mark.parametrize("packing", ["none", "whole", "members"])
def test_warc(tmp_path: Path, packing: str):
    pack = {"none": b"".join(WARC), "whole": gzip.compress(b"".join(WARC))}
    data = pack.get(packing, b"".join(map(gzip.compress, WARC)))
    path = tmp_path / ("a.warc" if packing == "none" else "a.warc.wet.gz")
    path.write_bytes(data)
    (file,) = SourceConfig([str(tmp_path)]).files()
    reader = open_reader(file, Columns(["text"]))
    rows = rows_of(reader)
    assert [(row, r["text"]) for row, r in rows] == [
        (2, "première page\nline"),
        (4, "Grüße"),
        (5, ""),
    ]
    assert rows[0][1]["url"] == f"http://x/{len('première page'.encode()) + 5}"
    assert reader.ignored == {"warcinfo": 1, "text/html": 1}
    path.write_bytes(data[: len(WARC[0] + WARC[1]) - 9 if packing == "none" else len(data) // 2])
    with pytest.raises(SourceError, match=r"ends in the middle|is no WARC file"):
        records_of(file, "text")


def test_what_a_crawl_holds_besides_text_is_counted(tmp_path: Path):
    (tmp_path / "a.warc").write_bytes(b"".join(WARC))
    report = build_cache(
        SourceConfig([str(tmp_path)]), TokenizerConfig(), str(tmp_path / "c"), **SETTINGS
    )
    assert (report.documents, report.ignored_records) == (3, {"text/html": 1, "warcinfo": 1})


def write_megatron(
    base: Path, sequences: list[list[int]], bounds: list[int], dtype: str, code: int
) -> None:
    arrays = [np.array(s, dtype) for s in sequences]
    base.with_suffix(".bin").write_bytes(b"".join(a.tobytes() for a in arrays))
    lengths = np.array([a.size for a in arrays], "<i4")
    pointers = np.concatenate([[0], np.cumsum([a.nbytes for a in arrays])])[: len(arrays)].astype(
        "<i8"
    )
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(arrays), len(bounds))
    base.with_suffix(".idx").write_bytes(
        head + lengths.tobytes() + pointers.tobytes() + np.array(bounds, "<i8").tobytes()
    )


def write_nmoe(base: Path, documents: list[list[int]]) -> None:
    lengths = [len(d) for d in documents]
    np.save(base.with_suffix(".npy"), np.array([i for d in documents for i in d], "<u4"))
    stops = np.cumsum(lengths)
    pairs = np.stack([stops - lengths, stops], 1).astype("<u8")
    base.with_suffix(".idx").write_bytes(
        b"NMOEIDX\0" + struct.pack("<QQQ", 1, len(documents), 0) + pairs.tobytes()
    )


DOCUMENTS = st.lists(st.lists(st.integers(0, 255), max_size=6), min_size=1, max_size=12)


@given(
    documents=DOCUMENTS,
    code=st.sampled_from([(1, "u1"), (4, "<i4"), (5, "<i8"), (8, "<u2")]),
    split=st.booleans(),
)
@settings(max_examples=30)
def test_megatron(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    code: tuple[int, str],
    split: bool,
):
    folder = tmp_path_factory.mktemp("megatron")
    sequences = []
    bounds = [0]
    for document in documents:
        sequences += [document[:2], document[2:]] if split and len(document) > 2 else [document]
        bounds.append(len(sequences))
    write_megatron(folder / "a", sequences, bounds, code[1], code[0])
    check_shards(SourceFile(str(folder / "a.bin"), "megatron"), documents)


@given(documents=DOCUMENTS)
@settings(max_examples=20)
def test_nmoe(tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]):
    folder = tmp_path_factory.mktemp("nmoe")
    write_nmoe(folder / "a", documents)
    check_shards(SourceFile(str(folder / "a.npy"), "nmoe"), documents)


def check_shards(file: SourceFile, written: list[list[int]]) -> None:
    got = [
        (row, record["input_ids"].tolist())
        for row, record in rows_of(open_reader(file, Columns(["input_ids"])))
    ]
    assert got == list(enumerate(written))
    slices = documents.reader_of(file).split(file, 5)
    if sum(map(len, written)):
        assert (slices[0].start, slices[-1].stop) == (0, None)
        assert [s.start for s in slices[1:]] == [s.stop for s in slices[:-1]]
    got = [
        r["input_ids"].tolist()
        for s in slices
        for r in records_of(replace(file, part=s), "input_ids")
    ]
    assert got == written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: b"x" + raw[1:], "is none of Megatron's"),
        (lambda raw: raw[:17] + b"\x63" + raw[18:], "dtype code 99"),
        (lambda raw: raw[:40], "is cut off"),
        (lambda raw: raw[:34] + struct.pack("<i", 1 << 30) + raw[38:], "points behind the end"),
        (lambda raw: raw[:34] + struct.pack("<i", -5) + raw[38:], "out of order"),
        (lambda raw: raw[:-8] + struct.pack("<q", 77), "out of order"),
    ],
)
def test_a_bad_megatron_index(tmp_path: Path, change: Callable[[bytes], bytes], message: str):
    write_megatron(tmp_path / "a", [[1, 2], [3]], [0, 1, 2], "<u2", 8)
    index = tmp_path / "a.idx"
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(SourceError, match=message):
        records_of(SourceFile(str(tmp_path / "a.bin"), "megatron"), "input_ids")
    index.unlink()
    with pytest.raises(SourceError, match=r"has no index beside it.*a\.idx"):
        records_of(SourceFile(str(tmp_path / "a.bin"), "megatron"), "input_ids")


def test_files_of_another_package_name_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_megatron(tmp_path / "a", [[1]], [0, 1], "<u2", 8)
    monkeypatch.setattr("headrace.extensions._installed", lambda group: {})
    with pytest.raises(ConfigError) as refused:
        build_cache(
            SourceConfig([str(tmp_path / "a.bin")]), TokenizerConfig("ids:9"), str(tmp_path / "c")
        )
    assert (refused.value.field, refused.value.value) == ("format", "megatron")
    assert refused.value.cure == install_command("headrace[compat]")


def test_nothing_is_unpickled(tmp_path: Path):
    write_nmoe(tmp_path / "a", [[1]])
    np.save(tmp_path / "a.npy", np.array([{"x": 1}], object), allow_pickle=True)
    with pytest.raises(SourceError, match="not a row of ids"):
        records_of(SourceFile(str(tmp_path / "a.npy"), "nmoe"), "input_ids")


def test_ready_ids_become_a_cache(tmp_path: Path):
    documents = [[1, 2, 3], [], [7]]
    write_megatron(tmp_path / "a", documents, [0, 1, 2, 3], "<u2", 8)
    config = SourceConfig([str(tmp_path / "a.bin")])
    build_cache(config, TokenizerConfig("ids:100"), str(tmp_path / "c"), **SETTINGS)
    cache = open_cache(str(tmp_path / "c"))
    assert [cache.document(i).tolist() for i in range(3)] == documents
    with pytest.raises(
        SourceError,
        match=r"a\.bin, document 2: holds the id 7 at position 0, outside the vocabulary",
    ):
        build_cache(config, TokenizerConfig("ids:5"), str(tmp_path / "d"), **SETTINGS)
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(ConfigError, match="some files hold token ids"):
        build_cache(
            SourceConfig([str(tmp_path / "a.bin"), str(tmp_path / "b.txt")]),
            TokenizerConfig(),
            str(tmp_path / "e"),
        )
    with pytest.raises(ConfigError, match="encodes no text"):
        build_cache(
            SourceConfig([str(tmp_path / "b.txt")]),
            TokenizerConfig("ids:5"),
            str(tmp_path / "f"),
            progress=False,
        )


def test_a_changed_index_is_a_changed_source(tmp_path: Path):
    write_megatron(tmp_path / "a", [[1], [2]], [0, 1, 2], "<u2", 8)
    before = described(SourceFile(str(tmp_path / "a.bin"), "megatron"))
    (tmp_path / "a.idx").touch()
    assert described(SourceFile(str(tmp_path / "a.bin"), "megatron")).version != before.version


class TestHub:
    def test_a_saved_dataset_whole_in_slices_and_streamed(self, tmp_path: Path):
        import datasets

        data = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(40))})
        datasets.DatasetDict({"train": data, "test": data.select([3])}).save_to_disk(
            str(tmp_path / "d")
        )
        file = described(SourceFile(f"hf://{tmp_path}/d", "hf"))
        assert file.version == described(SourceFile(f"hf://{tmp_path}/d", "hf")).version
        assert [r["text"] for r in records_of(file, "text")] == TEXTS
        assert [
            r["text"] for r in records_of(replace(file, path=f"{file.path}?split=test"), "text")
        ] == [TEXTS[3]]
        slices = HubReader.split(file, 100)
        assert len(slices) > 3
        assert [
            r["text"] for s in slices for r in records_of(replace(file, part=s), "text")
        ] == TEXTS
        streamed = SourceFile(f"{file.path}?streaming=true", "hf")
        assert [r["text"] for r in records_of(streamed, "text")] == TEXTS
        with pytest.raises(SourceError, match=r"has no split 'tset'.*'test'"):
            records_of(SourceFile(f"{file.path}?split=tset", "hf"), "text")
        with pytest.raises(SourceError, match="has no column 'body'"):
            records_of(file, "body")

    @pytest.mark.filterwarnings("ignore:.*a.csv:pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # by datasets
    @pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
    def test_a_folder_of_files_and_a_build(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ):
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "home", raising=True)
        (tmp_path / "data").mkdir()
        rows = [json.dumps({"text": text}) for text in TEXTS]
        if name == "a.csv":
            rows = ["text", *(text or "none" for text in TEXTS)]
        (tmp_path / "data" / name).write_text("\n".join(rows))
        path = f"hf://{tmp_path}/data"
        report = build_cache(
            SourceConfig([path]), TokenizerConfig(), str(tmp_path / "c"), **SETTINGS
        )
        assert report.documents == 40
        assert (
            build_cache(
                SourceConfig([path]), TokenizerConfig(), str(tmp_path / "c"), **SETTINGS
            ).parts_built
            == 0
        )

    def test_addresses(self):
        with pytest.raises(ConfigError, match=r"is no option of a dataset.*'split'"):
            HubAddress.parse("hf://a/b?splt=x")
        with pytest.raises(ConfigError, match="names no dataset"):
            HubAddress.parse("hf://?split=x")


class TestFunction:
    def test_shards_of_a_function(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "made_here.py").write_text(
            "def all():\n    yield 'a'\n    yield {'text': 'b', 'n': 1}\n"
            "def shard(i):\n    yield f'shard {i}'\nshard.num_shards = 3\ndef bad():\n    yield 7\n"
            "def broken():\n    raise KeyError('x')\n    yield\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        assert [r["text"] for r in records_of(SourceFile("made_here:all", "python"), "text")] == [
            "a",
            "b",
        ]
        slices = split_file(SourceFile("made_here:shard", "python"), 1)
        assert [r["text"] for s in slices for r in records_of(s, "text")] == [
            "shard 0",
            "shard 1",
            "shard 2",
        ]
        assert isinstance(
            records_of(SourceFile("made_here:bad", "python"), "text")[0], BadRecordError
        )
        with pytest.raises(SourceError, match=r"cannot be read .KeyError"):
            records_of(SourceFile("made_here:broken", "python"), "text")
        config = SourceConfig(["made_here:shard"], format="python")
        report = build_cache(config, TokenizerConfig(), str(tmp_path / "c"), **SETTINGS)
        assert (report.documents, report.parts_built) == (3, 3)

    @pytest.mark.parametrize(
        "path", ["json", "json:nothing", "nosuchmodule:f", "json:__doc__", ":f"]
    )
    def test_names_of_nothing(self, path: str):
        with pytest.raises(ConfigError):
            load_function(path)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [("pyarrow", "a.parquet", "parquet"), ("warcio.archiveiterator", "a.warc", "warc")],
)
def test_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    (file,) = SourceConfig([str(tmp_path)]).files()
    with pytest.raises(ConfigError, match=rf"pip install 'headrace\[{extra}\]'"):
        records_of(file, "text")


def test_a_packed_parquet_file(tmp_path: Path):
    (tmp_path / "a.parquet.gz").write_bytes(b"x")
    (file,) = SourceConfig([str(tmp_path)]).files()
    with pytest.raises(ConfigError, match="Unpack it first"):
        records_of(file, "text")


class Flaky(io.BytesIO):
    """Fails at every third read."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        Flaky.reads += 1
        if Flaky.reads % 3 == 0:
            raise OSError("503 slow down")
        return super().read(size)


def test_reading_goes_on_where_it_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retry._Process, "policy", replace(retry.policy(), first_delay_s=0.001))
    data = bytes(range(256)) * 9
    file = PatientFile(lambda: Flaky(data), "flaky")
    got = b""
    while block := file.read(100):
        got += block
    assert got == data
    file.seek(-7, 2)
    assert file.read() == data[-7:]
    file.close()

    def gone() -> io.BytesIO:
        raise FileNotFoundError("x")

    with pytest.raises(FileNotFoundError):
        PatientFile(gone, "gone")


def test_slices_are_values():
    assert Slice(0, None, 3) == Slice(0, None, 3)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([2**64, -(2**63) - 1, 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ODD_LINES = [
    *(
        b'{"a": NaN}',
        b'{"a": 1e400}',
        b'{"a": "\\ud800"}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
    ),
    *(
        b'{"a": "\x01"}',
        b"{'a': 1}",
        b'{"a": 1,}',
        b"[1]",
        b"7",
        b"{",
        b'{"a": 01}',
        b'{"a": "\\x"}',
        b"[" * 100_000,
    ),
]


def outcome(parse: Callable[[bytes], Any], line: bytes) -> str:
    try:
        return repr(parse(line))  # NaN is NaN, and 1 is not 1.0
    except BadRecordError as bad:
        return f"{bad.problem} {bad.cure}"


def by_json_alone(line: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    def refuse(line: bytes) -> Any:
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(streams, "_decode", refuse)
        return outcome(streams._object_of, line)


@given(value=JSON, ascii_only=st.booleans(), cut=st.integers(0, 60))
def test_lines_are_what_json_takes_them_for(value: Any, ascii_only: bool, cut: int):
    with pytest.MonkeyPatch.context() as monkeypatch:
        whole = json.dumps({"a": value}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        for line in (whole, whole[:cut], whole[cut:], b" " + whole + b"\r"):
            assert outcome(streams._object_of, line) == by_json_alone(line, monkeypatch)


@pytest.mark.parametrize("line", ODD_LINES, ids=lambda line: repr(line[:12]))
def test_odd_lines_are_what_json_takes_them_for(line: bytes, monkeypatch: pytest.MonkeyPatch):
    assert outcome(streams._object_of, line) == by_json_alone(line, monkeypatch)
