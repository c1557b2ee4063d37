"""New sources in a finished cache: what was there stays, kills lose nothing, and what does not fit
is named.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import HeadraceError
from headrace.errors import (
    CacheError,
    CacheUnfinishedError,
    ConfigError,
    PlanMismatchError,
    SourceError,
)
from headrace.ingest import (
    LeafConfig,
    ReshuffleConfig,
    SourceConfig,
    TokenizerConfig,
    append_cache,
    build_cache,
    reshuffle,
)
from headrace.ingest.append import newer_files
from headrace.ingest.source import SourceFile
from headrace.store import TokenCache, consolidate, open_cache
from headrace.store.ledger import read_ledger, write_ledger
from headrace.store.snapshots import SNAPSHOTS_NAME, member_path
from headrace.testing import tiny_cache
from headrace_levanter.export import write_levanter

Tree = Callable[[str | Path], dict[str, bytes]]
QUIET: dict[str, Any] = {"progress": False, "engine": "inline"}


def texts_of(folder: Path, files: int, seed: int) -> str:
    pick = random.Random(seed)
    folder.mkdir()
    for number in range(files):
        lines = (
            json.dumps({"text": " ".join(pick.choices(["alpha", "beta", "Ünder"], k=9)), "id": n})
            for n in range(8)
        )
        (folder / f"{seed}-{number}.jsonl").write_text("\n".join(lines))
    return str(folder)


@pytest.fixture
def cache(tmp_path: Path) -> str:
    source = SourceConfig([texts_of(tmp_path / "old", 3, 1)])
    layout: dict[str, Any] = {"chunk_tokens": 64, "part_bytes": 500}
    build_cache(source, TokenizerConfig("bytes"), str(tmp_path / "cache"), **layout, **QUIET)
    return str(tmp_path / "cache")


def test_snapshots_follow_each_other_and_the_old_ones_stay(cache: str, tmp_path: Path, tree: Tree):
    documents = [open_cache(cache).document(n) for n in range(24)]
    for number, files in ((2, 2), (3, 1)):
        before = tree(cache)
        report = append_cache([texts_of(tmp_path / f"new{number}", files, number)], cache, **QUIET)
        assert (report.path, report.documents) == (f"{cache}/appended/{number - 1}", 8 * files)
        after = tree(cache)
        assert {**after, **before} == {
            **after,
            SNAPSHOTS_NAME: before.get(SNAPSHOTS_NAME, after[SNAPSHOTS_NAME]),
        }
        again = append_cache([str(tmp_path / f"new{number}")], cache, **QUIET)
        assert again.parts_built == 0
        assert tree(cache) == after
    whole = open_cache(cache)
    assert (whole.num_documents, whole.snapshots[0].number) == (48, 3)
    assert open_cache(cache, 2).num_documents == 40
    assert all(np.array_equal(whole.document(n), one) for n, one in enumerate(documents))
    plain = build_cache(
        SourceConfig([str(tmp_path / "new3")]),
        TokenizerConfig("bytes"),
        str(tmp_path / "plain"),
        chunk_tokens=64,
        **QUIET,
    )
    last = open_cache(plain.path)
    assert np.array_equal(whole.document(47), last.document(last.num_documents - 1))
    for copy in (consolidate(whole, str(tmp_path / "copy")), reshuffled(cache, tmp_path)):
        assert copy.num_documents == 48
        assert np.array_equal(copy.document(int(copy.stored_at([30])[0])), whole.document(30))


def reshuffled(cache: str, tmp_path: Path) -> TokenCache:
    output = str(tmp_path / "shuffled")
    reshuffle(cache, output, ReshuffleConfig(7), progress=False, engine="inline")
    return open_cache(output)


def test_settings_are_those_of_the_cache(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"body": "one", "score": 1.5}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "two", "score": 2.5}\n')
    (tmp_path / "c.jsonl").write_text('{"body": "three", "score": 3.5}\n')
    source = SourceConfig(
        [str(tmp_path / "a.jsonl")],
        text_field="body",
        leaves={"score": LeafConfig("score", "float32")},
    )
    output = str(tmp_path / "cache")
    build_cache(
        source,
        TokenizerConfig("bytes", bos=None, eos="none"),
        output,
        compression="zstd",
        dtype="uint32",
        **QUIET,
    )
    append_cache([str(tmp_path / "b.jsonl")], output, source={"text_field": "text"}, **QUIET)
    append_cache([str(tmp_path / "c.jsonl")], output, **QUIET)
    whole = open_cache(output)
    assert whole.layout == open_cache(output).layout
    assert bytes(whole.tokens(0, whole.num_tokens).astype(np.uint8)) == b"onetwothree"
    assert [float(whole.leaf("score").document(n)[0]) for n in range(3)] == [1.5, 2.5, 3.5]


def test_the_copy_of_a_tokenizer_serves_when_the_file_is_gone(tmp_path: Path, bpe_path: str):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(Path(bpe_path).read_bytes())
    output = str(tmp_path / "cache")
    build_cache(
        SourceConfig([texts_of(tmp_path / "old", 1, 1)]),
        TokenizerConfig(str(file), eos="none"),
        output,
        **QUIET,
    )
    file.unlink()
    append_cache([texts_of(tmp_path / "new", 1, 2)], output, **QUIET)
    assert open_cache(output).num_documents == 16


def test_new_documents_may_be_shuffled_among_themselves(tmp_path: Path):
    output = str(tmp_path / "cache")
    old = texts_of(tmp_path / "old", 2, 1)
    new = texts_of(tmp_path / "new", 2, 2)
    how = ReshuffleConfig(3)
    build_cache(SourceConfig([old]), TokenizerConfig("bytes"), output, how=how, **QUIET)
    append_cache([new], output, how=ReshuffleConfig(4), **QUIET)
    assert append_cache([new], output, how=ReshuffleConfig(4), **QUIET).parts_built == 0
    whole = open_cache(output)
    assert whole.is_shuffled
    assert sorted(whole.stored_at(np.arange(32)).tolist()) == list(range(32))
    with pytest.raises(ConfigError, match="was shuffled already in part"):
        reshuffle(output, str(tmp_path / "twice"), ReshuffleConfig(7), progress=False)


def test_bad_input_is_named(cache: str, tmp_path: Path, tree: Tree):
    new = texts_of(tmp_path / "new", 2, 2)
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    before = tree(cache)

    def refused(
        kind: type[HeadraceError], expected: str, paths: list[str], output: str = cache, **how: Any
    ) -> None:
        with pytest.raises(kind) as error:
            append_cache(paths, output, **how, **QUIET)
        assert expected in str(error.value)
        assert tree(cache) == before

    refused(ConfigError, "there is no cache to append to", [new], str(tmp_path / "none"))
    refused(ConfigError, "tokenizer = 'ids:9': is not that of", [new], tokenizer={"path": "ids:9"})
    refused(ConfigError, "tokenizer = 'bytes': is not that of", [new], tokenizer={"eos": "none"})
    refused(
        ConfigError,
        "leaf = ['id']: is not that of",
        [new],
        source={"leaves": {"id": LeafConfig("id", "int64")}},
    )
    refused(ConfigError, "chunk_tokens = 128: is not that of", [new], chunk_tokens=128)
    refused(ConfigError, "compression = 'zstd': is not that of", [new], compression="zstd")
    refused(ConfigError, "dtype = 'uint32': is not that of", [new], dtype="uint32")
    refused(SourceError, "does not exist", [str(tmp_path / "missing")])
    old = f"{tmp_path}/old/1-0.jsonl"
    refused(SourceError, f"is in {cache} already, and no file", [old])
    refused(
        SourceError,
        "already, as 2 others are, and no file is stored twice. Name only",
        [str(tmp_path / "old"), new],
    )
    write_levanter(tiny_cache(), str(tmp_path / "levanter"))
    refused(
        ConfigError,
        "is a store of another system, to which nothing can be appended",
        [new],
        str(tmp_path / "levanter"),
    )
    append_cache([new], cache, **QUIET)
    before = tree(cache)
    refused(
        ConfigError,
        f"was appended to a cache. Name the cache: --output {cache}",
        [old],
        f"{cache}/appended/1",
    )
    refused(SourceError, f"is in {cache}/appended/1 already", [f"{new}/2-0.jsonl"])
    ledger = read_ledger(cache)
    assert ledger is not None
    write_ledger(
        cache,
        type(ledger)(
            **{**{f: getattr(ledger, f) for f in ledger.__struct_fields__}, "finished": False}
        ),
    )
    before = tree(cache)
    refused(CacheUnfinishedError, "was not finished building", [texts_of(tmp_path / "newer", 1, 3)])


def test_a_file_is_known_however_it_is_spelled_and_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("work").mkdir()
    texts_of(Path("old"), 2, 1)
    build_cache(SourceConfig(["old"]), TokenizerConfig("bytes"), "work/../cache", **QUIET)
    Path("link").symlink_to("old")
    for spelled in ("work/../old", str(tmp_path / "old"), "link"):
        with pytest.raises(SourceError, match="is in cache already"):
            append_cache([spelled], "cache", **QUIET)
    monkeypatch.chdir("work")
    with pytest.raises(SourceError, match=r"already, as 1 others are.*touch FILE"):
        append_cache(["../old"], "../cache", **QUIET)
    for file in Path("../old").iterdir():
        file.touch()
    append_cache(["../old"], "../cache", **QUIET)
    assert open_cache("../cache").snapshots[0].number == 2
    assert open_cache("../cache").document(0).size


def test_a_file_that_was_moved_or_renamed_is_not_taken_again(cache: str, tmp_path: Path):
    old = tmp_path / "old"
    renamed = (old / "1-0.jsonl").rename(old / "renamed.jsonl")
    moved = (old / "1-1.jsonl").rename(tmp_path / "1-1.jsonl")
    for path in (renamed, moved):
        with pytest.raises(SourceError, match="already, and no file is stored twice"):
            append_cache([str(path)], cache, **QUIET)
    listed = SourceConfig([str(old), str(moved)]).files()
    newer = newer_files(listed, cache)
    assert (newer.renamed, newer.added, newer.changed) == ([str(renamed)], [], [])
    # a copy beside its original is another file, also if it has its time
    copy = str(shutil.copy2(old / "1-2.jsonl", old / "1-3.jsonl"))
    assert [file.path for file in newer_files([*listed, *files_at(copy)], cache).added] == [copy]
    without_original = [file for file in listed if not file.path.endswith("1-2.jsonl")]
    newer = newer_files([*without_original, *files_at(copy)], cache)
    assert [file.path for file in newer.added] == [copy]
    append_cache([copy], cache, **QUIET)
    assert open_cache(cache).num_documents == 32


def files_at(path: str) -> list[SourceFile]:
    return SourceConfig([path]).files()


def test_lists_that_do_not_fit_are_named(cache: str, tmp_path: Path):
    append_cache([texts_of(tmp_path / "new", 1, 2)], cache, **QUIET)
    list_of = Path(cache, SNAPSHOTS_NAME)
    whole = list_of.read_bytes()
    for raw, expected in (
        (b"{}", "is damaged: it has no seal"),
        (
            whole.replace(b'"version":1', b'"version":2'),
            "another version of headrace: its format is 2, and this one reads 1",
        ),
        (whole.replace(b"sha256:", b"sha257:", 1), "its digest is not that of what it holds"),
    ):
        list_of.write_bytes(raw)
        with pytest.raises(CacheError, match=expected):
            open_cache(cache)
    list_of.write_bytes(whole)
    tiny_cache(Path(cache, "appended", "1"), documents=5)
    with pytest.raises(CacheError, match="is not what was appended"):
        open_cache(cache)


def test_what_was_appended_goes_with_a_cache_that_is_begun_anew(cache: str, tmp_path: Path):
    append_cache([texts_of(tmp_path / "new", 1, 2)], cache, **QUIET)
    source = SourceConfig([str(tmp_path / "old")])
    build_cache(
        source,
        TokenizerConfig("bytes"),
        cache,
        chunk_tokens=64,
        part_bytes=500,
        restart=True,
        **QUIET,
    )
    assert open_cache(cache).num_documents == 24
    assert not Path(member_path(cache, 1)).exists()


def test_another_append_than_the_one_that_was_begun_is_refused(cache: str, tmp_path: Path):
    new = texts_of(tmp_path / "new", 2, 2)
    other = texts_of(tmp_path / "other", 1, 3)
    append_cache([new], cache, **QUIET)
    Path(cache, SNAPSHOTS_NAME).unlink()  # as if it had been killed just before the end
    with pytest.raises(
        PlanMismatchError, match=r"2 source files missing.*begun with, or pass --restart"
    ):
        append_cache([other], cache, **QUIET)
    append_cache([other], cache, restart=True, **QUIET)
    assert append_cache([other], cache, restart=True, **QUIET).parts_built == 0
    assert open_cache(cache).num_documents == 32


def started(command: list[str], cache: str) -> subprocess.Popen[bytes]:
    """An append that has begun to write, or is over."""
    lease = Path(cache, "appended/1/lease.json")
    left = lease.read_bytes() if lease.exists() else b""  # by one that was killed
    running = subprocess.Popen(
        [*command, cache], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while running.poll() is None and (not lease.exists() or lease.read_bytes() == left):
        time.sleep(0.002)
    return running


@pytest.mark.parametrize(
    "most", [pytest.param(10, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.soak)]
)
def test_killed_at_any_moment(cache: str, tmp_path: Path, tree: Tree, most: int):
    """Kills at random moments while the command appends; the cache is read all the while."""
    pick = random.Random(5)
    new = texts_of(tmp_path / "new", 300, 2)
    before = tree(cache)
    first = open_cache(cache)
    reference = str(tmp_path / "reference")
    subprocess.run(["cp", "-r", cache, reference], check=True)
    command = [
        sys.executable,
        "-m",
        "headrace",
        "build",
        new,
        "--append",
        "--part-bytes",
        "2000",
        "--workers",
        "2",
        "-o",
    ]
    with started(command, reference) as running:
        began = time.monotonic()
        running.wait()
    whole = time.monotonic() - began
    kills = 0
    finished = 0
    assert running.returncode == 0
    for _ in range(200):
        if kills == most:
            break
        with started(command, cache) as running:
            time.sleep(pick.uniform(0, whole / 2))
            running.send_signal(signal.SIGKILL)
        kills += running.returncode == -signal.SIGKILL
        held = tree(cache)
        assert all(held[name] == content for name, content in before.items())
        assert np.array_equal(first.document(3), open_cache(cache).document(3))
        assert open_cache(cache).num_documents == (24 + 2400 if SNAPSHOTS_NAME in held else 24)
        if SNAPSHOTS_NAME in held:  # it was over: the next one begins
            assert {n: c for n, c in held.items() if not n.endswith("lease.json")} == tree(
                reference
            )
            subprocess.run(
                ["rm", "-r", f"{cache}/appended", f"{cache}/{SNAPSHOTS_NAME}"], check=True
            )
            finished += 1
    assert kills == most
    subprocess.run([*command, cache], check=True, capture_output=True)
    assert tree(cache) == tree(reference)
    print(f"{kills} kills, of appends that take {whole:.1f} s to write; {finished} had ended")
