"""``headrace build --append``, as typed, and what the other commands say of snapshots."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.config import load_config
from headrace.data import MixtureDataset
from headrace.run import open_run


def run(*arguments: object, ok: bool = True) -> str:
    done = CliRunner().invoke(application(), [*map(str, arguments)])
    assert (done.exit_code == 0) == ok, f"{done.output}\n{done.exception!r}"
    return done.output


def error_of(*arguments: object) -> str:
    done = CliRunner().invoke(application(), [*map(str, arguments)])
    assert done.exit_code, done.output
    return str(done.exception)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of eight documents, and the files of eight more."""
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        Path(name).mkdir()
        for n in range(8):
            Path(name, f"{n}.txt").write_text(f"{name} {n} " * 40)
    run(
        "build",
        "old",
        "-o",
        "web",
        "-t",
        "bytes",
        "--chunk-tokens",
        64,
        "--engine",
        "inline",
        "--part-bytes",
        900,
    )
    return tmp_path


def test_a_cure_names_a_cache_with_a_space_as_it_is_typed(folder: Path):
    Path("web").rename("my web")
    run("build", "new", "-o", "my web", "--append", "--engine", "inline")
    said = error_of("build", "new", "-o", "my web/appended/1", "--append", "--engine", "inline")
    cure = said.partition("Name the cache: ")[2].rstrip(".")
    typed = run("build", "new", *shlex.split(cure), "--engine", "inline")
    assert "is already finished" in typed


def test_a_cache_grows(folder: Path):
    text = run("build", "new", "-o", "web", "--append", "--engine", "inline")
    assert "Built web/appended/1: 8 documents" in text
    assert text.endswith("headrace run amend RUN CONFIG --newest-caches\n")
    assert "is already finished" in run(
        "build", "new", "-o", "web", "--append", "--engine", "inline"
    )
    facts = json.loads(run("cache", "inspect", "web", "--samples", 0, "--json"))
    assert [one["appended_documents"] for one in facts["snapshots"]] == [8, 8]
    assert facts["members"] == ["web", "web/appended/1"]
    assert "Snapshots" in run("cache", "inspect", "web", "--samples", 0)
    assert "new 3 new 3" in run("cache", "inspect", "web", "--document", 11)
    assert len(json.loads(run("cache", "verify", "web", "--deep", "--json"))["appended"]) == 1
    assert run("cache", "verify", "web").count("sound") == 2
    assert json.loads(run("cache", "remove", "web", 11, 2, "--json"))["snapshot"] == 3
    assert "New runs use snapshot 3." in run("cache", "remove", "web", 11)
    assert "removed" in run("cache", "inspect", "web", "--samples", 0)
    difference = run("cache", "diff", "web", "web/appended/1", ok=False)
    assert "snapshots" in difference
    run("cache", "consolidate", "web", "one")
    assert (
        json.loads(run("cache", "inspect", "one", "--samples", 0, "--json"))["removed_documents"]
        == 2
    )
    for path in sorted(Path("web/appended/1/parts").rglob("c/0"))[:1]:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert "damaged" in run("cache", "verify", "web", "--deep", ok=False)
    assert "repaired" in run("cache", "verify", "web", "--repair")
    assert run("cache", "verify", "web", "--deep").count("sound") == 2
    Path("web/snapshots.json").write_text("{}")
    assert "is damaged: it has no seal" in run("cache", "verify", "web", ok=False)


@pytest.mark.parametrize("options", [[], ["-t", "bytes"]])
def test_a_copied_store_that_names_its_tokenizer_alone_is_copied_with_it(
    folder: Path, options: list[str]
):
    pytest.importorskip("headrace_compat")
    np.save("theirs.npy", np.array([72, 105, 256, 72, 256], np.uint16))
    run("cache", "consolidate", "theirs.npy", "web2", "--format", "npy,dtype=uint16,eos_id=256")
    append = ("build", "new", "--append", "--engine", "inline", "-o")
    said = error_of(*append, "web2", *options)
    assert "output = 'web2': keeps no tokenizer, and not the name of one" in said
    command = shlex.split(said.partition("append to the copy: ")[2].rstrip("."))
    assert command[0] == "headrace"
    run(*("bytes" if word == "FILE" else word for word in command[1:]))
    assert "Built NEW/appended/1: 8 documents" in run(*append, "NEW")
    consolidate = ("cache", "consolidate", "--format", "npy,dtype=uint16,eos_id=256", "-t", "bytes")
    run(*consolidate, "theirs.npy", "web3")
    assert "Built web3/appended/1: 8 documents" in run(*append, "web3")
    assert "the cache keeps its own" in error_of("cache", "consolidate", "NEW", "x", "-t", "bytes")


def test_runs_go_on_and_are_extended(folder: Path):
    config = Path("run.yaml")
    config.write_text("seq_len: 32\nbatch_size: 8\ncomponents: {docs: web}\n")
    open_run("run", load_config(str(config)))
    args = ("run", "where", config, "--step", 40, "--document", 11, "--json")
    assert "is not a document" in error_of(*args)
    run("build", "new", "-o", "web", "--append", "--engine", "inline")
    assert json.loads(run(*args))["seen"]  # a run that began now
    of_run = ("run", "where", "run", *args[3:])
    assert "is not a document" in error_of(*of_run)
    text = run("run", "diff", "run", config, "--step", 20)
    assert "the same run" in text
    assert "appended to or removed from docs since: add --newest-caches" in text
    facts = json.loads(run("run", "diff", "run", config, "--step", 20, "--json"))
    assert facts["newer_caches"] == ["docs"]
    run("run", "amend", "run", config, "--newest-caches", "--step", 20, "--going-back")
    seen = json.loads(run(*of_run))["seen"]
    assert min(one["step"] for one in seen) >= 20
    assert {one["document"] for one in seen} == {11}
    assert "docs@2" in run("run", "where", "run", "--step", 40)
    assert "docs@2" in run("run", "cat", "run", "--step", 39)
    assert run("run", "cat", "run", "--step", 19)
    assert "docs@2" in run("config", "check", "run", "--hosts", 1)
    assert "newest" not in run("run", "diff", "run", config)


@pytest.mark.parametrize("declared", [False, True])
def test_removed_and_appended_documents_change_a_run_in_one_command(folder: Path, declared: bool):
    config = Path("run.yaml")
    text = "seq_len: 32\nbatch_size: 8\ncomponents: {docs: web, more: web}\n"
    if declared:
        text += "amendments:\n- {step: 5, weights: {more: 3}}\n"
    config.write_text(text)
    open_run("run", load_config(str(config))).state(20)
    run("build", "new", "-o", "web", "--append", "--engine", "inline")
    run("cache", "remove", "web", 1, 11)
    if not declared:
        config.write_text(text.replace("docs: web", "docs: {cache: web, weight: 2}"))
    said = run("run", "amend", "run", config, "--newest-caches")
    assert "caches: {docs: 3, more: 3}" in said
    opened = open_run("run", load_config(str(config)), 20)
    assert opened.history[-1]["until_step"] == 20
    args = ("run", "where", "run", "--step", 60, "--json", "--component")
    for source, document in (("docs", 1), ("more", 1), ("docs@3", 3), ("more@3", 3)):
        seen = json.loads(run(*args, source, "--document", document))["seen"]
        assert seen
        assert all(one["removed"] == (one["step"] >= 20) for one in seen)
    assert "newest" not in run("run", "diff", "run", config)


def test_bad_input_is_named(folder: Path):
    assert "--tokenizer: is missing" in error_of("build", "new", "-o", "other")
    repaired = error_of("build", "new", "-o", "web", "--append", "--repair")
    assert "--repair = True: cannot be combined with --append" in repaired
    assert "there is no cache to append to" in error_of("build", "new", "-o", "none", "--append")
    assert "chunk_tokens = 128: is not that of web" in error_of(
        "build", "new", "-o", "web", "--append", "--chunk-tokens", 128
    )
    assert "tokenizer = 'ids:9': is not that of web" in error_of(
        "build", "new", "-o", "web", "--append", "-t", "ids:9"
    )
    assert "is in web already" in error_of("build", "old/1.txt", "-o", "web", "--append")
    assert "there is nothing new to append" in error_of("build", "old", "-o", "web", "--append")
    run(
        "build", "new/*.txt", "-o", "web", "--append", "--engine", "inline", "--chunk-tokens", 64
    )  # as it is


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        ("{docs: {cache: web, weight: 5}, more: web}", "weights: {docs: 5}"),
        ("{more: web}", "drop: [docs]"),
    ],
)
def test_a_source_that_was_extended_is_reweighted_and_dropped_whole(
    folder: Path, edit: str, change: str
):
    config = Path("run.yaml")
    text = "seq_len: 32\nbatch_size: 8\ncomponents: "
    config.write_text(f"{text}{{docs: web, more: web}}\n")
    open_run("run", load_config(str(config))).state(20)
    run("build", "new", "-o", "web", "--append", "--engine", "inline")
    run("run", "amend", "run", config, "--newest-caches")
    config.write_text(f"{text}{edit}\n")
    assert change in (said := run("run", "diff", "run", config, ok=False))
    assert "newest" not in said
    assert change in (said := run("run", "amend", "run", config, "--newest-caches"))
    assert "caches" not in said
    mixture = open_run("run", load_config(str(config)), 20).dataset
    assert isinstance(mixture, MixtureDataset)
    drawn = mixture.draws.counts_at(30)
    assert sum(drawn) == 8
    assert "the same run" in run("run", "diff", "run", config)


def test_less_than_a_row_is_appended_to_before_a_run_moves(folder: Path):
    config = Path("run.yaml")
    config.write_text("seq_len: 32\nbatch_size: 8\ncomponents: {docs: web}\n")
    open_run("run", load_config(str(config))).state(20)
    Path("small.txt").write_text("small")
    run("build", "small.txt", "-o", "web", "--append", "--engine", "inline")
    move = ("run", "amend", "run", config, "--newest-caches")
    said = error_of(*move)
    cure = said.partition("move the run then: headrace ")[2]
    assert cure, said
    run(*cure.replace("SOURCE", "new").split())
    assert "caches: {docs: 3}" in run(*move)
