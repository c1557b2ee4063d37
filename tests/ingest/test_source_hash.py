"""Hashes of sources, on request: a touched file is the same, a changed one is not, and nothing is
hashed unasked.
"""

import os
from pathlib import Path

import pytest

from headrace.errors import SourceError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.records import SourceFile
from headrace.ingest.resume import with_hashes
from headrace.store.ledger import PART_RECORD_NAME, read_ledger


@pytest.fixture
def corpus(tmp_path):
    for k in range(3):
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / f"{k}.txt").write_text(f"text {k} " * 20)
    return tmp_path / "corpus"


def build(corpus, output, **options):
    source = SourceConfig([str(corpus)], "text", extensions=[".txt"])
    return build_cache(
        source, TokenizerConfig("bytes"), str(output), part_bytes=100, progress=False, **options
    )


def hashes(output):
    ledger = read_ledger(str(output))
    assert ledger is not None
    return [s.get("sha256") for s in ledger.sources]


def touch(path):
    content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))


def test_a_touched_file_is_the_same_only_with_hashes(corpus, tmp_path):
    build(corpus, tmp_path / "plain")
    build(corpus, tmp_path / "hashed", hash_sources=True)
    assert hashes(tmp_path / "plain") == [None] * 3
    assert [len(h) for h in hashes(tmp_path / "hashed")] == [64] * 3
    touch(corpus / "1.txt")
    with pytest.raises(SourceError, match="changed after its part was built"):
        build(corpus, tmp_path / "plain")
    with pytest.raises(SourceError, match="changed after its part was built"):
        build(corpus, tmp_path / "hashed")  # not asked to look
    assert build(corpus, tmp_path / "hashed", hash_sources=True).parts_built == 0


def test_a_change_that_keeps_size_and_time_is_seen_with_hashes(corpus, tmp_path):
    build(corpus, tmp_path / "hashed", hash_sources=True)
    stat = (corpus / "2.txt").stat()
    (corpus / "2.txt").write_text("TEXT 2 " * 20)
    os.utime(corpus / "2.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert build(corpus, tmp_path / "hashed").parts_built == 0
    with pytest.raises(SourceError, match=r"2\.txt"):
        build(corpus, tmp_path / "hashed", hash_sources=True)
    Path(tmp_path, "hashed", "parts", "00002", PART_RECORD_NAME).unlink()
    old = hashes(tmp_path / "hashed")
    assert build(corpus, tmp_path / "hashed", hash_sources=True).parts_built == 1
    new = hashes(tmp_path / "hashed")
    assert [a == b for a, b in zip(old, new, strict=True)] == [True, True, False]


def test_files_that_cannot_be_read_are_named(tmp_path):
    missing = SourceFile(f"{tmp_path}/nope.txt", "text")
    with pytest.raises(SourceError, match=r"nope\.txt: cannot be read \(No such file"):
        with_hashes([], [missing])
    record = {"path": "hf://owner/poems"}
    assert with_hashes([record], [SourceFile("hf://owner/poems", "text")]) == [record]
