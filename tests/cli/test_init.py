"""``headrace init``: what it builds, writes and refuses. That what it writes trains is shown in
tests/demo.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from headrace import open_run, progress
from headrace.config import load_config
from headrace.store import open_cache
from headrace.store.ledger import read_ledger


@pytest.fixture
def texts(tmp_path, monkeypatch) -> Path:
    """Two sources with text enough for rows, one without, and a picture; the current folder holds
    them.
    """
    monkeypatch.chdir(tmp_path)
    for name, times in (("code/a.py", 300), ("on/b.txt", 40), ("few/c.txt", 1), ("few/d.png", 0)):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a line of text\n" * times + b"\0" * (times == 0))
    return tmp_path / "texts"


def test_caches_config_and_program_are_there(headrace, texts, monkeypatch):
    done = headrace("init", "texts", "-o", "first")
    assert done.code == 0
    assert "few is left out of run.yaml: it has 16 tokens, but a row has 256" in done.err
    assert "few: 1 file (.txt), 15 B -> first/caches/few; left out: 1 .png" in done.out
    assert "cd first" in done.out
    monkeypatch.chdir(texts.parent / "first")
    config = load_config("run.yaml")
    assert {name: c.weight for name, c in config.components.items()} == {
        "code": 0.0045,
        "on": 0.000601,
    }
    assert (config.batch_size, config.num_steps) == (16, 100)
    with config.loader() as loader:
        assert loader.batch_at(99).tokens.shape == (16, 256)
    assert headrace("config", "check", "run.yaml").code == 0
    compile(Path("train.py").read_text(), "train.py", "exec")


def test_what_is_there_stays(headrace, texts):
    assert headrace("init", "texts").code == 0
    before = Path("run.yaml").read_bytes()
    done = headrace("init", "texts")
    assert (done.code, Path("run.yaml").read_bytes()) == (2, before)
    assert "run.yaml" in done.err
    assert "--output FOLDER" in done.err
    assert headrace("init", "texts", "--output", "second").code == 0


def test_a_dry_run_writes_nothing(headrace, texts):
    done = headrace("init", "texts", "--dry-run")
    assert (done.code, sorted(p.name for p in texts.parent.iterdir())) == (0, ["texts"])
    *sources, found = done.out.splitlines()
    assert [line.split(":")[0] for line in sources] == ["code", "few", "on"]
    assert found == "The first records of 3 sources can be built from; nothing was written."
    (texts / "on" / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    done = headrace("init", "texts", "--dry-run")
    assert (done.code, sorted(p.name for p in texts.parent.iterdir())) == (2, ["texts"])
    assert "texts/on/latin.txt, line 1: is not UTF-8" in done.err


def test_rows_are_held_out_of_a_source_that_has_enough(headrace, texts):
    for name, rows in (("none", 39), ("two", 41), ("most", 2000)):
        (texts / name).mkdir()
        (texts / name / "a.txt").write_text("x" * (256 * rows))
    assert headrace("init", "texts").code == 0
    config = load_config("run.yaml")
    assert {name: len(rows) for name, rows in config.validation_datasets().items()} == {
        "two": 2,
        "most": 64,
    }


def test_names_that_yaml_would_not_take_for_text_are_quoted(headrace, texts):
    assert headrace("init", "texts").code == 0
    assert list(yaml.safe_load(Path("run.yaml").read_text())["components"]) == ["code", "on"]


@pytest.mark.parametrize(("folder", "output"), [(".", "."), ("texts", "texts/first")])
def test_what_is_built_must_not_become_text(headrace, texts, folder, output):
    done = headrace("init", folder, "--output", output)
    assert (done.code, done.out) == (2, "")
    assert (
        f"output = '{output}': is inside {folder}, the folder of texts. Give a folder outside"
        in done.err
    )


def test_too_little_text_is_refused(headrace, texts):
    done = headrace("init", "texts/few")
    assert done.code == 2
    assert "folder = 'texts/few': has too little text to train on. Give more text" in done.err
    assert not Path("run.yaml").exists()


def test_a_line_that_cannot_be_read_is_left_out_where_that_is_asked_for(headrace, texts):
    bad = texts / "code" / "b.py"
    bad.write_bytes("caf\xe9\n".encode("latin-1"))
    (texts / "code" / "c.py").write_text("text")
    refused = headrace("init", "texts", "-o", "first")
    assert refused.code == 2
    assert "b.py, line 1: is not UTF-8" in refused.err
    assert "lines out: --on-bad-line skip" in refused.err
    done = headrace("init", "texts", "-o", "first", "--on-bad-line", "skip")
    assert done.code == 0
    assert "code: 1 bad line skipped, the first: texts/code/b.py, line 1: is not UTF-8" in done.err


def test_all_bad_files_of_all_sources_are_named_before_any_is_built(headrace, texts):
    records_of(texts, books="body", web="text")
    (texts / "on" / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (texts / "web" / "b.jsonl.gz").write_bytes(b"this is no gzip")
    refused = headrace("init", "texts", "-o", "first")
    assert refused.code == 2
    assert "error 3 files cannot be built from, and nothing was written:" in refused.err
    for name, fault in (
        ("books/a.jsonl", "each of its first 50 records fails alike: has no field 'text'"),
        ("on/latin.txt, line 1", "is not UTF-8"),
        ("web/b.jsonl.gz", "is damaged: its gzip stream cannot be read"),
    ):
        assert f"  texts/{name}: {fault}" in refused.err
    assert not Path("first").exists()
    (texts / "on" / "latin.txt").write_text("caf\xe9\n", encoding="utf-8")
    (texts / "web" / "b.jsonl.gz").unlink()
    assert headrace("init", "texts", "-o", "first", "--text-field", "body").code == 0


def test_what_was_built_is_kept_and_not_looked_at_again(headrace, texts):
    """A source that becomes bad behind its first records stops the build; the sources before it
    stay.
    """
    records_of(texts, web="text")
    with (texts / "web" / "a.jsonl").open("ab") as file:
        file.write(b"\n" + json.dumps({"text": "long " * 20_000}).encode() + b"\nno json\n")
    refused = headrace("init", "texts", "-o", "first")
    assert refused.code == 2
    assert "texts/web/a.jsonl, line 52: is not valid JSON" in refused.err
    part = Path("first/caches/code/parts/00000/part.json")
    built = part.stat().st_mtime_ns
    assert headrace("init", "texts", "-o", "first", "--on-bad-line", "skip").code == 0
    assert part.stat().st_mtime_ns == built


def test_a_source_without_a_good_record_costs_no_other_cache(headrace, texts):
    (texts / "on" / "b.txt").write_bytes(b"\xff")
    for options in ([], ["--on-bad-line", "skip"]):
        refused = headrace("init", "texts", "-o", "first", *options)
        assert (refused.code, "texts/on/b.txt, line 1: is not UTF-8" in refused.err) == (2, True)
        assert "on-bad-line" not in refused.err
        assert not Path("first").exists()
    (texts / "on" / "b.txt").write_text("a line of text\n" * 40)
    assert headrace("init", "texts", "-o", "first").code == 0


def test_one_cache_can_be_started_over_and_the_others_stay(headrace, texts):
    records_of(texts, web="text")
    with (texts / "web" / "a.jsonl").open("ab") as file:
        file.write(b"\n" + json.dumps({"text": "long " * 20_000}).encode() + b"\nno json\n")
    (texts / "zoo").mkdir()
    (texts / "zoo" / "a.txt").write_bytes(b"x" * 70_000 + b"\xff")  # behind the head
    init = ["init", "texts", "-o", "first"]
    refused = headrace(*init, "--on-bad-line", "skip")
    assert (refused.code, "it holds no documents; 1 line skipped" in refused.err) == (2, True)
    assert "--restart" not in refused.err
    kept = built_at("code", "on")
    (texts / "zoo" / "a.txt").write_bytes(b"x" * 70_000)
    # The cache of `web` lacks a line that is no longer to be skipped.
    refused = headrace(*init)
    assert (refused.code, "1 bad line of first/caches/web skipped so far" in refused.err) == (
        2,
        True,
    )
    command = refused.err.rstrip().rpartition("for this one alone: ")[2]
    (texts / "web" / "a.jsonl").write_text(json.dumps({"text": "mended " * 99}))
    assert subprocess.run(command, shell=True).returncode == 0
    assert headrace(*init).code == 0
    assert built_at("code", "on") == kept


def built_at(*names: str) -> list[int]:
    """When the caches of these sources were built."""
    return [Path(f"first/caches/{name}/parts/00000/part.json").stat().st_mtime_ns for name in names]


def test_names_that_are_not_utf8_are_refused_where_they_would_be_read(headrace, texts):
    Path(os.fsdecode(b"texts/few/\xff.png")).write_bytes(b"\0")
    assert headrace("init", "texts", "--dry-run").code == 0
    Path(os.fsdecode(b"texts/few/caf\xe9.txt")).write_text("a line")
    done = headrace("init", "texts")
    assert (done.code, done.err.splitlines()[-1]) == (
        2,
        r"error texts/few/caf\xe9.txt: has a name that is not UTF-8. Rename the file: a ledger names files in UTF-8.",
    )


def records_of(texts: Path, **fields: str) -> None:
    """Writes a source of JSON records for each name; its field with the text is the value."""
    for name, field in fields.items():
        (texts / name).mkdir()
        lines = [json.dumps({"id": f"{k}", field: f"{name} {k} " * 30}) for k in range(50)]
        (texts / name / "a.jsonl").write_text("\n".join(lines))


def test_each_source_has_its_own_text_field(headrace, texts):
    records_of(texts, web="text", github="content", books="body")
    refused = headrace("init", "texts", "-o", "first")
    assert refused.code == 2
    assert (
        "books/a.jsonl: each of its first 50 records fails alike: has no field 'text' (it has"
        " 'id', 'body')."
        " Choose another field: --text-field body." in refused.err
    )
    done = headrace("init", "texts", "-o", "first", "--text-field", "body")
    assert (done.code, [line for line in done.out.splitlines() if "text in field" in line]) == (
        0,
        [
            "books: 1 file (.jsonl), 14.1 KiB, text in field body -> first/caches/books",
            "github: 1 file (.jsonl), 15.7 KiB, text in field content -> first/caches/github",
        ],
    )
    fields = {
        name: read_ledger(f"first/caches/{name}").metadata["source"]["text_field"]
        for name in ("books", "github", "web", "code")
    }
    assert fields == {"books": "body", "github": "content", "web": "text", "code": "text"}


def test_a_text_field_of_no_source_is_refused(headrace, texts):
    records_of(texts, web="text")
    refused = headrace("init", "texts", "--text-field", "txet")
    assert refused.code == 2
    assert (
        "text_field = 'txet': is the text field of no source. Give a field that holds"
        in refused.err
    )
    assert not Path("caches").exists()


def test_the_home_folder_is_spelled_out(headrace, texts, monkeypatch):
    monkeypatch.setenv("HOME", str(texts.parent / "home"))
    assert headrace("init", "texts", "--output=~/first").code == 0
    assert (texts.parent / "home" / "first" / "run.yaml").exists()
    assert not Path("~").exists()


def test_a_config_of_another_folder_names_that_folder(headrace, texts):
    assert headrace("init", "texts", "-o", "first").code == 0
    for command in ("config simulate", "run cat"):
        done = headrace(*command.split(), "first/run.yaml")
        assert (done.code, done.err.rstrip().rpartition(". ")[2]) == (
            2,
            "Paths in a config are relative to the current folder: cd first",
        )


def test_what_came_since_is_named_and_added_by_what_is_printed(headrace, texts):
    init = ["init", "texts", "-o", "first"]
    assert headrace(*init).code == 0
    config = Path("first/run.yaml")
    before = config.read_bytes()
    (texts / "code" / "new.py").write_text("a new line of text\n" * 100)
    records_of(texts, web="body")
    printed = headrace(*init, "--text-field", "body")
    assert (printed.code, config.read_bytes()) == (0, before)
    assert "code: 1 new file, 1.86 KiB -> first/caches/code" in printed.out
    assert "a new source, web: 1 file (.jsonl), 11.2 KiB, text in field body" in printed.out
    assert not Path("first/caches/web").exists()
    typed = printed.out.splitlines()[-1].removeprefix("To train on this, too, type: headrace ")
    added = headrace(*shlex.split(typed))
    assert added.code == 0
    lines = added.out.splitlines()
    assert lines[2] == "Add to the components of first/run.yaml:"
    config.write_text(config.read_text() + lines[3] + "\n")
    assert [one.number for one in open_cache("first/caches/code").snapshots] == [2]
    assert lines[-2:] == ["  cd first", "  headrace run amend runs/1 run.yaml --newest-caches"]
    (texts / "on" / "b.txt").write_text("other text")
    again = headrace(*init)
    assert "on: 1 file changed since, texts/on/b.txt first; first/caches/on keeps" in again.out
    assert (again.code, "run.yaml: already exists" in again.err.replace("': ", ": ")) == (2, True)


def test_a_run_is_moved_to_what_came_since(headrace, texts, monkeypatch):
    assert headrace("init", "texts", "-o", "first").code == 0
    monkeypatch.chdir("first")
    open_run("runs/1", load_config("run.yaml")).state(10)
    (texts / "code" / "new.py").write_text("a new line of text\n" * 100)
    monkeypatch.chdir("..")
    added = headrace("init", "texts", "-o", "first", "--append")
    again = headrace("init", "texts", "-o", "first", "--append")
    assert (again.code, again.out) == (
        0,
        "No file came since: nothing was added to the caches in first.\n",
    )
    monkeypatch.chdir("first")
    assert headrace(*added.out.splitlines()[-1].split()[1:]).code == 0
    run = open_run("runs/1", load_config("run.yaml"), 10)
    assert [amendment.caches for amendment in run.config.amendments] == [{"code": 2}]


def test_files_that_were_renamed_or_removed_stay_in_the_cache(headrace, texts):
    (texts / "code" / "more").mkdir()
    for name in ("code/more/b.py", "code/c.py", "gone/a.txt"):
        (texts / name).parent.mkdir(exist_ok=True)
        (texts / name).write_text(f"text of {name}\n" * 40)
    init = ["init", "texts", "-o", "first"]
    assert headrace(*init).code == 0
    (texts / "code" / "a.py").rename(texts / "code" / "renamed.py")
    (texts / "code" / "more" / "b.py").rename(texts / "code" / "b.py")
    (texts / "code" / "c.py").unlink()
    (texts / "gone" / "a.txt").unlink()
    (texts / "on" / "new.txt").write_text("a new text\n" * 40)
    added = headrace(*init, "--append")
    assert added.out.splitlines()[:4] == [
        "code: 1 file renamed since, texts/code/renamed.py first; first/caches/code keeps what it has",
        "code: 1 file gone since, texts/code/c.py first; first/caches/code keeps what it has",
        "on: 1 new file, 440 B -> first/caches/on",
        "gone: 1 file gone since, texts/gone/a.txt first; first/caches/gone keeps what it has",
    ]
    assert [open_cache(f"first/caches/{name}").num_documents for name in ("code", "on")] == [
        3,
        2,
    ]


def test_one_text_that_is_most_of_all_is_named(headrace, texts):
    (texts / "code" / "big.txt").write_text("a line of text\n" * 10_000)
    printed = headrace("init", "texts", "--dry-run")
    assert "texts/code/big.txt is one document with 97% of all text, 146 KiB" in printed.err
    assert "move it to a folder of its own" in printed.err
    (texts / "code" / "big.txt").rename(texts / "code" / "big.jsonl")
    (texts / "code" / "big.jsonl").write_text('{"text": "one of many"}\n' * 9000)
    assert "is one document" not in headrace("init", "texts", "--dry-run").err


def test_an_empty_folder_and_a_list_in_a_file_are_said_before_anything_is_built(headrace, texts):
    for name in ("empty", "hidden"):
        (texts / name).mkdir()
    (texts / "hidden" / ".keep").write_text("text")
    for name in ("empty", "hidden"):
        refused = headrace("init", f"texts/{name}")
        said = "holds no text (it has no file, or only hidden ones)"
        assert (refused.code, f"folder = 'texts/{name}': {said}" in refused.err) == (2, True)
        assert f"{name}: no text (it has no file" in headrace("init", "texts", "--dry-run").out
    (texts / "on" / "list.json").write_text(json.dumps([{"text": "a"}, {"text": "b"}]))
    refused = headrace("init", "texts", "-o", "first")
    assert refused.code == 2
    assert "is a JSON file, and not one object on each line. Convert it" in refused.err
    assert not Path("first").exists()


def test_progress_is_printed_in_lines_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.bar() as bar:
        task = bar.add_task("building", total=4, rate="")
        for _ in range(2):
            bar.advance(task)
        bar.update(task, advance=2, rate="6.0 MB/s")
    lines = capsys.readouterr().err.splitlines()
    assert [line[:13] for line in lines] == ["building: 25%", "building: 50%", "building: 100"]
    assert "6.0 MB/s" in lines[-1]
