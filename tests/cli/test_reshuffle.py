"""`headrace cache reshuffle`: what it costs, what it did, and errors that name what to type."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from headrace.cli.inspect import build_command
from headrace.errors import ConfigError
from headrace.ingest import (
    LeafConfig,
    ReshuffleConfig,
    SourceConfig,
    TokenizerConfig,
    build_cache,
    reshuffle,
)
from headrace.order.document_shuffle import DocumentShuffle
from headrace.store import open_cache
from headrace.store.ledger import read_ledger, write_ledger
from headrace.testing import tiny_cache


@pytest.fixture
def cache(tmp_path):
    return tiny_cache(tmp_path / "cache", documents=60, parts=2)


def test_a_dry_run_says_what_it_takes_and_writes_nothing(headrace, cache, tmp_path):
    said = headrace(
        "cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--dry-run", "--memory", "2GiB"
    )
    assert "Shuffles 60 documents" in said.out
    assert "into 1 part: reads" in said.out
    assert "2.00 GiB of memory per worker" in said.out
    facts = json.loads(
        headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--dry-run", "--json").out
    )
    assert facts["temporary_bytes"] == cache.num_tokens * cache.dtype.itemsize + 8 * 60
    assert facts["bytes_read"] == facts["bytes_written"] == 2 * facts["temporary_bytes"]
    assert not (tmp_path / "copy").exists()


def test_a_copy_and_the_same_command_again(headrace, cache, tmp_path):
    said = headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--seed", "3")
    assert "Shuffles 60 documents" in said.err
    assert f"Next: headrace cache inspect {tmp_path}/copy" in said.out
    copy = open_cache(tmp_path / "copy")
    assert (copy.document(int(copy.stored_at(np.array([7]))[0])) == cache.document(7)).all()
    assert (
        "is already finished"
        in headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--seed", "3").out
    )
    report = json.loads(
        headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--seed", "3", "--json").out
    )
    assert (report["parts_built"], report["parts_reused"], report["seed"]) == (0, 1, 3)


@pytest.mark.parametrize("text", ["much", "-3", "0", "nan", "inf GiB", "GiB"])
def test_a_wrong_memory_is_named(text):
    from headrace.cli.build import memory_bytes

    with pytest.raises(
        ConfigError, match=r"memory = .*positive number of bytes\. Write e\.g\. 4GiB"
    ):
        memory_bytes(text)


def test_errors_name_a_cure_that_works(headrace, cache, tmp_path):
    said = headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--memory", "1MiB")
    least = said.err.partition("Give at least ")[2].split()[0]
    assert headrace(
        "cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--memory", least
    ).out.startswith("Shuffled")
    assert (
        "seed 0 there, 1 now"
        in headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--seed", "1").err
    )
    headrace("cache", "reshuffle", cache.path, f"{tmp_path}/copy", "--seed", "1", "--restart")


def test_a_build_shuffles_too(headrace, corpus, tmp_path):
    done = headrace(
        "build",
        str(corpus),
        "-o",
        f"{tmp_path}/c",
        "-t",
        "bytes",
        "--shuffle",
        "3",
        "--memory",
        "600MiB",
    )
    assert done.code == 0, done.err
    assert "three times its final size" in done.err
    assert "Shuffles 15 documents" in done.err
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "ledger.bin",
        "ledger.json",
        "parts",
    ]
    cache = open_cache(tmp_path / "c")
    assert cache.shuffle == DocumentShuffle(cache.num_documents, 3)
    command = build_command(f"{tmp_path}/c", cache.ledger)
    assert command.endswith("--shuffle 3 --dtype uint16")
    again = headrace(*shlex.split(command)[1:])
    assert (again.code, "is already finished" in again.out) == (0, True)
    wrong = headrace("build", str(corpus), "-o", f"{tmp_path}/d", "-t", "bytes", "--memory", "1GiB")
    assert (wrong.code, "--shuffle SEED" in wrong.err) == (2, True)


CONFIG = """
seq_len: 16
batch_size: 4
shuffle: false
components: {a: {cache: CACHE, remove: gone.txt}}
"""


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A cache of three files with a part each, and its shuffled copy."""
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        lines = [
            json.dumps({"text": f"file {i} line {j}, " * 3, "id": f"{i}/{j}"}) for j in range(20)
        ]
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / f"{i}.jsonl").write_text("\n".join(lines))
    source = SourceConfig(["corpus"], leaves={"id": LeafConfig("id")})
    build_cache(source, TokenizerConfig(), "plain", part_bytes=10, chunk_tokens=256, progress=False)
    reshuffle("plain", "shuffled", ReshuffleConfig(5, part_bytes=900), progress=False)
    (tmp_path / "gone.txt").write_text("\n".join(map(str, range(0, 60, 3))))
    return open_cache("shuffled")


def test_cat_tells_the_document_and_the_file_of_the_original(headrace, text, tmp_path):
    documents = set()
    for cache in ("plain", "shuffled"):
        (tmp_path / "run.yaml").write_text(CONFIG.replace("CACHE", cache))
        for step in range(20):
            done = headrace("run", "cat", "run.yaml", "--step", str(step), "--json")
            assert done.code == 0, done.err
            for row in json.loads(done.out)["rows"]:
                for span in row["spans"]:
                    file, line = span["id"].split("/")
                    assert span["document"] == 20 * int(file) + int(line)
                    assert span["part"] == f"{int(file):05d}"
                    assert [f["path"] for f in span["files"]] == [f"corpus/{file}.jsonl"]
                    assert span["document"] % 3  # the others are in gone.txt
                    documents.add((cache, span["document"]))
    assert min(sum(c == cache for c, _ in documents) for cache in ("plain", "shuffled")) > 20


def test_inspect_finds_documents_by_the_numbers_of_the_original(headrace, text):
    for cache in ("plain", "shuffled"):
        facts = json.loads(headrace("cache", "inspect", cache, "--document", "27", "--json").out)
        assert (facts["samples"][0]["document"], facts["samples"][0]["leaves"]["id"]) == (27, "1/7")
        facts = json.loads(headrace("cache", "inspect", cache, "--id", "2/3", "--json").out)
        assert facts["documents_with_id"] == [43]
        facts = json.loads(headrace("cache", "inspect", cache, "--samples", "9", "--json").out)
        for sample in facts["samples"]:
            file, line = sample["leaves"]["id"].split("/")
            assert sample["document"] == 20 * int(file) + int(line)
        assert facts["source_files"] == 3
        assert (facts["shuffled"] is None) == (cache == "plain")
    origin = open_cache("plain").fingerprint
    assert facts["shuffled"] == {"seed": 5, "unit": 1, "fingerprint": origin}
    said = headrace("cache", "inspect", "shuffled", "--samples", "0").out
    assert "shuffled" in said
    assert "with seed 5" in said


def test_whole_documents_are_named_where_they_were_cut(headrace, text, tmp_path):
    cut = ("cache", "reshuffle", "plain", "cut", "--split", "20", "--part-bytes", "900")
    assert " in 180 pieces" in headrace(*cut).out
    shown = " ".join(headrace("cache", "inspect", "cut").out.split())
    assert "cut each 20 tokens" in shown
    found = headrace("cache", "inspect", "cut", "--id", "2/3", "--json").out
    assert json.loads(found)["documents_with_id"] == [43]
    assert len(json.loads(found)["samples"]) == 3
    plain = open_cache("plain")
    tokens = plain.document(43).size
    (tmp_path / "run.yaml").write_text(CONFIG.replace("CACHE", "cut"))
    offsets = set()
    for step in range(20):
        one = ("run", "cat", "run.yaml", "--step", str(step), "--row", "0", "--row", "3", "--json")
        for row in json.loads(headrace(*one).out)["rows"]:
            for span in row["spans"]:
                file, line = span["id"].split("/")
                assert span["document"] == 20 * int(file) + int(line)
                assert span["document"] % 3  # the others are in gone.txt
                assert span["origin"].endswith(f"{file}.jsonl, line {int(line) + 1}")
                offsets.add(span["offset"])
                assert span["document_tokens"] == plain.document(span["document"]).size
    assert max(offsets) > 40
    seen = headrace("run", "where", "run.yaml", "--document", "43", "--step", "40", "--json").out
    assert sum(one["tokens"] for one in json.loads(seen)["seen"]) >= tokens - 16
    command = build_command("cut", open_cache("cut").ledger)
    assert command.endswith("--split 20")
    removed = headrace("cache", "remove", "cut", "43", "--json").out
    assert json.loads(removed)["removed_tokens"] == tokens
    assert headrace("cache", "remove", "cut", "60").code == 2


def test_verify_knows_of_it_and_a_repair_writes_the_damaged_part_anew(headrace, text):
    done = headrace("cache", "verify", "shuffled", "--deep")
    assert done.code == 0
    assert "shuffled with seed 5 from sha256:" in done.out
    assert (
        json.loads(headrace("cache", "verify", "shuffled", "--json").out)["shuffled"]["seed"] == 5
    )
    before = {p: p.read_bytes() for p in Path("shuffled").rglob("*") if p.is_file()}
    file = Path("shuffled/parts/00001/input_ids/data/c/0")
    file.write_bytes(file.read_bytes()[:-9])
    done = headrace("cache", "verify", "shuffled")
    assert done.code == 1
    assert "rebuilt from plain" in done.out
    done = headrace(
        "cache",
        "reshuffle",
        "plain",
        "shuffled",
        "--seed",
        "5",
        "--part-bytes",
        "900",
        "--repair",
        "--memory",
        "500MiB",
    )
    assert "1 part in" in done.out
    assert {p: p.read_bytes() for p in Path("shuffled").rglob("*") if p.is_file()} == before


def test_an_unfinished_one_says_how_to_finish_it(headrace, text):
    ledger = read_ledger("shuffled")
    write_ledger("shuffled", structs.replace(ledger, finished=False, parts=[]))
    Path("shuffled/parts/00000/part.json").unlink()
    before = headrace("cache", "inspect", "shuffled").out
    assert "is unfinished" in before
    command = before.partition("To finish it: headrace ")[2].split()
    assert command[:2] == ["cache", "reshuffle"]
    assert headrace(*command).code == 0
    assert open_cache("shuffled").fingerprint == text.fingerprint


def test_parts_that_belong_to_another_original_are_told(headrace, text):
    ledger = read_ledger("shuffled")
    ledger.metadata["shuffled"]["parts"][0][1] += 1
    write_ledger("shuffled", ledger)
    done = headrace("cache", "verify", "shuffled")
    assert done.code == 1
    assert "has 60 documents, and the cache that it was made of 61" in " ".join(done.out.split())
