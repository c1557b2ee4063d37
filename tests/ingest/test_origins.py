"""Where documents of a cache stand in their source: what is named holds the document, and nothing
else is named.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.ingest import (
    ReshuffleConfig,
    SourceConfig,
    TokenizerConfig,
    append_cache,
    build_cache,
    reshuffle,
)
from headrace.ingest.origins import Origin, find_origins
from headrace.ingest.tokenize import cache_tokenizer
from headrace.store import TokenCache, open_cache
from headrace.store.joined import JoinedCache
from headrace.testing import tiny_cache


def text_of(n: int) -> str:
    return f"document {n}, " * (1 + n % 7)


def write_jsonl(path: Path, numbers: range, packed: bool = False) -> None:
    """A line a document, with an empty line before each fifth one."""
    lines = ["" if n % 5 else "\n" for n in numbers]
    text = "".join(
        blank + json.dumps({"text": text_of(n)}) + "\n"
        for blank, n in zip(lines, numbers, strict=True)
    )
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def line_of(path: str, line: int) -> str:
    data = Path(path).read_bytes()
    return (gzip.decompress(data) if path.endswith(".gz") else data).decode().split("\n")[line - 1]


def check_lines(cache: TokenCache) -> None:
    """Every document of a cache of JSONL files is in the line that is named."""
    origins = find_origins(cache, range(cache.num_documents))
    tokenizer = cache_tokenizer(cache.members[0])
    assert tokenizer is not None
    for document, origin in origins.items():
        path, _, line = origin.origin.partition(", line ")
        assert origin.origin_problem == "", origin
        text = tokenizer.decode(cache.document(document).tolist()).removesuffix("<eos>")
        assert json.loads(line_of(path, int(line)))["text"] == text


def build(source: SourceConfig, output: str = "cache", **options: Any) -> TokenCache:
    build_cache(source, TokenizerConfig("bytes"), output, progress=False, **options)
    return open_cache(output)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "texts").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_lines_of_several_files_and_of_packed_ones(folder: Path):
    write_jsonl(folder / "texts" / "a.jsonl", range(40))
    write_jsonl(folder / "texts" / "b.jsonl.gz", range(40, 73), packed=True)
    check_lines(build(SourceConfig(["texts"])))


def test_lines_of_a_file_that_was_cut_into_parts(folder: Path):
    write_jsonl(folder / "texts" / "a.jsonl", range(60_000))
    cache = build(SourceConfig(["texts"]), part_bytes=1 << 20)
    assert len(cache.parts) > 1
    first_of_last = cache.num_documents - cache.parts[-1].documents
    for document in (0, 3, first_of_last, cache.num_documents - 1):
        path, _, line = find_origins(cache, [document])[document].origin.partition(", line ")
        assert json.loads(line_of(path, int(line)))["text"] == text_of(document)


def test_shuffled_joined_and_grown_caches(folder: Path):
    write_jsonl(folder / "texts" / "a.jsonl", range(30))
    write_jsonl(folder / "more.jsonl", range(30, 47))
    build(SourceConfig(["texts"]))
    reshuffle("cache", "shuffled", ReshuffleConfig(seed=1), progress=False)
    check_lines(open_cache("shuffled"))
    append_cache(["more.jsonl"], "cache", progress=False)
    grown = open_cache("cache")
    assert len(grown.members) == 2
    check_lines(grown)
    check_lines(JoinedCache([open_cache("shuffled"), *grown.members[1:]]))


def test_a_text_file_is_named_without_a_line(folder: Path):
    for n in range(3):
        (folder / "texts" / f"{n}.txt").write_text(text_of(n))
    (folder / "texts" / "empty.txt").write_text("")
    origins = find_origins(build(SourceConfig(["texts"])), range(4))
    assert [origin.origin for origin in origins.values()] == [
        f"texts/{name}.txt" for name in (0, 1, 2, "empty")
    ]


def test_rows_of_a_table(folder: Path):
    pq.write_table(
        pa.table({"text": [text_of(n) for n in range(5)]}), folder / "texts" / "a.parquet"
    )
    origins = find_origins(build(SourceConfig(["texts"])), [3])
    assert origins == {3: Origin("texts/a.parquet, row 3")}


def test_skipped_lines_are_not_counted(folder: Path):
    lines = [json.dumps({"text": text_of(n)}) for n in range(6)]
    (folder / "texts" / "a.jsonl").write_text(
        "\n".join([lines[0], "{", lines[1], '{"text": 3}', *lines[2:]])
    )
    check_lines(build(SourceConfig(["texts"], on_bad_line="skip")))


def test_lines_whose_text_the_tokenizer_refused_are_not_counted(folder: Path, bpe_path: str):
    texts = ["one", "</s> within", "two", "three"]
    (folder / "texts" / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in texts)
    )
    source = SourceConfig(["texts"], on_bad_line="skip", special_tokens_in_text="error")
    build_cache(source, TokenizerConfig(bpe_path), "cache", progress=False)
    origins = find_origins(open_cache("cache"), range(3))
    assert [origin.origin for origin in origins.values()] == [
        f"texts/a.jsonl, line {line}" for line in (1, 3, 4)
    ]


def test_both_documents_of_a_pair_are_in_its_line(folder: Path):
    pairs = [{"prompt": f"{n}?", "chosen": f"yes {n}", "rejected": f"no {n}"} for n in range(4)]
    (folder / "texts" / "a.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    origins = find_origins(build(SourceConfig(["texts"], kind="preference")), [4, 5])
    assert [origin.origin for origin in origins.values()] == ["texts/a.jsonl, line 3"] * 2


def test_a_cache_in_a_folder_below_the_one_that_the_build_was_started_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "texts" / "a.txt").write_text("one")
    build(SourceConfig(["texts"]), "first/caches/a")
    monkeypatch.chdir(folder / "first")
    assert find_origins(open_cache("caches/a"), [0]) == {0: Origin(str(folder / "texts" / "a.txt"))}


def test_a_line_that_holds_something_else_now_is_not_named(folder: Path):
    write_jsonl(folder / "texts" / "a.jsonl", range(8))
    cache = build(SourceConfig(["texts"]))
    write_jsonl(folder / "texts" / "a.jsonl", range(100, 108))
    assert find_origins(cache, [2]) == {
        2: Origin("", "the source changed after the cache was built")
    }
    (folder / "texts" / "a.jsonl").write_text("{")
    assert find_origins(cache, [2])[2].origin_problem.startswith("texts/a.jsonl, line 1: ")
    os.unlink(folder / "texts" / "a.jsonl")
    assert find_origins(cache, [2]) == {
        2: Origin("", "texts/a.jsonl is gone, or was meant from another folder")
    }


def test_sources_that_are_not_files():
    assert find_origins(tiny_cache(), [0]) == {
        0: Origin("", "the cache does not say what it was built from")
    }
