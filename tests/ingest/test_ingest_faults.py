"""Bad moments of the world: stores that fail, credentials that must not be told, machines that run
full.
"""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import HeadraceError
from headrace.errors import CacheError, SourceError, redact
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.listing import expand_braces
from headrace.store import retry
from headrace.store.lease import lease
from headrace.store.ledger import read_ledger
from headrace.testing import FaultProxy, Faults, web_server

Tree = Callable[[str | Path], dict[str, bytes]]
SMALL: dict[str, Any] = {"part_bytes": 1 << 20, "chunk_tokens": 4096, "progress": False}
SECRET = "hunter2hunter2"


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """A folder to be served, with three files."""
    folder = tmp_path / "web"
    folder.mkdir()
    for i in range(3):
        lines = [json.dumps({"text": f"file {i} line {j} " * 20}) for j in range(1000)]
        (folder / f"{i}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_that_answers_503_for_a_while(
    web: Path, tmp_path: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retry._Process, "policy", replace(retry.policy(), first_delay_s=0.005))
    with (
        web_server(web) as server,
        FaultProxy(server, Faults(error_rate=0.3, cut_rate=0.1, methods=("GET",))) as proxy,
    ):
        urls = [f"{proxy.url}/{i}.jsonl" for i in range(3)]
        build_cache(
            SourceConfig(urls), TokenizerConfig(), str(tmp_path / "c"), engine="inline", **SMALL
        )
        assert proxy.count(fate="error") + proxy.count(fate="cut") > 0
    build_cache(
        SourceConfig([str(web)]), TokenizerConfig(), str(tmp_path / "d"), engine="inline", **SMALL
    )
    ours, theirs = (
        {n: b for n, b in tree(tmp_path / d).items() if not n.startswith("ledger.")} for d in "cd"
    )
    assert ours == theirs


def test_a_store_that_does_not_come_back_is_an_error_and_a_resume_completes(
    web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        retry._Process, "policy", replace(retry.policy(), first_delay_s=0.005, deadline_s=0.1)
    )
    with web_server(web) as server, FaultProxy(server) as proxy:
        config = SourceConfig([f"{proxy.url}/{i}.jsonl" for i in range(3)])
        listed = config.files()
        proxy.faults = Faults(
            error_rate=1.0, error_status=(503,), methods=("GET",), path_contains="1.jsonl"
        )
        monkeypatch.setattr(
            SourceConfig, "files", lambda *_: listed
        )  # it was there when it was listed
        for first_look in (True, False):
            with pytest.raises(
                SourceError, match=r"1\.jsonl: cannot be read.*[Rr]un the same command again"
            ):
                build_cache(
                    config,
                    TokenizerConfig(),
                    str(tmp_path / "c"),
                    engine="inline",
                    first_look=first_look,
                    **{**SMALL, "part_bytes": 1},
                )
        proxy.faults = Faults()
        report = build_cache(
            config, TokenizerConfig(), str(tmp_path / "c"), **{**SMALL, "part_bytes": 1}
        )
    assert (report.parts_built, report.parts_reused, report.documents) == (2, 1, 3000)


def test_credentials_are_written_nowhere(
    web: Path, tmp_path: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        retry._Process, "policy", replace(retry.policy(), first_delay_s=0.005, deadline_s=0.1)
    )
    with web_server(web) as server:
        host = server.removeprefix("http://")
        urls = [f"http://{host}/{i}.jsonl?X-Amz-Signature={SECRET}&n={i}" for i in range(3)]
        config = SourceConfig(urls)
        assert [f.format for f in config.files()] == ["jsonl"] * 3
        build_cache(config, TokenizerConfig(), str(tmp_path / "c"), engine="inline", **SMALL)
        other = SourceConfig([u.replace(SECRET, "signed-anew") for u in urls])
        assert build_cache(other, TokenizerConfig(), str(tmp_path / "c"), **SMALL).parts_built == 0
        (web / "1.jsonl").write_text("{\n")
        with pytest.raises(SourceError) as caught:
            build_cache(config, TokenizerConfig(), str(tmp_path / "d"), engine="inline", **SMALL)
        assert SECRET not in str(caught.value)
    with pytest.raises(HeadraceError) as caught:
        build_cache(
            SourceConfig([f"http://me:{SECRET}@127.0.0.1:9/a.jsonl"]),
            TokenizerConfig(),
            str(tmp_path / "e"),
            **SMALL,
        )
    assert SECRET not in str(caught.value)
    written = b"".join(tree(tmp_path).values())
    assert SECRET.encode() not in written
    assert b"X-Amz-Signature=***" in written


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no URL: me:secret@host", "no URL: me:secret@host"),
        ("https://me:pw@host/x", "https://***@host/x"),
        ("https://token@host/x?a=1", "https://***@host/x?a=***"),
        ("gs://bucket/a?access_token=abc#f", "gs://bucket/a?access_token=***#f"),
        ("az://c/b?sv=1&sig=abc%2F&se=2", "az://c/b?sv=***&sig=***&se=***"),
        (
            "https://h/a?X-Amz-Credential=AKIA%2F1&X-Amz-Date=2",
            "https://h/a?X-Amz-Credential=***&X-Amz-Date=2",
        ),
        ("'https://a:b@h' and 'https://c:d@h'", "'https://***@h' and 'https://***@h'"),
    ],
)
def test_what_is_redacted(text: str, shown: str):
    assert redact(text) == shown


def test_two_builders_at_once(web: Path, tmp_path: Path):
    with (
        lease(str(tmp_path / "c")),
        pytest.raises(CacheError, match=rf"is being written by process {os.getpid()} on"),
    ):
        build_cache(SourceConfig([str(web)]), TokenizerConfig(), str(tmp_path / "c"), **SMALL)
    assert (
        build_cache(
            SourceConfig([str(web)]), TokenizerConfig(), str(tmp_path / "c"), **SMALL
        ).documents
        == 3000
    )


def test_a_full_disk_under_workers(tmp_path: Path, tree: Tree):
    """The system lets no file of a worker grow beyond a megabyte: seen from within, that is a full
    disk.
    """
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": "x" * 3000}) + "\n" for _ in range(2000))
    )
    program = f"""
        import resource, signal
        from headrace.errors import HeadraceError
        from headrace.ingest.build import build_cache
        from headrace.ingest.source import SourceConfig
        from headrace.ingest.tokenize import TokenizerConfig
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        source, output = SourceConfig([{str(tmp_path / "a.jsonl")!r}]), {str(tmp_path / "c")!r}
        try:
            build_cache(source, TokenizerConfig(), output, engine="pool", workers=2, **{SMALL!r})
        except HeadraceError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert "cannot be written" in done.stdout
    ledger = read_ledger(str(tmp_path / "c"))
    assert ledger is not None
    assert not ledger.finished
    config = SourceConfig([str(tmp_path / "a.jsonl")])
    build_cache(config, TokenizerConfig(), str(tmp_path / "c"), engine="inline", **SMALL)
    build_cache(config, TokenizerConfig(), str(tmp_path / "fresh"), engine="inline", **SMALL)
    assert tree(tmp_path / "c") == tree(tmp_path / "fresh")


def test_a_file_that_changes_under_workers(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * 3000}) + "\n" for _ in range(1000)))
    config = SourceConfig([str(path)])

    def touched(self: SourceConfig, *given: Any) -> Any:
        listed = files(self, *given)
        time.sleep(0.01)
        with path.open("a") as f:  # after it was listed
            f.write('{"text": "late"}\n')
        return listed

    files = SourceConfig.files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceConfig, "files", touched)
        with pytest.raises(SourceError, match=r"a\.jsonl: changed while the cache was being built"):
            build_cache(
                config, TokenizerConfig(), str(tmp_path / "c"), engine="pool", workers=2, **SMALL
            )
    assert build_cache(config, TokenizerConfig(), str(tmp_path / "c"), **SMALL).documents == 1001


def test_braces(tmp_path: Path):
    for i in range(12):
        (tmp_path / f"part-{i:02d}.jsonl").write_text("{}\n")
    (tmp_path / "{a,b}.jsonl").write_text("{}\n")
    found = SourceConfig(
        [f"{tmp_path}/part-{{03..05,11}}.jsonl", f"{tmp_path}/part-{{07..08}}.jsonl"]
    )
    with pytest.raises(SourceError, match="does not exist"):  # a range is no choice among others
        found.files()
    found = SourceConfig([f"{tmp_path}/part-{{07..08}}.jsonl", f"{tmp_path}/{{a,b}}.jsonl"])
    assert [os.path.basename(f.path) for f in found.files()] == [
        "part-07.jsonl",
        "part-08.jsonl",
        "{a,b}.jsonl",
    ]
    assert expand_braces("a{}b{c") == ["a{}b{c"]
    with pytest.raises(HeadraceError, match="more than 100,000"):
        expand_braces("{0..9}{0..9}{0..9}{0..9}{0..9}{0..9}")
