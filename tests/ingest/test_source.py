"""Which files make a corpus: order, filters, spelling, and everything that can be wrong with a
path.
"""

import os
from collections import Counter
from pathlib import Path

import fsspec
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.ingest import SourceConfig
from headrace.ingest.records import SourceFile
from headrace.store.files import stat_file
from headrace.testing import tiny_cache, web_server


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x\n")


def names(config: SourceConfig, root: Path) -> list[str]:
    return [os.path.relpath(f.path, root) for f in config.files()]


def test_a_folder_gives_its_files_sorted_and_filtered(tmp_path: Path):
    touch(
        tmp_path,
        "b.jsonl",
        "a/z.txt",
        "a.jsonl.gz",
        "c.zst",
        "d.bin",
        "_SUCCESS",
        ".hidden.txt",
        ".git/x.txt",
    )
    touch(tmp_path, "a/a.ndjson", "e.txt.zst", "f.JSONL", "g.py")
    assert names(SourceConfig([str(tmp_path)]), tmp_path) == [
        "a.jsonl.gz",
        "a/a.ndjson",
        "a/z.txt",
        "b.jsonl",
        "e.txt.zst",
        "f.JSONL",
    ]
    assert names(SourceConfig([str(tmp_path)], format="text"), tmp_path) == ["a/z.txt", "e.txt.zst"]
    assert names(SourceConfig([str(tmp_path)], extensions=[".py"]), tmp_path) == ["g.py"]


def test_what_a_folder_holds_besides_is_counted(tmp_path: Path):
    touch(tmp_path, "a.jsonl", "b.jsonl.bz2", "c.cfg", "d/e.cfg", "d/README", "d/.hidden.cfg")
    left_out: Counter[str] = Counter()
    assert len(SourceConfig([str(tmp_path)]).files(left_out)) == 1
    assert left_out == {".bz2": 1, ".cfg": 2, "README": 1}


def test_a_link_to_nothing_is_named(tmp_path: Path):
    (tmp_path / "a.txt").symlink_to("gone.txt")
    with pytest.raises(
        SourceError,
        match=r"a.txt: is a link to 'gone.txt', which does not exist. Restore that file",
    ):
        SourceConfig([str(tmp_path)]).files()


def test_folders_behind_links_are_read_once(tmp_path: Path):
    touch(tmp_path, "other/x.jsonl", "in/a.jsonl", "in/deep/b.jsonl")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "other")
    (tmp_path / "in" / "deep" / "up").symlink_to(tmp_path / "in")  # a loop
    assert names(SourceConfig([str(tmp_path / "in")]), tmp_path / "in") == [
        "a.jsonl",
        "again/x.jsonl",
        "deep/b.jsonl",
    ]


def test_the_order_of_the_arguments_does_not_matter(tmp_path: Path):
    touch(tmp_path, "a/1.txt", "a/2.txt", "b/1.txt", "c.txt")
    paths = [str(tmp_path / p) for p in ("a", "b", "c.txt")]
    assert SourceConfig(paths).files() == SourceConfig(paths[::-1]).files()


def test_format_and_compression_come_from_the_name(tmp_path: Path):
    touch(tmp_path, "a.jsonl.gz", "b.txt", "c.json.zst", "d.md")
    files = SourceConfig([str(tmp_path)]).files()
    assert [(f.format, f.compression) for f in files] == [
        ("jsonl", "gzip"),
        ("text", "none"),
        ("jsonl", "zstd"),
        ("text", "none"),
    ]
    assert [f.format for f in SourceConfig([str(tmp_path / "d.md")], format="jsonl").files()] == [
        "jsonl"
    ]


def test_a_relative_path_stays_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "corpus/a.txt")
    monkeypatch.chdir(tmp_path)
    for spelling in ("corpus", "./corpus/", "corpus/a.txt", "corpus/*.txt", "c*/*"):
        assert [f.path for f in SourceConfig([spelling]).files()] == ["corpus/a.txt"]


def test_globs(tmp_path: Path):
    touch(tmp_path, "x/1.jsonl", "x/y/2.jsonl", "3.jsonl", "[x].jsonl")
    assert names(SourceConfig([f"{tmp_path}/**/*.jsonl"]), tmp_path) == [
        "3.jsonl",
        "[x].jsonl",
        "x/1.jsonl",
        "x/y/2.jsonl",
    ]
    assert names(SourceConfig([f"{tmp_path}/?.jsonl"]), tmp_path) == ["3.jsonl"]
    assert names(SourceConfig([f"{tmp_path}/[x].jsonl"]), tmp_path) == [
        "[x].jsonl"
    ]  # a file of that very name


def test_size_and_version_tell_a_change(tmp_path: Path):
    touch(tmp_path, "a.txt")
    (before,) = SourceConfig([str(tmp_path)]).files()
    assert (before.size, before.version) == stat_file(before.path)
    os.utime(before.path, ns=(0, 5))
    (after,) = SourceConfig([str(tmp_path)]).files()
    assert after.version == "mtime:5"
    assert after.version != before.version


def test_urls(tmp_path: Path):
    memory = fsspec.filesystem("memory")
    root = f"memory://headrace-{tmp_path.name}"
    for name in ("b.jsonl", "a/c.txt", "d.bin"):
        memory.pipe_file(f"{root}/{name}", b"{}\n")
    try:
        files = SourceConfig([root]).files()
        assert [f.path.rsplit("/", 1)[1] for f in files] == ["c.txt", "b.jsonl"]
        assert all(f.path.startswith("memory://") for f in files)
        assert [f.size for f in files] == [3, 3]
        assert SourceConfig([f"{root}/*.jsonl"]).files() == files[1:]
        assert SourceConfig([f"{root}/b.jsonl"]).files()[0].size == 3
        assert all(stat_file(f.path) == (f.size, f.version) for f in files)
        with pytest.raises(SourceError, match="does not exist"):
            SourceConfig([f"{root}/missing.jsonl"]).files()
    finally:
        memory.rm(root, recursive=True)


class TestBadInput:
    def test_missing_path_names_the_nearest(self, tmp_path: Path):
        touch(tmp_path, "corpus.jsonl")
        with pytest.raises(SourceError, match=r"does not exist.*'corpus.jsonl'"):
            SourceConfig([str(tmp_path / "corpsu.jsonl")]).files()
        with pytest.raises(SourceError, match="no folder"):
            SourceConfig([str(tmp_path / "no/where.jsonl")]).files()
        with pytest.raises(SourceError, match="matches no file"):
            SourceConfig([str(tmp_path / "*.txt")]).files()

    def test_a_folder_without_text_says_what_it_has(self, tmp_path: Path):
        touch(tmp_path, "a.bin", "b.cfg", "Makefile")
        with pytest.raises(SourceError, match=r"\.jsonl.*it has \.bin, \.cfg, Makefile"):
            SourceConfig([str(tmp_path)]).files()
        (tmp_path / "empty").mkdir()
        with pytest.raises(SourceError, match="it has no file, or only hidden ones"):
            SourceConfig([str(tmp_path / "empty")]).files()

    @pytest.mark.parametrize("name", ["a b.CSV", "a.tsv", "a.csv.gz"])
    @pytest.mark.parametrize("named", ["file", "folder"])
    def test_separated_values_are_no_texts(self, tmp_path: Path, name: str, named: str):
        touch(tmp_path, name)
        path = tmp_path / name if named == "file" else tmp_path
        with pytest.raises(SourceError, match=r"whose lines are no texts.*hf://\./FOLDER"):
            SourceConfig([str(path)], extensions=[".csv", ".tsv"]).files()

    def test_all_files_empty(self, tmp_path: Path):
        (tmp_path / "a.jsonl").touch()
        with pytest.raises(SourceError, match="is an empty source: its one file has no bytes"):
            SourceConfig([str(tmp_path)]).files()
        (tmp_path / "b.txt").touch()
        with pytest.raises(SourceError, match="all its 2 files have no bytes"):
            SourceConfig([str(tmp_path)]).files()

    def test_a_file_given_twice(self, tmp_path: Path):
        touch(tmp_path, "a.txt")
        with pytest.raises(SourceError, match="named twice"):
            SourceConfig([str(tmp_path), str(tmp_path / "a.txt")]).files()

    def test_names_that_say_nothing(self, tmp_path: Path):
        touch(tmp_path, "a.dat", "b.jsonl.bz2")
        with pytest.raises(SourceError, match="--format"):
            SourceConfig([str(tmp_path / "a.dat")]).files()
        with pytest.raises(SourceError, match=r"again as \.gz"):
            SourceConfig([str(tmp_path / "b.jsonl.bz2")], format="jsonl").files()

    def test_a_pipe_cannot_be_resumed(self, tmp_path: Path):
        os.mkfifo(tmp_path / "pipe.jsonl")
        with pytest.raises(SourceError, match="regular file"):
            SourceConfig([str(tmp_path / "pipe.jsonl")]).files()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"paths": []}, "paths"),
            ({"paths": "corpus"}, "must be a list"),
            ({"paths": ["x"], "format": "jsnl"}, "'jsonl'"),
            ({"paths": ["x"], "on_bad_line": "ignore"}, "on_bad_line"),
            ({"paths": ["x"], "extensions": ["py"]}, "'.py'"),
        ],
    )
    def test_settings(self, arguments: dict[str, object], message: str):
        with pytest.raises(ConfigError, match=message):
            SourceConfig(**arguments)

    def test_unknown_scheme(self):
        with pytest.raises(ConfigError, match="scheme"):
            SourceConfig(["nosuch://bucket/a.jsonl"]).files()


def test_source_files_are_values():
    assert SourceFile("a", "text") == SourceFile("a", "text")
    assert len({SourceFile("a", "text"), SourceFile("a", "text")}) == 1


def test_listings_of_a_web_server_keep_to_their_folder_and_end(tmp_path, caplog, monkeypatch):
    (tmp_path / "web" / "more").mkdir(parents=True)
    for name in ("secret.txt", "web/a.txt", "web/more/b.txt"):
        (tmp_path / name).write_text(name)
    names = [
        "../",
        "/",
        "more/",
        "a.txt",
        "more/../../secret.txt",
        "%2e%2e/secret.txt",
        "/secret.txt",
        "../web/more/",
    ]
    (tmp_path / "web" / "index.html").write_text(
        "".join(f'<a href="{name}">x</a>' for name in names)
    )
    (tmp_path / "web" / "more" / "index.html").write_text(
        '<a href="b.txt">b</a><a href="../more/">loop</a>'
    )
    with web_server(tmp_path) as server:
        caplog.set_level("WARNING")
        found = [
            file.path.removeprefix(server) for file in SourceConfig([f"{server}/web/"]).files()
        ]
        assert found == ["/web/a.txt", "/web/more/b.txt"]
        assert "lie outside it, and are left out" in caplog.text
        matches = [
            file.path.removeprefix(server) for file in SourceConfig([f"{server}/web/*.txt"]).files()
        ]
        assert matches == ["/web/a.txt"]
        matches = [
            file.path.removeprefix(server)
            for file in SourceConfig([f"{server}/web/**/*.txt"]).files()
        ]
        assert matches == ["/web/a.txt", "/web/more/b.txt"]
        monkeypatch.setattr("headrace.ingest.listing._MAX_PAGES", 1)
        assert (
            len(SourceConfig([f"{server}/web/*.txt"]).files()) == 1
        )  # folders below are not listed for it
        for source in ("", "**/*.txt"):
            with pytest.raises(SourceError, match="more than 1 folders"):
                SourceConfig([f"{server}/web/{source}"]).files()


def test_a_function_without_its_format_is_told_what_to_add(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def documents():\n    yield {'text': 'a b'}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SourceError, match="add --format python"):
        SourceConfig(["mine:documents"]).files()
    (file,) = SourceConfig(["mine:documents"], format="python").files()
    assert file.format == "python"


@pytest.mark.parametrize("ledger", ["ledger.json", "shard_ledger.json"])
def test_the_files_of_caches_are_no_texts(tmp_path: Path, ledger: str):
    if ledger == "ledger.json":
        tiny_cache(tmp_path / "all" / "a", documents=2)
    else:
        touch(tmp_path / "all", "a/shard_ledger.json", "a/input_ids/data/zarr.json")
    touch(tmp_path / "all", "b.txt")
    with web_server(tmp_path) as server:
        for root in (str(tmp_path), server):
            for folder in (f"{root}/all", f"{root}/all/a"):
                with pytest.raises(SourceError, match="holds 1 token cache") as caught:
                    SourceConfig([folder]).files()
                assert caught.value.field == folder
                assert f"cache: {root}/all/a." in str(caught.value.cure)
            assert len(SourceConfig([f"{root}/all"], extensions=[".txt"]).files()) == 1


def test_a_ledger_that_is_of_no_cache_is_a_text(tmp_path: Path):
    touch(tmp_path, "ledger.json", "more/parts/a.json")
    assert names(SourceConfig([str(tmp_path)]), tmp_path) == ["ledger.json", "more/parts/a.json"]
