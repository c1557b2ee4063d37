"""Sources that go wrong while a cache is built: a clear error or a counted policy, and the same
call then completes it.

Each case spoils one file of several, builds, mends the file, builds again: the cache is the same to
the bit as one that was built of sound files from the start. (Full disks: test_ingest_faults.py and
test_build.py; outages of stores: tests/store/test_store_build_outages.py.)
"""

import gzip
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import HeadraceError
from headrace.cli.inspect import build_command
from headrace.errors import (
    CacheError,
    CacheUnfinishedError,
    ConfigError,
    PlanMismatchError,
    SourceError,
)
from headrace.ingest import ChatConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.build import BuildReport
from headrace.ingest.choices import Kind, SpecialTokensInText
from headrace.ingest.repair import repair
from headrace.ingest.tokenize import load_tokenizer
from headrace.store import open_cache, verify
from headrace.store.lease import lease

Tree = Callable[[str | Path], dict[str, bytes]]
FILES = 5
LINES = 40
BAD = "2.jsonl.gz"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Packed files, of which each is a part."""
    (tmp_path / "corpus").mkdir()
    for i in range(FILES):
        (tmp_path / "corpus" / f"{i}.jsonl.gz").write_bytes(packed(i))
    return tmp_path / "corpus"


def packed(i: int, lines: int = LINES) -> bytes:
    text = "".join(
        json.dumps({"text": f"file {i}, line {j}, Ünïcode"}, ensure_ascii=False) + "\n"
        for j in range(lines)
    )
    return gzip.compress(text.encode(), mtime=0)


def build(
    corpus: Path, root: Path, engine: Any = "inline", *, first_look: bool = True, **options: Any
) -> BuildReport:
    return build_cache(
        SourceConfig([str(corpus)], **options),
        TokenizerConfig(),
        str(root),
        part_bytes=1,
        chunk_tokens=512,
        shard_chunks=4,
        progress=False,
        engine=engine,
        workers=2,
        first_look=first_look,
    )


def spoil(path: Path, how: str) -> None:
    sound = path.read_bytes()
    text = gzip.decompress(sound)
    if how == "truncated":
        path.write_bytes(sound[:-20])
    elif how == "damaged":
        path.write_bytes(sound[:40] + bytes([sound[40] ^ 0xFF]) + sound[41:])
    elif how == "bad utf-8":
        path.write_bytes(gzip.compress(text.replace("Ü".encode(), b"\xff", 1), mtime=0))
    elif how == "bad json":
        path.write_bytes(gzip.compress(text.replace(b"}\n", b"\n", 1), mtime=0))
    elif how == "no field":
        path.write_bytes(gzip.compress(text.replace(b'"text"', b'"test"', 1), mtime=0))


@pytest.mark.parametrize(
    ("how", "engine", "message"),
    [
        (
            "truncated",
            "pool",
            r"2\.jsonl\.gz.*(ends too early|cut off|truncated|not complete|ends before)",
        ),
        ("damaged", "inline", r"2\.jsonl\.gz.*(damaged|cannot be (unpacked|read))"),
        ("bad utf-8", "inline", r"2\.jsonl\.gz, line 1: .*UTF-8"),
        ("bad json", "inline", r"2\.jsonl\.gz, line 1: is not valid JSON"),
        ("no field", "inline", r"2\.jsonl\.gz, line 1: .*'text'"),
    ],
)
def test_an_error_then_mended(
    corpus: Path, tmp_path: Path, tree: Tree, how: str, engine: Any, message: str
):
    sound = (corpus / BAD).read_bytes()
    stamp = (corpus / BAD).stat()
    spoil(corpus / BAD, how)
    with pytest.raises(SourceError, match=message):
        build(corpus, tmp_path / "c", engine, first_look=False)
    with pytest.raises(CacheUnfinishedError):
        open_cache(tmp_path / "c")
    (corpus / BAD).write_bytes(sound)
    os.utime(corpus / BAD, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    report = build(corpus, tmp_path / "c", engine)
    assert (report.documents, report.skipped_lines) == (FILES * LINES, 0)
    assert report.parts_built + report.parts_reused == FILES
    assert report.parts_reused >= (2 if engine == "inline" else 1)
    build(corpus, tmp_path / "fresh")
    assert tree(tmp_path / "c") == tree(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("how", "engine"), [("bad utf-8", "pool"), ("bad json", "inline"), ("no field", "inline")]
)
def test_bad_lines_are_counted_if_told_so(
    corpus: Path, tmp_path: Path, tree: Tree, how: str, engine: Any
):
    spoil(corpus / BAD, how)
    report = build(corpus, tmp_path / "c", engine, on_bad_line="skip")
    assert (report.documents, report.skipped_lines) == (FILES * LINES - 1, 1)
    assert report.first_skipped.startswith(f"{corpus / BAD}, line 1: ")
    (tmp_path / "c" / "parts" / "00002" / "part.json").unlink()
    again = build(corpus, tmp_path / "c", engine, on_bad_line="skip")
    assert (again.parts_built, again.skipped_lines, again.first_skipped) == (
        1,
        1,
        report.first_skipped,
    )
    build(corpus, tmp_path / "fresh", on_bad_line="skip")
    assert tree(tmp_path / "c") == tree(tmp_path / "fresh")


def test_no_policy_hides_a_file_that_is_cut_off(corpus: Path, tmp_path: Path):
    spoil(corpus / BAD, "truncated")
    with pytest.raises(SourceError, match=r"2\.jsonl\.gz"):
        build(corpus, tmp_path / "c", on_bad_line="skip")


@pytest.mark.parametrize(
    "content", [b"", gzip.compress(b"", mtime=0), gzip.compress(b"\n \n", mtime=0)]
)
def test_an_empty_file_among_others_is_no_error(
    corpus: Path, tmp_path: Path, tree: Tree, content: bytes
):
    (corpus / BAD).write_bytes(content)
    report = build(corpus, tmp_path / "c", "pool")
    assert (report.documents, report.skipped_lines) == ((FILES - 1) * LINES, 0)
    cache = open_cache(tmp_path / "c")
    assert cache.lengths().size == cache.num_documents == report.documents
    build(corpus, tmp_path / "fresh")
    assert tree(tmp_path / "c") == tree(tmp_path / "fresh")


def test_a_file_that_changes_during_the_build(
    corpus: Path, tmp_path: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
):
    """Listed as it was, read as it is: an error; built again, it is taken as it is then."""
    listed = SourceConfig.files

    def changed_after(config: SourceConfig, *given: Any) -> Any:
        found = listed(config, *given)
        time.sleep(0.01)
        (corpus / BAD).write_bytes(packed(2, LINES + 1))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(SourceConfig, "files", changed_after)
        with pytest.raises(
            SourceError, match=r"2\.jsonl\.gz: changed while the cache was being built"
        ):
            build(corpus, tmp_path / "c")
    report = build(corpus, tmp_path / "c")
    assert (report.documents, report.parts_reused) == (FILES * LINES + 1, 2)
    build(corpus, tmp_path / "fresh")
    assert tree(tmp_path / "c") == tree(tmp_path / "fresh")


def test_two_builders_at_once(corpus: Path, tmp_path: Path, tree: Tree):
    """One works; the other is told so, or comes later and finds it done."""
    results: list[BuildReport | HeadraceError] = []

    def one() -> None:
        try:
            results.append(build(corpus, tmp_path / "c"))
        except HeadraceError as error:
            results.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reports = [r for r in results if isinstance(r, BuildReport)]
    assert sum(r.parts_built for r in reports) == FILES
    refused = [r for r in results if not isinstance(r, BuildReport)]
    assert all(
        isinstance(e, CacheError) and "is being written by process" in str(e) for e in refused
    )
    build(corpus, tmp_path / "fresh")
    assert tree(tmp_path / "c") == tree(tmp_path / "fresh")


def test_a_builder_that_looked_before_another_began_is_told_of_it(
    corpus: Path, tmp_path: Path, monkeypatch
):
    output = tmp_path / "c"
    build(corpus, output)
    monkeypatch.setattr("headrace.store.lease.read_ledger", lambda root: None)
    with lease(str(output)), pytest.raises(CacheError, match="is being written by process"):
        build(corpus, output)


READ_ONLY = """
    import ctypes, os, sys
    if os.geteuid() == 0:  # root may write everywhere, unless it gives that up
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        assert [libc.prctl(24, capability, 0, 0, 0) for capability in (1, 2)] == [0, 0]  # for workers, too
        assert libc.capget(header, data) == 0
        data[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        assert libc.capset(header, data) == 0
    from headrace.errors import HeadraceError
    from headrace.ingest.build import build_cache
    from headrace.ingest.source import ChatConfig, SourceConfig
    from headrace.ingest.tokenize import TokenizerConfig
    try:
        build_cache(
            SourceConfig([sys.argv[1]]), TokenizerConfig(), sys.argv[2],
            part_bytes=1, chunk_tokens=512, shard_chunks=4, progress=False, engine=sys.argv[3], workers=2,
        )
    except HeadraceError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="gives up a capability of Linux")
@pytest.mark.parametrize(
    ("place", "engine"), [("", "inline"), ("parts", "inline"), ("parts", "pool")]
)
def test_an_output_that_becomes_read_only(
    corpus: Path, tmp_path: Path, tree: Tree, place: str, engine: str
):
    """Begun, then locked: the folder of the cache, or that of its parts."""
    sound = (corpus / BAD).read_bytes()
    stamp = (corpus / BAD).stat()
    spoil(corpus / BAD, "bad json")
    with pytest.raises(SourceError):
        build(corpus, tmp_path / "c", first_look=False)
    (corpus / BAD).write_bytes(sound)
    os.utime(corpus / BAD, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    locked = tmp_path / "c" / place
    locked.chmod(0o500)
    try:
        command = [
            sys.executable,
            "-c",
            textwrap.dedent(READ_ONLY),
            str(corpus),
            str(tmp_path / "c"),
            engine,
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        locked.chmod(0o700)
    assert "cannot be written" in said
    assert "Permission denied" in said
    assert "then run the same command again" in said
    assert said.count("\n") == 1
    report = build(corpus, tmp_path / "c")
    assert (report.documents, report.parts_reused) == (FILES * LINES, 2)
    build(corpus, tmp_path / "fresh")
    assert tree(tmp_path / "c") == tree(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt"])
def test_a_record_that_is_too_long_is_never_held_and_named_or_counted(tmp_path, name):
    lines = [b'{"text": "one"}', b'{"text": "' + b"x" * (3 << 20) + b'"}', b'{"text": "two"}']
    content = b"\n".join(lines)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "other.txt").write_text("three")
    source = SourceConfig(
        [str(tmp_path / name), str(tmp_path / "other.txt")], max_record_bytes=1 << 20
    )
    place = f"{name}, line {1 if name == 'a.txt' else 2}: has more than 1,048,576 bytes"
    with pytest.raises(SourceError, match=rf"{place}.*--max-record-bytes"):
        build_cache(source, TokenizerConfig("bytes"), str(tmp_path / "cache"), progress=False)
    source = replace(source, on_bad_line="skip")
    report = build_cache(source, TokenizerConfig("bytes"), str(tmp_path / "other"), progress=False)
    assert (report.documents, report.skipped_lines) == ((1, 1) if name == "a.txt" else (3, 1))
    command = build_command(str(tmp_path / "other"), open_cache(str(tmp_path / "other")).ledger)
    assert "--max-record-bytes 1048576" in command
    whole = build_cache(
        replace(source, max_record_bytes=1 << 30),
        TokenizerConfig("bytes"),
        str(tmp_path / "whole"),
        progress=False,
    )
    assert whole.skipped_lines == 0
    assert "max_record_bytes" not in open_cache(str(tmp_path / "whole")).ledger.metadata["source"]


@pytest.mark.parametrize("setting", ["token", "text", "error"])
def test_special_tokens_in_texts_are_what_the_source_says(
    bpe_path: str, tmp_path: Path, write_jsonl: Callable[..., str], setting: SpecialTokensInText
):
    """Each document is what the tokenizer makes of it alone; a refused one is named and counted; a
    build that was begun otherwise is refused, and the ledger says what is not usual.
    """
    texts = ["a b", "x </s> y", "c <s>", "d"]
    source = SourceConfig(
        [write_jsonl(tmp_path / "a.jsonl", texts)], special_tokens_in_text=setting
    )
    tokenizer = TokenizerConfig(bpe_path)
    cache = str(tmp_path / "cache")
    if setting == "error":
        with pytest.raises(
            SourceError,
            match=r"a.jsonl, line 2.*special token '</s>'.*--special-tokens-in-text text",
        ):
            build_cache(source, tokenizer, str(tmp_path / "refused"), progress=False)
        source = replace(source, on_bad_line="skip")
        texts = ["a b", "d"]
    for engine in ("inline", "pool"):
        output = f"{cache}-{engine}"
        report = build_cache(source, tokenizer, output, engine=engine, workers=1, progress=False)
        assert (report.documents, report.skipped_lines) == (len(texts), 4 - len(texts))
        opened = open_cache(output)
        alone = load_tokenizer(tokenizer).reading_special(setting)
        for i, text in enumerate(texts):
            assert opened.document(i).tolist() == alone.encode_batch([text])[0].tolist()
    assert opened.ledger.metadata["source"].get("special_tokens_in_text", "token") == setting
    assert ("special_tokens_in_text" in opened.ledger.metadata["source"]) == (setting != "token")
    assert (f"--special-tokens-in-text {setting}" in build_command(output, opened.ledger)) == (
        setting != "token"
    )
    (tmp_path / "cache-pool/parts/00000/input_ids/data/c/0").unlink()
    assert repair(output, verify(output, deep=True).damages).rebuilt == ["00000"]
    other = replace(source, special_tokens_in_text="text" if setting == "token" else "token")
    with pytest.raises(PlanMismatchError, match="special_tokens_in_text"):
        build_cache(other, tokenizer, output, progress=False)


TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}{% generation %}{{ m.content }}{% endgeneration"
    " %}</s>{% endfor %}"
)
CHATS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "chat",
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {
            "messages": [
                {"role": "user", "content": "a </"},
                {"role": "assistant", "content": "s> b"},
            ]
        },
    ),
    (
        "chat",
        {"messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "user</s>", "content": "a"}]},
    ),
    (
        "preference",
        {"prompt": "p", "chosen": "a", "rejected": "b"},
        {"prompt": "p", "chosen": "a", "rejected": "</s>"},
    ),
    ("prompts", {"prompt": "p"}, {"prompt": "p <s>"}),
]


@pytest.mark.parametrize(("kind", "good", "bad"), CHATS)
def test_special_tokens_in_messages_are_refused_and_those_of_the_template_are_not(
    bpe_path: str, tmp_path: Path, kind: Kind, good: dict[str, Any], bad: dict[str, Any]
):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (good, bad)))
    source = SourceConfig(
        [str(tmp_path / "a.jsonl")], kind=kind, on_bad_line="skip", chat=ChatConfig(TEMPLATE)
    )
    tokenizer = TokenizerConfig(bpe_path)
    documents = 2 if kind == "preference" else 1
    usual = build_cache(source, tokenizer, str(tmp_path / "usual"), progress=False, engine="inline")
    assert (usual.documents, usual.skipped_lines) == (2 * documents, 0)
    source = replace(source, special_tokens_in_text="error")
    report = build_cache(
        source, tokenizer, str(tmp_path / "cache"), progress=False, engine="inline"
    )
    assert (report.documents, report.skipped_lines) == (documents, 1)
    assert "spells out the special token" in report.first_skipped
    caches = [open_cache(str(tmp_path / name)) for name in ("usual", "cache")]
    for i in range(documents):
        assert np.array_equal(*(cache.document(i) for cache in caches))
    source = replace(source, special_tokens_in_text="text")
    with pytest.raises(
        ConfigError, match=f"'text': is not for documents of kind '{kind}'. Say error"
    ):
        build_cache(source, tokenizer, str(tmp_path / "other"), progress=False)


def test_ready_ids_spell_out_nothing(bpe_path: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1, 2]}\n')
    source = SourceConfig([str(tmp_path / "a.jsonl")], kind="tokens", special_tokens_in_text="text")
    with pytest.raises(
        ConfigError, match=r"'text': is not for documents of kind 'tokens'\. Leave it out"
    ):
        build_cache(source, TokenizerConfig(bpe_path), str(tmp_path / "cache"), progress=False)
