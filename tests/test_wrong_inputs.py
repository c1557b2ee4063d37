"""What people get wrong, in configs, on the command line and in Python, and what they then read: a
table beside this file, one row an input, with what its message is about and with what it says to
write instead, which is then tried.

``[wrong, subject, cured]``: the subject is the field and the value that the message names, all that
stands before its first colon (a message without one, whole). The input is: of ``configs`` lines of
YAML that replace those of :data:`RUN` (after ``RAW`` the whole file), checked by ``headrace config
check``; of ``commands`` what follows ``headrace``; of ``calls`` Python over :func:`names`. A row without a cure
(null) has one that cannot be tried here. ``said`` are inputs that are taken, and what is said of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as public
from headrace import HeadraceError
from headrace.cli import main
from headrace.data.documents import DocumentFilter
from headrace.ingest import LeafConfig
from headrace.run import LoaderState, where
from headrace.store.ledger import read_ledger, write_ledger

TABLE: dict[str, list[list[Any]]] = json.loads(
    Path(__file__).with_name("wrong_inputs.json").read_text()
)
RUN = (
    "seq_len: 32\nbatch_size: 8\nnum_steps: 40\nseed: 0\ncomponents: {code: caches/code, docs:"
    " caches/docs}\n"
)
NOT_FOR_USERS = (
    "Traceback",
    "NoneType",
    "object has no attribute",
    "dataclass",
    "draccus",
    "pydantic",
    "Value error",
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command in this process."""
    capsys.readouterr()
    sys.argv = ["headrace", *arguments]
    with pytest.raises(SystemExit) as end:
        main()
    output, said = capsys.readouterr()
    return int(end.value.code or 0), output, said


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: texts, caches (one not finished), a config and its run."""
    root = tmp_path_factory.mktemp("template")
    here = os.getcwd()
    os.chdir(root)
    for name, ending in (("code", ".py"), ("docs", ".txt")):
        Path("texts", name).mkdir(parents=True)
        for i in range(6):
            lines = [f"line {k} of {i} in {name}: some words to read" for k in range(100)]
            Path("texts", name, f"{'abcdef'[i]}{ending}").write_text("\n".join(lines))
    records = [json.dumps({"text": f"document {k} " * 20, "url": f"u/{k}"}) for k in range(50)]
    Path("texts/docs.jsonl").write_text("\n".join(records))
    Path("ids.jsonl").write_text(
        "\n".join(json.dumps({"input_ids": [k % 9 for k in range(60)]}) for _ in range(50))
    )
    for name in ("empty", "binary"):
        Path(name).mkdir()
    Path("binary/x.bin").write_bytes(bytes(range(256)))
    Path("latin.txt").write_bytes("text\nKäse".encode("latin-1"))
    Path("bad.jsonl").write_text('{"text": "a"}\n{"text": oops}\n')
    Path("far.txt").write_text("1\n99999\n")
    Path("near.txt").write_text("1\n3\n")
    tokenizer = public.TokenizerConfig("bytes")
    options: Any = {"chunk_tokens": 512, "engine": "inline", "progress": False}
    public.build_cache(
        public.SourceConfig(["texts/code"], extensions=[".py"]), tokenizer, "caches/code", **options
    )
    public.build_cache(public.SourceConfig(["texts/docs"]), tokenizer, "caches/docs", **options)
    ids = public.SourceConfig(["ids.jsonl"], kind="tokens")
    public.build_cache(ids, public.TokenizerConfig("ids:10", eos="none"), "caches/ids", **options)
    urls = public.SourceConfig(["texts/docs.jsonl"], leaves={"id": LeafConfig("url", "text")})
    public.build_cache(urls, tokenizer, "caches/urls", **options)
    ledger = read_ledger("caches/docs")
    assert ledger is not None
    write_ledger("caches/half", msgspec.structs.replace(ledger, finished=False, parts=[]))
    Path("run.yaml").write_text(RUN)
    public.open_run("runs/1", public.load_config("run.yaml"))
    os.chdir(here)
    return root


@pytest.fixture(scope="module")
def workplace(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all configs, which are only read."""
    return Path(shutil.copytree(template, tmp_path_factory.mktemp("configs") / "place"))


@pytest.fixture
def fresh(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of its own, where we are."""
    place = Path(shutil.copytree(template, tmp_path / "place"))
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("COLUMNS", "200")
    return place


def check_message(text: str) -> None:
    """What every message has: a line with what it is about, what is wrong and what to do; no word
    of Python's.
    """
    assert len(text.splitlines()) == 1
    assert re.search(r"\S+: .+[.?)] [A-Z`\d]|See: headrace", text), "no cure"
    for word in NOT_FOR_USERS:
        assert word not in text


def check_subject(said: str, subject: str) -> None:
    """What is said is about ``subject``, and is a message as all are."""
    assert said.partition(": ")[0] == subject
    check_message(said)


def config_text(lines: str) -> str:
    """:data:`RUN` with the fields that ``lines`` has in place of its own."""
    if lines.startswith("RAW "):
        return lines.removeprefix("RAW ")
    names = re.findall(r"^([\w-]+):", lines, re.MULTILINE)
    return (
        "".join(
            line for line in RUN.splitlines(keepends=True) if line.partition(":")[0] not in names
        )
        + lines
    )


@pytest.mark.parametrize(("wrong", "subject", "cured"), TABLE["configs"])
def test_a_config(workplace, monkeypatch, capsys, wrong, subject, cured):
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "argv", [])
    Path("wrong.yaml").write_text(config_text(wrong))
    status, _, said = run(capsys, "config", "check", "wrong.yaml", "--hosts", "1")
    assert status == 2
    check_subject(said.removeprefix("error ").strip(), subject)
    if cured is None:
        return
    Path("wrong.yaml").write_text(config_text(cured))
    status, _, said = run(capsys, "config", "check", "wrong.yaml", "--hosts", "1")
    assert status in (0, 1), said


@pytest.fixture
def busy() -> Iterator[int]:
    """A port that another server has."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize(("wrong", "subject", "cured"), TABLE["commands"])
def test_a_command(fresh, capsys, busy, wrong, subject, cured):
    status, _, said = run(capsys, *shlex.split(wrong.replace("{busy}", str(busy))))
    assert status == 2
    check_subject(said.replace(str(busy), "{busy}").removeprefix("error ").strip(), subject)
    if cured is not None:
        status, _, said = run(capsys, *shlex.split(cured))
        assert status in (0, 1), said


@pytest.fixture
def names(fresh: Path) -> Iterator[dict[str, Any]]:
    """What calls are made with."""
    cache = public.open_cache("caches/code")
    config = public.load_config("run.yaml")
    ds = public.TokenSeqDataset(cache, seq_len=32)
    with public.DataLoader(ds, 8) as loader:
        known = {name: getattr(public, name) for name in vars(public)["__all__"]}
        known |= {"DocumentFilter": DocumentFilter, "LoaderState": LoaderState, "where": where}
        manifest = public.open_run("runs/3", config)
        yield known | {
            "cache": cache,
            "config": config,
            "ds": ds,
            "loader": loader,
            "manifest": manifest,
        }


@pytest.mark.parametrize(("wrong", "subject", "cured"), TABLE["calls"])
def test_a_call(names, wrong, subject, cured):
    with pytest.raises(HeadraceError) as error:
        eval(wrong, names)
    check_subject(str(error.value), subject)
    eval(cured, names)


@pytest.mark.parametrize(("lines", "text"), TABLE["said"])
def test_what_is_taken_is_said(workplace, monkeypatch, capsys, lines, text):
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "argv", [])
    Path("taken.yaml").write_text(config_text(lines))
    status, output, _ = run(capsys, "config", "check", "taken.yaml", "--hosts", "1")
    assert status in (0, 1)
    assert text in output


@pytest.mark.parametrize(("name", "least"), [("configs", 80), ("commands", 80), ("calls", 40)])
def test_there_are_two_hundred(name, least):
    assert len(TABLE[name]) >= least


def test_a_command_line_that_breaks_off_names_the_help_of_its_command(capsys):
    assert "See: headrace run amend --help" in run(capsys, "run", "amend", "RUN", "--step")[2]
    assert "See: headrace build --help" in run(capsys, "build", "texts", "--output")[2]
