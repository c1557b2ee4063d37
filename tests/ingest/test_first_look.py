"""The first look names every file that a build would fail at from its start, and reads only the
heads of files.
"""

import gzip
import json
import random
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace import HeadraceError
from headrace.errors import SourceError
from headrace.ingest import (
    ChatConfig,
    LeafConfig,
    ReshuffleConfig,
    SourceConfig,
    TokenizerConfig,
    append_cache,
    build_cache,
    first_look,
)
from headrace.ingest.first_look import HEAD_BYTES, TABLE_BYTES, faults_of_sources
from headrace.store import files

BYTES = TokenizerConfig("bytes")
GOOD = [{"text": f"document {k} " * 9, "id": k} for k in range(50)]


def lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def table(records: list[dict[str, Any]]) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    sink = arrow.BufferOutputStream()
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(records), sink)
    return sink.getvalue().to_pybytes()


def feather(records: list[dict[str, Any]]) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    sink = arrow.BufferOutputStream()
    rows = arrow.Table.from_pylist(records)
    with arrow.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


OTHER = [{"body": record["text"], "id": record["id"]} for record in GOOD]
EMPTY = [{"text": None, "id": k} for k in range(9)]
GZIP = gzip.compress(lines(GOOD), mtime=0)
ZSTD = zstandard.compress(lines(GOOD))
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "column.jsonl": (lines(OTHER), "has no field 'text' (it has 'body', 'id')"),
    "column.jsonl.gz": (gzip.compress(lines(OTHER)), "has no field 'text'"),
    "column.parquet": (table(OTHER), "has no column 'text' (it has 'body', 'id')"),
    "column.arrow": (feather(OTHER), "has no column 'text'"),
    "null.jsonl": (lines(EMPTY), "holds a null in field 'text', not a string"),
    "null.parquet": (table(EMPTY), "holds a null in field 'text', not a string"),
    "latin.txt": ("Käse\n".encode("latin-1"), "is not UTF-8 (byte 0xe4 at byte 1 of the file)"),
    "latin.jsonl": ('{"text": "Käse"}\n'.encode("latin-1") * 9, "is not UTF-8"),
    "words.jsonl": (b"some words\n" * 9, "is not valid JSON"),
    "list.jsonl": (b"[1, 2]\n" * 9, "holds a JSON list, not an object"),
    "cut.jsonl.gz": (GZIP[:-9], "ends in the middle of its gzip stream (cut off?)"),
    "cut.jsonl.zst": (ZSTD[:-9], "ends in the middle of its zstd stream (cut off?)"),
    "none.jsonl.gz": (lines(GOOD), "is damaged: its gzip stream cannot be read"),
    "none.jsonl.zst": (lines(GOOD), "is damaged: its zstd stream cannot be read"),
    "cut.parquet": (table(GOOD)[:-9], "is no Parquet file, or a damaged one"),
    "empty.parquet": (b"", "is empty, no Parquet file"),
    "cut.arrow": (feather(GOOD)[:-9], "is no Arrow file, or a damaged one"),
    "cut.warc": (b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 9\r\n\r\nab", "cut off?"),
}
GOOD_FILES = {
    "good.jsonl": lines(GOOD),
    "good.jsonl.gz": GZIP,
    "good.jsonl.zst": ZSTD,
    "good.parquet": table(GOOD),
    "good.arrow": feather(GOOD),
    "good.txt": "Käse\n".encode(),
    "nothing.txt": b"",
    "nothing.jsonl": b"",
}


def write(folder: Path, contents: dict[str, bytes]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return str(folder)


def faults(folder: Path | str, **settings: Any) -> dict[str, HeadraceError]:
    """Errors of a source, by the name of the file."""
    (some,) = faults_of_sources([(SourceConfig([str(folder)], **settings), BYTES)])
    return {Path(re.sub(", (line|row).*", "", str(fault.field))).name: fault for fault in some}


def test_every_bad_file_is_named_with_its_fault_and_no_good_one(tmp_path: Path):
    write(tmp_path, {**GOOD_FILES, **{name: content for name, (content, _) in BAD_FILES.items()}})
    named = faults(tmp_path)
    assert set(named) == set(BAD_FILES)
    for name, (_, problem) in BAD_FILES.items():
        assert problem in named[name].problem
        assert named[name].cure


@given(bad=st.sets(st.sampled_from(sorted(BAD_FILES))))
def test_one_error_names_all_bad_files_and_nothing_is_written(
    tmp_path_factory: pytest.TempPathFactory, bad: set[str]
):
    folder = tmp_path_factory.mktemp("texts")
    write(folder / "texts", {**GOOD_FILES, **{name: BAD_FILES[name][0] for name in bad}})
    source = SourceConfig([str(folder / "texts")])
    output = folder / "cache"
    if not bad:
        assert build_cache(source, BYTES, str(output), progress=False).documents > 0
        return
    with pytest.raises(SourceError) as caught:
        build_cache(source, BYTES, str(output), progress=False)
    assert all(f"/texts/{name}" in str(caught.value) for name in bad)
    assert len(bad) == 1 or len(caught.value.faults) == len(bad)
    assert not output.exists()


@pytest.mark.parametrize(
    ("line", "problem", "cure"),
    [
        ('{"body": %d}', "has no field 'text'", "--text-field"),
        ('{"text": %d}', "holds a number in field 'text'", "--text-field"),
        ("word %d", "is not valid JSON", "--format"),
    ],
)
def test_records_that_all_fail_alike_blame_no_line(
    tmp_path: Path, line: str, problem: str, cure: str
):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(line % i + "\n" for i in range(30)))
    for on_bad_line in ("error", "skip"):
        (fault,) = faults(tmp_path, on_bad_line=on_bad_line).values()
        assert fault.field == str(path)
        assert f"each of its first 30 records fails alike: {problem}" in fault.problem
        assert cure in (fault.cure or "")
        assert "--on-bad-line" not in (fault.cure or "")
    # A leaf is missing, and no text.
    path.write_text('{"text": "good", "title": "a longer text"}\n' * 30)
    (fault,) = faults(tmp_path, leaves={"id": LeafConfig("meta.id")}).values()
    assert "has no field 'meta.id'" in fault.problem
    assert "--text-field" not in (fault.cure or "")
    # One that is good among them, or fails otherwise: then the line is to blame.
    write(tmp_path, {"good.jsonl": lines(GOOD)})
    for count, other in ((1, '{"text": "good"}'), (1, "[1]"), (50, '{"text": "good"}')):
        path.write_text("".join([line % 1 + "\n"] * count + [other + "\n"]))
        (fault,) = faults(tmp_path).values()
        assert (fault.field, problem in fault.problem) == (f"{path}, line 1", True)
        assert "--on-bad-line skip" in (fault.cure or "")
        assert faults(tmp_path, on_bad_line="skip") == {}
    # Fifty alike, and then another: none is good, and the file would be left out.
    path.write_text("".join([line % 1 + "\n"] * 50 + ["[1]\n"]))
    assert set(faults(tmp_path, on_bad_line="skip")) == {"a.jsonl"}


@pytest.mark.parametrize("name", ["a.jsonl", "a b.txt"])
@pytest.mark.parametrize("rule", ["error", "skip"])
def test_a_packed_file_is_read_once_its_name_says_so(tmp_path: Path, name: str, rule: str):
    content = b"text" if name.endswith("txt") else lines(GOOD)
    packed = {"gzip": gzip.compress(content), "zstd": zstandard.compress(content)}
    for compression, data in packed.items():
        folder = tmp_path / compression
        write(folder, {name: data})
        (fault,) = faults(folder, on_bad_line=rule).values()
        assert fault.problem == f"is packed by {compression}, and its name does not say so"
        command = (fault.cure or "").removeprefix("Rename it: ")
        subprocess.run(shlex.split(command), check=True)
        assert faults(folder, on_bad_line=rule) == {}


def test_single_bad_records_are_skipped_if_told_so(tmp_path: Path):
    good = lines(GOOD[:5])
    write(tmp_path, {"a.jsonl": good + b"no json\n" + good, "b.txt": b"\xff", "c.jsonl": b"17\n"})
    assert {str(fault.field).rpartition("/")[2] for fault in faults(tmp_path).values()} == {
        "a.jsonl, line 6",
        "b.txt, line 1",
        "c.jsonl, line 1",
    }
    assert faults(tmp_path, on_bad_line="skip") == {}
    source = SourceConfig([str(tmp_path)], on_bad_line="skip")
    assert build_cache(source, BYTES, f"{tmp_path}/cache", progress=False).skipped_lines == 3


@pytest.mark.parametrize(
    "contents",
    [
        {"a.jsonl": b"no json\n"},
        {"a.jsonl": b"no json\n[]\n"},
        {"a.jsonl.gz": gzip.compress(b'{"body": "other"}\n')},
        {"a.parquet": table([{"text": None}])},
        {"a.txt": b"\xff", "b.txt": b"\xfe"},
        {"a.jsonl": b"no json\n" * 9, "b.txt": b"\xff"},
        {"a.jsonl": b"\n\n \n"},
    ],
)
def test_a_source_without_a_good_record_is_refused_and_no_skipping_is_offered(
    tmp_path: Path, contents: dict[str, bytes]
):
    write(tmp_path / "in", contents)
    said = {
        rule: {
            name: str(fault) for name, fault in faults(tmp_path / "in", on_bad_line=rule).items()
        }
        for rule in ("error", "skip")
    }
    assert said["error"] == said["skip"]
    bad = {name for name, content in contents.items() if content.strip()}
    assert set(said["skip"]) == (bad or {"in"})
    assert "on-bad-line" not in str(said)
    source = SourceConfig([str(tmp_path / "in")], on_bad_line="skip")
    with pytest.raises(SourceError):
        build_cache(source, BYTES, f"{tmp_path}/cache", progress=False)
    assert not (tmp_path / "cache").exists()
    # Beside a good record, all of them are skipped, but for files that fail alike from the start.
    if max(content.count(b"\n") for content in contents.values()) < 9:
        write(tmp_path / "in", {"z.txt": b"good"})
        assert faults(tmp_path / "in", on_bad_line="skip") == {}


def test_a_build_that_came_out_empty_begins_anew_by_itself(tmp_path: Path):
    """Its bad records lie behind the first ones, or nobody looked."""
    corpus = tmp_path / "in"
    write(corpus, {"a.jsonl": b"no json\n"})
    source = SourceConfig([str(corpus)], on_bad_line="skip")
    cache = f"{tmp_path}/cache"
    for _ in range(2):
        with pytest.raises(SourceError, match=r"no documents; 1 line skipped.* then build again"):
            build_cache(source, BYTES, cache, first_look=False, progress=False)
    write(corpus, {"a.jsonl": b"no json\n" + lines(GOOD)})
    assert build_cache(source, BYTES, cache, progress=False).documents == len(GOOD)


def test_a_template_that_fails_is_named(tmp_path: Path):
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    write(tmp_path, {"good.jsonl": lines([{"messages": chat}] * 9)})
    write(tmp_path, {"bad.jsonl": lines([{"messages": chat[1:]}] * 9)})
    write(tmp_path, {"none.jsonl": lines([{"messages": []}] * 9)})
    template = (
        "{% for m in messages %}{% if loop.first and m.role != 'user' %}"
        "{{ raise_exception('a user speaks first') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    named = faults(tmp_path, kind="chat", chat=ChatConfig(template, "all"))
    assert set(named) == {"bad.jsonl", "none.jsonl"}
    assert "a user speaks first" in named["bad.jsonl"].problem


def test_what_lies_behind_the_head_is_no_business_of_the_look(tmp_path: Path):
    much = lines([{"text": "x" * 1000}] * (HEAD_BYTES // 1000 + 9))
    later = {
        "a.jsonl": much + b"no json\n",
        "b.jsonl.gz": gzip.compress(much, 0) + b"no gzip",
        "c.txt": b"x" * HEAD_BYTES + b"\xff",
        "long.jsonl": lines([{"text": "x" * 2 * HEAD_BYTES}]),
    }
    write(tmp_path, later)
    assert faults(tmp_path) == {}
    with pytest.raises(SourceError, match=r"a\.jsonl, line 75: is not valid JSON"):
        build_cache(SourceConfig([str(tmp_path)]), BYTES, f"{tmp_path}/cache", progress=False)


def test_a_character_at_the_end_of_the_head_is_not_cut(tmp_path: Path):
    for name, length in (("a", HEAD_BYTES - 1), ("b", HEAD_BYTES - 2), ("c", HEAD_BYTES)):
        (tmp_path / f"{name}.txt").write_bytes(b"x" * length + "é日".encode())
    assert faults(tmp_path) == {}


def test_little_is_read_and_of_many_files_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(0)
    texts = [{"text": chance.randbytes(500).hex()} for _ in range(20_000)]
    big = {
        "a.jsonl": lines(texts),
        "b.jsonl.gz": gzip.compress(lines(texts), 1),
        "c.parquet": table(texts),
        "d.txt": b"x" * (20 << 20),
    }
    write(tmp_path / "big", big)
    write(tmp_path / "many", {f"{k:03}.jsonl": lines(GOOD) for k in range(100)})
    read: list[int] = []
    read_range = files.read_range

    def counted(path: str, start: int, stop: int) -> bytes:
        read.append(stop - start)
        return read_range(path, start, stop)

    monkeypatch.setattr(files, "read_range", counted)
    assert faults(tmp_path / "big") == {}
    assert len(read) <= 7
    assert sum(read) < 3 * HEAD_BYTES + TABLE_BYTES
    read.clear()
    monkeypatch.setattr(first_look, "MOST_LOCAL_FILES", 7)
    (tmp_path / "many" / "000.jsonl").write_text("no json\n")
    (fault,) = faults(tmp_path / "many").values()
    assert fault.field == f"{tmp_path}/many/000.jsonl, line 1"
    assert "Only 7 of the 100 files of this source were looked at." in (fault.cure or "")
    assert len(read) == 7


def test_a_finished_cache_is_not_looked_at_and_its_parts_are_kept(
    tmp_path: Path, tree: Callable[[str | Path], dict[str, bytes]]
):
    corpus = write(tmp_path / "corpus", {"a.jsonl": lines(GOOD)})
    cache = f"{tmp_path}/cache"
    build_cache(SourceConfig([corpus]), BYTES, cache, progress=False)
    before = tree(cache)
    bad = SourceConfig([write(tmp_path / "bad", {"b.jsonl": b"x\n", "c.jsonl": b"y\n"})])
    # Neither appending nor starting over touches what is there, if the new files are bad.
    for begin in (
        lambda: append_cache([str(tmp_path / "bad")], cache, progress=False),
        lambda: build_cache(bad, BYTES, cache, restart=True, progress=False),
        lambda: build_cache(
            bad, BYTES, cache, how=ReshuffleConfig(0), restart=True, progress=False
        ),
    ):
        with pytest.raises(SourceError, match="2 files cannot be built from"):
            begin()
        assert tree(cache) == before
    assert build_cache(SourceConfig([corpus]), BYTES, cache, progress=False).parts_built == 0


def test_a_resumed_build_looks_again_and_keeps_its_parts(
    tmp_path: Path, tree: Callable[[str | Path], dict[str, bytes]]
):
    names = [f"{k}.jsonl" for k in range(5)]
    corpus = write(tmp_path / "corpus", {**dict.fromkeys(names, lines(GOOD)), "3.jsonl": b"x\n"})
    source = SourceConfig([corpus])
    options: Any = {"part_bytes": 1, "engine": "inline", "progress": False}
    cache = f"{tmp_path}/cache"
    with pytest.raises(SourceError):
        build_cache(source, BYTES, cache, first_look=False, **options)
    before = tree(cache)
    with pytest.raises(SourceError, match=r"3\.jsonl, line 1: is not valid JSON"):
        build_cache(source, BYTES, cache, **options)
    assert tree(cache) == before
    (tmp_path / "corpus" / "3.jsonl").write_bytes(lines(GOOD))
    assert build_cache(source, BYTES, cache, **options).parts_reused == 3


def test_without_a_look_the_first_bad_file_ends_the_build(tmp_path: Path):
    corpus = write(tmp_path / "corpus", dict.fromkeys(("a.jsonl", "b.jsonl"), b"no json\n"))
    with pytest.raises(SourceError) as caught:
        build_cache(
            SourceConfig([corpus]), BYTES, f"{tmp_path}/c", first_look=False, progress=False
        )
    assert (caught.value.field, caught.value.faults) == (f"{corpus}/a.jsonl, line 1", ())


def test_a_column_of_masks_is_found_behind_a_damaged_file(tmp_path: Path):
    ids = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}] * 3
    write(tmp_path, {"a.jsonl.gz": b"no gzip", "b.jsonl": lines(ids)})
    assert set(faults(tmp_path, kind="tokens")) == {"a.jsonl.gz"}
