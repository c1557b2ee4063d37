"""What ``headrace init`` takes a folder for."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.ingest import TokenizerConfig, build_cache
from headrace.ingest.survey import MOST_SOURCES, survey


def write(root: Path, contents: dict[str, bytes]) -> str:
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(root)


def test_folders_become_sources_and_what_is_no_text_is_counted(tmp_path):
    contents = {
        "code/deep/a.py": b"x = 1\n",
        "code/b.PY": b"y = 2\n",
        "code/blob.bin": bytes(range(256)),
        "two words/a.jsonl.gz": gzip.compress(json.dumps({"text": "water"}).encode()),
        "two-words/a.txt": "ä".encode() * 3000,  # the head ends within a character
        "pictures/a.png": b"\x89PNG\r\n\x1a\n\0\0",
        "notes.md": b"notes",
        "Makefile": b"all:\n",
        ".git/config": b"hidden",
    }
    found = {source.name: source for source in survey(write(tmp_path / "texts", contents) + "/")}
    assert list(found) == ["texts", "code", "two-words", "two-words-2", "pictures"]
    assert (found["pictures"].files, found["pictures"].left_out) == (0, {".png": 1})
    assert (found["code"].endings, found["code"].files, found["code"].left_out) == (
        [".py"],
        2,
        {".bin": 1},
    )
    assert (found["texts"].endings, found["texts"].left_out) == ([".md"], {"Makefile": 1})
    assert sum(source.bytes for source in found.values()) == sum(
        len(content)
        for name, content in contents.items()
        if name.endswith((".py", ".PY", ".gz", ".txt", ".md"))
    )


def test_files_that_build_would_refuse_are_left_out(tmp_path):
    contents = {
        "a/e.txt": b"",
        "b/f.txt": b"",
        "b/g.txt": b"text",
        "b/h.bin": b"text",
        "b/i.npy": b"text",
        "b/j.csv": b"id,text\n1,a\n",
    }
    found = {source.name: source for source in survey(write(tmp_path / "texts", contents))}
    assert (found["a"].files, found["a"].left_out) == (0, {"empty .txt": 1})
    assert (found["b"].files, found["b"].left_out) == (2, {".bin": 1, ".npy": 1, ".csv": 1})
    assert (
        build_cache(
            found["b"].config(), TokenizerConfig("bytes"), str(tmp_path / "b"), progress=False
        ).tokens
        == 6
    )


def test_names_keep_their_letters(tmp_path):
    contents = {f"{name}/a.txt": b"text" for name in ("日本", "u\u0308ber uns", "a.b (2)")}
    assert {source.name for source in survey(write(tmp_path / "texts", contents))} == {
        "日本",
        "über-uns",
        "a-b-2",
    }


@pytest.mark.parametrize("name", ["texts", "te[x]ts", "a b"])
def test_a_source_builds_from_just_the_files_that_it_counts(tmp_path, name):
    contents = {
        "a.txt": b"one",
        "b.cfg": b"two",
        "c/d.txt": b"three",
        "c/e.cfg": b"four five",
        "UP.CFG": b"six",
    }
    for k, source in enumerate(survey(write(tmp_path / name, contents))):
        report = build_cache(
            source.config(), TokenizerConfig("bytes"), str(tmp_path / f"{k}"), progress=False
        )
        assert (report.documents, report.text_bytes) == (source.files, source.bytes)


def test_a_compressed_file_beside_the_folders_is_built_too(tmp_path):
    (source,) = survey(
        write(tmp_path / "texts", {"a.txt.gz": gzip.compress(b"one"), "b.txt": b"two"})
    )
    report = build_cache(
        source.config(), TokenizerConfig("bytes"), str(tmp_path / "cache"), progress=False
    )
    assert (report.documents, source.files) == (2, 2)


def test_the_text_field_is_that_of_the_first_file_which_tells_it(tmp_path):
    contents = {
        "a.jsonl.gz": b"no gzip",
        "b.jsonl": b'{"id": 1}\n',
        "c.jsonl": b'{"content": "text"}\n',
    }
    (source,) = survey(write(tmp_path / "texts", contents))
    assert source.config().text_field == "content"


@pytest.mark.parametrize("spelling", ["texts", "./texts", "texts//", "other/../texts", "."])
def test_a_folder_may_be_spelled_in_any_way(tmp_path, monkeypatch, spelling):
    write(tmp_path / "texts", {"code/a.py": b"x", "docs/b.txt": b"y"})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "texts" if spelling == "." else tmp_path)
    assert [(source.name, source.files) for source in survey(spelling)] == [
        ("code", 1),
        ("docs", 1),
    ]


def test_many_folders_are_one_source(tmp_path):
    root = write(tmp_path / "many", {f"{k}/a.txt": b"text" for k in range(MOST_SOURCES + 1)})
    (source,) = survey(root)
    assert (source.name, source.files) == ("many", MOST_SOURCES + 1)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (None, "does not exist"),
        ({}, "holds no text (it has no file, or only hidden ones)"),
        (
            {"a.npy": np.arange(3).tobytes(), "b.txt.xz": b"\xfd7z"},
            "holds no text (it has .npy, .xz)",
        ),
    ],
)
def test_a_folder_without_text_says_what_it_has(tmp_path, contents, said):
    if contents is not None:
        (tmp_path / "f").mkdir()
        write(tmp_path / "f", contents)
    with pytest.raises(SourceError, match="folder") as caught:
        survey(str(tmp_path / "f"))
    assert said in str(caught.value)
