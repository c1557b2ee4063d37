"""``headrace cache remove``, as typed, and what the other commands say of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.config import load_config
from headrace.ingest import LeafConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.run import open_run
from headrace.store import open_cache
from headrace.store.snapshots import SNAPSHOTS_NAME, history_of
from headrace.testing import tiny_cache


def run(*arguments, ok=True) -> str:
    done = CliRunner().invoke(application(), [*map(str, arguments)])
    assert (done.exit_code == 0) == ok, done.output
    return done.output


def error_of(*arguments) -> str:
    done = CliRunner().invoke(application(), [*map(str, arguments)])
    assert done.exit_code, done.output
    return str(done.exception)


@pytest.fixture
def cache(tmp_path):
    return tiny_cache(tmp_path / "web", documents=120)


def test_snapshots_are_counted_and_the_amendment_is_printed(cache, tmp_path):
    text = run("cache", "remove", cache.path, 17, 40)
    assert text.splitlines()[0] == f"{cache.path}: 2 documents removed; in snapshot 2."
    assert "headrace run amend RUN CONFIG --newest-caches" in text
    (tmp_path / "ids.txt").write_text("40\n41\n41\n")
    facts = json.loads(run("cache", "remove", cache.path, "--file", tmp_path / "ids.txt", "--json"))
    assert (facts["new_documents"], facts["listed_documents"], facts["snapshot"]) == (1, 3, 3)
    assert facts["removed_documents"] == 3
    assert facts["removed_tokens"] == sum(cache.document(n).size for n in (17, 40, 41))
    facts = json.loads(run("cache", "inspect", cache.path, "--samples", 0, "--json"))
    assert [one["removed_documents"] for one in facts["snapshots"]] == [0, 2, 1]
    assert [one["documents"] for one in facts["snapshots"]] == [120, 118, 117]
    assert "3 documents with" in run("cache", "inspect", cache.path, "--samples", 0)
    assert run("cache", "verify", cache.path)
    other = tiny_cache(tmp_path / "other", documents=120)
    assert "removed documents" in run("cache", "diff", cache.path, other.path, ok=False)


def test_documents_are_removed_by_their_ids(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"text": f"text {n}", "url": f"https://example.org/{n % 9}", "n": n}) + "\n"
            for n in range(12)
        )
    )
    leaves = {"url": LeafConfig("url"), "n": LeafConfig("n", "int64")}
    source = SourceConfig([str(tmp_path / "a.jsonl")], leaves=leaves)
    path = str(tmp_path / "cache")
    build_cache(source, TokenizerConfig("bytes"), path, progress=False)
    listed = tmp_path / "urls.txt"
    urls = [f"https://example.org/{n}" for n in (1, 7, 1, 77, 777)]
    listed.write_bytes("\r\n".join(urls).encode())
    by_url = ["cache", "remove", path, "--id-leaf", "url"]
    facts = json.loads(run(*by_url, "--file", listed, "--json"))
    assert facts["ids_not_found"] == urls[3:]
    assert (facts["new_documents"], facts["listed_documents"]) == (3, 3)
    assert open_cache(path).removed().numbers(np.arange(3)).tolist() == [1, 7, 10]
    text = run("cache", "remove", path, "--id-leaf", "n", 11, 12)
    assert "1 document removed" in text
    assert "1 id of no document, '12' first" in text
    assert "0 documents removed (3 were" in run(*by_url, "--file", listed)
    for no_number in ("x", 1 << 64):
        assert "is not a number" in error_of("cache", "remove", path, "--id-leaf", "n", no_number)
    assert "no leaf of this name" in error_of("cache", "remove", path, "--id-leaf", "uri", "x")
    assert "does not exist" in error_of(*by_url, "--file", tmp_path / "none.txt")
    assert "names no document" in error_of(*by_url)


def test_a_list_of_nothing_names_no_amendment(cache, tmp_path):
    (tmp_path / "ids.txt").write_text("# none today\n")
    text = run("cache", "remove", cache.path, "--file", tmp_path / "ids.txt")
    assert "0 documents removed; in snapshot 1." in text
    assert "amendments" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "ID = []: names no document"),
        (("120",), "ID = '120': is not a document: "),
        (("doc-17",), "Give numbers from 0 to 119; to find one by its id: headrace cache inspect "),
        (
            ("3", "--file", "ids.txt"),
            "--file = 'ids.txt': cannot be combined with numbers of documents",
        ),
        (("²",), "ID = '²': is not a document: "),
        (("9" * 5000,), "is not a document: "),
        (("--file", "missing.txt"), "--file = 'missing.txt': does not exist"),
        (("--file", ""), "--file = '': is not a path"),
        (("--file", "/"), "--file = '/': cannot be read (Is a directory). Give document numbers"),
    ],
)
def test_wrong_input_is_named(cache, arguments, expected):
    assert expected in error_of("cache", "remove", cache.path, *arguments)
    assert history_of(cache.path).newest == 1


def test_lists_that_do_not_fit_are_refused(cache, tmp_path):
    (tmp_path / "ids.txt").write_text("3\n120\n")
    assert "is not a document: the cache has 120" in error_of(
        "cache", "remove", cache.path, "--file", tmp_path / "ids.txt"
    )
    (tmp_path / "ids.txt").write_text("# cache: 1234\n3\n")
    assert "is of another cache" in error_of(
        "cache", "remove", cache.path, "--file", tmp_path / "ids.txt"
    )
    assert "is not a token cache" in error_of("cache", "remove", tmp_path / "nothing", 1)
    (tmp_path / "web" / SNAPSHOTS_NAME).write_bytes(b"{}")
    assert "is damaged" in error_of("cache", "remove", cache.path, 1)
    assert "is damaged" in run("cache", "verify", cache.path, ok=False)


def test_where_and_cat_know_what_was_removed(cache, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"seq_len: 32\nbatch_size: 8\ncomponents: {{web: {cache.path}}}\n")
    args = ("run", "where", config, "--step", 30, "--document", 17, "--json")
    seen = json.loads(run(*args))["seen"]
    assert seen[0]["step"] < seen[-1]["step"]
    assert not any(one["removed"] for one in seen)
    open_run(str(tmp_path / "run"), load_config(str(config)))
    run("cache", "remove", cache.path, 17)
    assert all(one["removed"] for one in json.loads(run(*args))["seen"])  # a run that began now
    of_run = ("run", "where", tmp_path / "run", *args[3:])
    assert json.loads(run(*of_run))["seen"] == seen  # one that began before
    text = run("run", "diff", tmp_path / "run", config, "--step", 20)
    assert "the same run" in text
    assert "appended to or removed from web since: add --newest-caches" in text
    last = seen[-1]["step"]
    config.write_text(config.read_text() + f"amendments: [{{step: {last}, caches: {{web: 2}}}}]\n")
    amended = json.loads(run(*args, "components.web.snapshot=1"))["seen"]
    assert [one["removed"] for one in amended] == [one["step"] >= last for one in seen]
    began = ("components.web.snapshot=1", "--step")
    assert ", removed" in run("run", "cat", config, *began, last)
    assert ", removed" not in run("run", "cat", config, *began, seen[0]["step"])
    assert run("run", "cat", tmp_path / "run", "--step", seen[0]["step"])
    text = run(*args[:-1], "--component", "web")
    assert "documents were trained on before step 30" in text
    assert "names no document" in error_of("run", "where", config, "--component", "web")


def test_config_errors_name_field_value_and_cure(cache, tmp_path):
    run("cache", "remove", cache.path, 17)
    base = ["seq_len=32", "batch_size=8", f"components.web={cache.path}"]
    for overrides, expected in (
        (
            ["components.web.snapshot=3"],
            "components.web.snapshot = 3: is not a snapshot of",
        ),
        (
            ["amendments=[{step: 5, caches: {web: 3}}]"],
            "amendments[0].caches.web = 3: is not a snapshot of",
        ),
        (
            ["amendments=[{step: 5, caches: {wbe: 1}}]"],
            "amendments[0].caches.wbe = 1: is not a component",
        ),
        (
            ["amendments=[{step: 5, caches: {web: 1}}]"],
            "amendments[0].caches.web = 1: is not later than snapshot 1",
        ),
        (
            ["amendments=[{step: 5, caches: {web: [1, 1]}}]"],
            "does not say it of its 1 cache",
        ),
    ):
        with pytest.raises(Exception) as error:
            load_config(overrides=[*base, *overrides]).dataset()
        assert expected in str(error.value)
    assert open_cache(cache.path).fingerprint == cache.fingerprint


def test_samples_are_of_documents_that_are_there(cache):
    run("cache", "remove", cache.path, *range(1, 119))
    samples = json.loads(run("cache", "inspect", cache.path, "--samples", 9, "--json"))["samples"]
    assert [one["document"] for one in samples] == [0, 119]
    run("cache", "remove", cache.path, 0, 119)
    assert (
        json.loads(run("cache", "inspect", cache.path, "--samples", 1, "--json"))["samples"] == []
    )
