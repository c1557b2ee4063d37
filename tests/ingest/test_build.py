"""Building a cache: what is in it, what is refused, and that an interrupted build ends as a whole
one would.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import HeadraceError
from headrace.errors import (
    CacheError,
    CacheUnfinishedError,
    ConfigError,
    PlanMismatchError,
    SourceError,
)
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache, resume
from headrace.ingest.build import BuildReport
from headrace.ingest.tokenize import load_tokenizer, recorded_tokenizer
from headrace.store import open_cache, snapshots
from headrace.store.ledger import read_ledger

Tree = Callable[[str | Path], dict[str, bytes]]
SMALL = {"part_bytes": 200, "chunk_tokens": 32, "shard_chunks": 4, "progress": False}


def build(
    corpus: Path, output: Path, tokenizer: TokenizerConfig | None = None, **settings: Any
) -> BuildReport:
    source = {k: settings.pop(k) for k in ("format", "text_field", "on_bad_line") if k in settings}
    config = SourceConfig([str(corpus)], **source)
    return build_cache(config, tokenizer or TokenizerConfig(), str(output), **{**SMALL, **settings})


def write(
    corpus: Path, write_jsonl: Callable[..., str], files: int = 5, documents: int = 8
) -> list[str]:
    """A corpus of some files; its documents in order."""
    every: list[str] = []
    for i in range(files):
        texts = [
            f"file {i} document {j}: " + "é日x " * ((i * j) % 9) if j % 5 else ""
            for j in range(documents)
        ]
        write_jsonl(corpus / f"{i}.jsonl", texts)
        every += texts
    return every


@given(
    texts_of_files=st.lists(
        st.lists(st.text(max_size=30), min_size=1, max_size=5), min_size=1, max_size=4
    ),
    policy=st.sampled_from([("none", "auto"), ("auto", "auto"), ("none", "none")]),
    use_bpe=st.booleans(),
)
@settings(max_examples=25)
def test_a_cache_holds_its_documents(
    tmp_path_factory: pytest.TempPathFactory,
    write_jsonl: Callable[..., str],
    bpe_path: str,
    texts_of_files: list[list[str]],
    policy: tuple[str, str],
    use_bpe: bool,
):
    folder = tmp_path_factory.mktemp("build")
    for i, texts in enumerate(texts_of_files):
        write_jsonl(folder / "corpus" / f"{i}.jsonl", texts)
    config = TokenizerConfig(bpe_path if use_bpe else "bytes", bos=policy[0], eos=policy[1])
    report = build(folder / "corpus", folder / "cache", config, part_bytes=60)
    cache = open_cache(str(folder / "cache"))
    tokenizer = recorded_tokenizer(cache.path, cache.ledger.tokenizer)
    every = [t for texts in texts_of_files for t in texts]
    assert report.documents == cache.num_documents == len(every)
    assert report.tokens == cache.num_tokens == int(cache.lengths().sum())
    assert report.text_bytes == sum(len(t.encode()) for t in every)
    assert report.empty_documents == every.count("")
    for i, text in enumerate(every):
        assert tokenizer.decode(cache.document(i)) == (tokenizer.bos or "") + text + (
            tokenizer.eos or ""
        )
    assert cache.dtype == np.uint16


def test_the_order_is_that_of_the_sorted_paths_over_all_parts(
    tmp_path: Path, write_jsonl: Callable[..., str]
):
    every = write(tmp_path / "corpus", write_jsonl, files=12)
    report = build(tmp_path / "corpus", tmp_path / "cache")
    assert report.parts_built > 3
    cache = open_cache(str(tmp_path / "cache"))
    order = sorted(range(12), key=lambda i: f"{i}.jsonl")
    want = [t for i in order for t in every[i * 8 : i * 8 + 8]]
    tokenizer = load_tokenizer(TokenizerConfig())
    assert cache.tokens(0, cache.num_tokens).tolist() == tokenizer.encode_batch(want)[0].tolist()


def test_the_same_input_gives_the_same_tree(
    tmp_path: Path, write_jsonl: Callable[..., str], bpe_path: str, tree: Tree
):
    write(tmp_path / "corpus", write_jsonl)
    for name in ("a", "b"):
        build(tmp_path / "corpus", tmp_path / name, TokenizerConfig(bpe_path))
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert set(os.listdir(tmp_path / "a")) == {
        "ledger.bin",
        "ledger.json",
        "tokenizer.json",
        "parts",
    }
    assert str(tmp_path / "a") not in (tmp_path / "a" / "ledger.json").read_text()


def test_text_files_and_mixed_formats(tmp_path: Path, write_jsonl: Callable[..., str]):
    write_jsonl(tmp_path / "corpus" / "a.jsonl", ["one", "two"])
    (tmp_path / "corpus" / "b.txt").write_text("three\nfour\n")
    build(tmp_path / "corpus", tmp_path / "cache", TokenizerConfig(eos="none"))
    cache = open_cache(str(tmp_path / "cache"))
    assert [bytes(cache.document(i).tolist()) for i in range(3)] == [
        b"one",
        b"two",
        b"three\nfour\n",
    ]


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, ("uint16", 65536, "none")),
        ({"dtype": "uint32", "chunk_tokens": 10, "compression": "zstd"}, ("uint32", 10, "zstd")),
    ],
)
def test_the_layout_is_what_was_asked_for(
    tmp_path: Path,
    write_jsonl: Callable[..., str],
    options: dict[str, Any],
    layout: tuple[str, int, str],
):
    every = write(tmp_path / "corpus", write_jsonl)
    config = SourceConfig([str(tmp_path / "corpus")])
    build_cache(config, TokenizerConfig(), str(tmp_path / "cache"), progress=False, **options)
    cache = open_cache(str(tmp_path / "cache"))
    assert (cache.layout.dtype, cache.layout.chunk_elements, cache.layout.compression) == layout
    assert cache.num_documents == len(every)


class TestResume:
    def test_a_finished_cache_is_left_alone(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree
    ):
        write(tmp_path / "corpus", write_jsonl)
        first = build(tmp_path / "corpus", tmp_path / "cache")
        before = tree(tmp_path / "cache")
        times = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")}
        second = build(tmp_path / "corpus", tmp_path / "cache")
        assert (second.parts_built, second.parts_reused) == (0, first.parts_built)
        assert (second.documents, second.tokens) == (first.documents, first.tokens)
        assert tree(tmp_path / "cache") == before
        assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")} == times

    def test_after_an_error_the_same_command_goes_on(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree, bpe_path: str
    ):
        corpus = tmp_path / "corpus"
        config = TokenizerConfig(bpe_path)
        write(corpus, write_jsonl)
        good = (corpus / "3.jsonl").read_bytes()
        (corpus / "3.jsonl").write_bytes(
            good.replace(b'"text"', b'"txet"', 1)
        )  # of the same size: the plan stays
        with pytest.raises(SourceError, match=r"3\.jsonl, line 1"):
            build(corpus, tmp_path / "cache", config, first_look=False)
        with pytest.raises(CacheUnfinishedError):
            open_cache(str(tmp_path / "cache"))
        (corpus / "3.jsonl").write_bytes(good)
        report = build(corpus, tmp_path / "cache", config)
        assert report.parts_reused > 0
        assert report.parts_built > 0
        build(corpus, tmp_path / "fresh", config)
        assert tree(tmp_path / "cache") == tree(tmp_path / "fresh")

    def test_counters_of_finished_parts_are_remembered(
        self, tmp_path: Path, write_jsonl: Callable[..., str]
    ):
        corpus = tmp_path / "corpus"
        write(corpus, write_jsonl)
        for i in (0, 4):
            with (corpus / f"{i}.jsonl").open("a") as f:
                f.write("not json\n")
        whole = build(corpus, tmp_path / "cache", on_bad_line="skip")
        assert whole.skipped_lines == 2
        assert whole.first_skipped.startswith(f"{corpus}/0.jsonl, line 9: ")
        last = sorted((tmp_path / "cache" / "parts").iterdir())[-1]
        (last / "part.json").unlink()
        again = build(corpus, tmp_path / "cache", on_bad_line="skip")
        assert again.parts_built == 1
        for name in (
            "documents",
            "tokens",
            "skipped_lines",
            "first_skipped",
            "empty_documents",
            "text_bytes",
        ):
            assert getattr(again, name) == getattr(whole, name)
        assert 0 < again.tokens_built < again.tokens

    def test_a_part_that_was_deleted_is_built_again(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree
    ):
        write(tmp_path / "corpus", write_jsonl)
        build(tmp_path / "corpus", tmp_path / "cache")
        before = tree(tmp_path / "cache")
        for path in sorted((tmp_path / "cache" / "parts" / "00001").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        assert build(tmp_path / "corpus", tmp_path / "cache").parts_built == 1
        assert tree(tmp_path / "cache") == before

    def test_while_a_part_is_built_again_the_cache_is_unfinished(
        self, tmp_path: Path, write_jsonl: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ):
        write(tmp_path / "corpus", write_jsonl)
        build(tmp_path / "corpus", tmp_path / "cache")
        (tmp_path / "cache" / "parts" / "00001" / "part.json").unlink()

        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("headrace.ingest.part_builder.run_tasks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "corpus", tmp_path / "cache")
        with pytest.raises(CacheUnfinishedError):
            open_cache(str(tmp_path / "cache"))

    def test_second_attempts_that_a_killed_builder_left_are_removed(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree
    ):
        write(tmp_path / "corpus", write_jsonl)
        build(tmp_path / "corpus", tmp_path / "cache")
        before = tree(tmp_path / "cache")
        (tmp_path / "cache" / "attempts" / "00001-7" / "parts").mkdir(parents=True)
        build(tmp_path / "corpus", tmp_path / "cache")
        assert tree(tmp_path / "cache") == before
        assert not (tmp_path / "cache" / "attempts").exists()

    @pytest.mark.parametrize(
        ("tokenizer", "options", "message"),
        [
            (TokenizerConfig(eos="none"), {}, "eos '<eos>' there, none now"),
            (None, {"chunk_tokens": 64}, "chunk_elements 32 there, 64 now"),
            (None, {"dtype": "uint32"}, "dtype 'uint16' there, 'uint32' now"),
            (None, {"part_bytes": 100}, "part_bytes 200 there, 100 now"),
        ],
    )
    def test_other_settings_are_refused(
        self,
        tmp_path: Path,
        write_jsonl: Callable[..., str],
        tree: Tree,
        tokenizer: TokenizerConfig | None,
        options: dict[str, Any],
        message: str,
    ):
        write(tmp_path / "corpus", write_jsonl)
        build(tmp_path / "corpus", tmp_path / "cache")
        before = tree(tmp_path / "cache")
        with pytest.raises(PlanMismatchError, match=message):
            build(tmp_path / "corpus", tmp_path / "cache", tokenizer, **options)
        assert tree(tmp_path / "cache") == before
        build(tmp_path / "corpus", tmp_path / "cache", tokenizer, restart=True, **options)
        build(tmp_path / "corpus", tmp_path / "fresh", tokenizer, **options)
        assert tree(tmp_path / "cache") == tree(tmp_path / "fresh")

    @pytest.mark.parametrize("engine", ["inline", "pool"])
    def test_bad_lines_may_be_skipped_when_a_build_is_resumed(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree, engine: str
    ):
        corpus = tmp_path / "corpus"
        write(corpus, write_jsonl)
        with (corpus / "4.jsonl").open("a") as f:
            f.write("not json\n")
        how = {"engine": engine, "workers": 1}
        with pytest.raises(SourceError, match=r"4\.jsonl, line 9") as caught:
            build(corpus, tmp_path / "cache", first_look=False, **how)
        assert "--restart" not in (caught.value.cure or "")
        resumed = build(corpus, tmp_path / "cache", on_bad_line="skip", **how)
        assert resumed.parts_reused > 0
        assert resumed.skipped_lines == 1
        build(corpus, tmp_path / "fresh", on_bad_line="skip")
        assert tree(tmp_path / "cache") == tree(tmp_path / "fresh")

    def test_a_finished_cache_without_bad_lines_is_kept_under_other_rules(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree
    ):
        write(tmp_path / "corpus", write_jsonl)
        for begun, now in (("error", "skip"), ("skip", "error")):
            cache = tmp_path / begun
            build(tmp_path / "corpus", cache, on_bad_line=begun)
            before = tree(cache)
            assert build(tmp_path / "corpus", cache, on_bad_line=now).parts_built == 0
            assert tree(cache) == before

    def test_lines_that_were_skipped_are_an_error_once_they_may_not_be(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree
    ):
        corpus = tmp_path / "corpus"
        write(corpus, write_jsonl)
        with (corpus / "2.jsonl").open("a") as f:
            f.write("not json\n")
        build(corpus, tmp_path / "cache", on_bad_line="skip")
        before = tree(tmp_path / "cache")
        with pytest.raises(SourceError, match=r"2\.jsonl, line 9") as caught:
            build(corpus, tmp_path / "cache")
        assert (caught.value.field, caught.value.value) == ("on_bad_line", "error")
        assert tree(tmp_path / "cache") == before

    def test_another_tokenizer_is_refused_by_content(
        self,
        tmp_path: Path,
        write_jsonl: Callable[..., str],
        bpe_path: str,
        make_tokenizer: Callable[[list[str]], str],
    ):
        write(tmp_path / "corpus", write_jsonl)
        build(tmp_path / "corpus", tmp_path / "cache", TokenizerConfig(bpe_path))
        copy = tmp_path / "copy.json"
        copy.write_bytes(Path(bpe_path).read_bytes())
        assert (
            build(tmp_path / "corpus", tmp_path / "cache", TokenizerConfig(str(copy))).parts_built
            == 0
        )
        with pytest.raises(PlanMismatchError, match="tokenizer"):
            build(
                tmp_path / "corpus",
                tmp_path / "cache",
                TokenizerConfig(make_tokenizer(["<pad>", "<s>", "</s>"])),
            )

    def test_a_source_that_changed_after_its_part_was_built(
        self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree
    ):
        corpus = tmp_path / "corpus"
        write(corpus, write_jsonl)
        build(corpus, tmp_path / "cache")
        with (corpus / "1.jsonl").open("a") as f:
            f.write('{"text": "late"}\n')
        with pytest.raises(
            SourceError,
            match=r"1\.jsonl: changed after its part was built.*--restart.*again after: rm -r (\S+)",
        ) as e:
            build(corpus, tmp_path / "cache")
        # Both ways out that the message offers work.
        stale = Path(str(e.value).split("rm -r ")[1].split()[0].rstrip("."))
        subprocess.run(["rm", "-r", str(stale)], check=True)
        repaired = build(corpus, tmp_path / "cache")
        assert repaired.parts_built == 1
        assert repaired.documents == 41
        assert build(corpus, tmp_path / "cache", restart=True).documents == 41
        build(corpus, tmp_path / "fresh")
        assert tree(tmp_path / "cache") == tree(tmp_path / "fresh")

    def test_files_that_come_or_go_are_refused(
        self, tmp_path: Path, write_jsonl: Callable[..., str]
    ):
        corpus = tmp_path / "corpus"
        write(corpus, write_jsonl)
        build(corpus, tmp_path / "cache")
        write_jsonl(corpus / "9.jsonl", ["new"])
        with pytest.raises(PlanMismatchError, match=r"1 source file added \(\S+9\.jsonl\)"):
            build(corpus, tmp_path / "cache")
        (corpus / "9.jsonl").unlink()
        (corpus / "0.jsonl").unlink()
        with pytest.raises(PlanMismatchError, match=r"1 source file missing \(\S+0\.jsonl\)"):
            build(corpus, tmp_path / "cache")


def test_restart_takes_the_records_of_the_parts_first(
    tmp_path: Path, write_jsonl: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    """A part whose record is there counts as complete, so a kill amid the deletion may leave none
    without its part.
    """
    write(tmp_path / "corpus", write_jsonl)
    parts = build(tmp_path / "corpus", tmp_path / "cache").parts_built
    removed: list[str] = []
    for module in (resume, snapshots):
        real = module.remove_tree
        monkeypatch.setattr(
            module, "remove_tree", lambda url, real=real: removed.append(url) or real(url)
        )
    build(tmp_path / "corpus", tmp_path / "cache", restart=True)
    names = [r.removeprefix(f"{tmp_path}/cache/") for r in removed]
    records = [name for name in names[: names.index("parts")] if name.endswith("/part.json")]
    assert len(records) == parts
    rest = ["snapshots.json", "appended", "parts", "tokenizer.json", "ledger.bin", "ledger.json"]
    assert [name for name in names if name in rest] == rest


class TestBadInput:
    def test_nothing_of_anybody_elses_is_touched(
        self, tmp_path: Path, write_jsonl: Callable[..., str]
    ):
        write(tmp_path / "corpus", write_jsonl)
        output = tmp_path / "home"
        output.mkdir()
        (output / "thesis.tex").write_text("years of work")
        for restart in (False, True):
            with pytest.raises(CacheError, match=r"other things than a token cache \(thesis.tex\)"):
                build(tmp_path / "corpus", output, restart=restart)
        assert os.listdir(output) == ["thesis.tex"]
        with pytest.raises(CacheError, match="is a file"):
            build(tmp_path / "corpus", output / "thesis.tex")

    def test_a_vocabulary_larger_than_the_dtype(
        self, tmp_path: Path, write_jsonl: Callable[..., str]
    ):
        write(tmp_path / "corpus", write_jsonl)
        with pytest.raises(
            ConfigError, match=r"layout.dtype = 'uint8': cannot hold a vocabulary of 258.*uint16"
        ):
            build(tmp_path / "corpus", tmp_path / "cache", dtype="uint8")
        assert not (tmp_path / "cache").exists()

    @pytest.mark.parametrize(
        ("content", "options", "message"),
        [
            ("", {}, "empty source"),
            ("\n \n\r\n", {}, "empty source: it holds no documents"),
            (
                "17\n[]\n",
                {"on_bad_line": "skip"},
                "a.jsonl, line 1: holds a JSON number",
            ),
            ('{"a": 1}\n', {"on_bad_line": "skip"}, "no field 'text'"),
        ],
    )
    def test_an_empty_source(
        self, tmp_path: Path, content: str, options: dict[str, Any], message: str
    ):
        (tmp_path / "a.jsonl").write_text(content)
        with pytest.raises(SourceError, match=message):
            build(tmp_path / "a.jsonl", tmp_path / "cache", **options)
        (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
        assert build(tmp_path / "a.jsonl", tmp_path / "cache", restart=True).documents == 1

    def test_settings_are_checked_before_anything_is_written(
        self, tmp_path: Path, write_jsonl: Callable[..., str]
    ):
        write(tmp_path / "corpus", write_jsonl)
        for options in (
            {"chunk_tokens": 0},
            {"compression": "lz4"},
            {"dtype": "float32"},
            {"part_bytes": 0},
        ):
            with pytest.raises(ConfigError):
                build(tmp_path / "corpus", tmp_path / "cache", **options)
        with pytest.raises(ConfigError, match="read from, not written to"):
            build_cache(
                SourceConfig([str(tmp_path / "corpus")]),
                TokenizerConfig(),
                "https://example.org/cache",
            )
        assert not (tmp_path / "cache").exists()

    def test_an_output_that_cannot_be_written(
        self, tmp_path: Path, write_jsonl: Callable[..., str]
    ):
        write(tmp_path / "corpus", write_jsonl)
        (tmp_path / "file").touch()
        for output in ("/proc/headrace", str(tmp_path / "file" / "cache")):
            with pytest.raises(HeadraceError, match="cannot be written"):
                build_cache(
                    SourceConfig([str(tmp_path / "corpus")]),
                    TokenizerConfig(),
                    output,
                    progress=False,
                )

    @pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
    def test_a_read_only_output(self, tmp_path: Path, write_jsonl: Callable[..., str]):
        write(tmp_path / "corpus", write_jsonl)
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(CacheError, match=r"cannot be written \(Permission denied\)"):
            build(tmp_path / "corpus", tmp_path / "locked" / "cache")

    def test_a_full_disk(self, tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree):
        """The system lets no file grow beyond 500 kB: what is seen from within is what a full disk
        gives.
        """
        corpus = tmp_path / "corpus"
        layout = {**SMALL, "shard_chunks": 1 << 14}
        write(corpus, write_jsonl)
        write_jsonl(corpus / "3.jsonl", ["x" * 200_000])
        program = f"""
            import resource, signal
            from headrace.errors import HeadraceError
            from headrace.ingest.build import build_cache
            from headrace.ingest.source import SourceConfig
            from headrace.ingest.tokenize import TokenizerConfig
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
            source, output = SourceConfig([{str(corpus)!r}]), {str(tmp_path / "cache")!r}
            try:
                build_cache(source, TokenizerConfig(), output, **{layout!r})
            except HeadraceError as error:
                print(error)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "cannot be written" in done.stdout
        assert "free space, then run the same command again" in done.stdout
        assert done.stdout.count("\n") == 1
        ledger = read_ledger(str(tmp_path / "cache"))
        assert ledger is not None
        assert not ledger.finished
        report = build(corpus, tmp_path / "cache", **layout)
        assert report.parts_reused > 0
        build(corpus, tmp_path / "fresh", **layout)
        assert tree(tmp_path / "cache") == tree(tmp_path / "fresh")


def test_a_report_is_json(tmp_path: Path, write_jsonl: Callable[..., str]):
    write(tmp_path / "corpus", write_jsonl)
    report = build(tmp_path / "corpus", tmp_path / "cache")
    assert json.loads(json.dumps(report.to_dict()))["documents"] == 40
