"""What ``headrace build`` prints as a cure is typed here as it is printed, also behind the first
finished part of a build.
"""

import gzip
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headrace.ingest.survey import survey

Run = Callable[..., tuple[int, str, str]]
OPTION = r"--[a-z-]+ (?:'[^']*'|\S*[^\s.,;:)])"
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ tools | tojson }}"
MESSAGES = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
TOKENS = ["--kind", "tokens"]
CHAT = ["--kind", "chat", "--mask", "all", "--chat-template", TEMPLATE]
PAIRS = ["--kind", "preference", "--chat-template", TEMPLATE]
IDS = {"input_ids": [1, 2, 3]}
PAIR = {"chosen": "yes", "rejected": "no"}


def write(path: Path, *records: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def cures_of(said: str) -> list[list[str]]:
    """The options that a message tells to type; those that stand side by side are one cure."""
    options = re.findall(rf"{OPTION}(?: {OPTION}| --restart)*", said)
    return [shlex.split(one) for one in options]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("options", "good", "bad", "cure", "is_kept"),
    [
        (TOKENS, {}, {"labels": [1, 2, 3]}, "--field labels=none", True),
        (TOKENS, {}, {"loss_mask": [0, 0, 1]}, "--field loss_mask=none", True),
        (TOKENS, {"labels": [1, 2, 3]}, {"labels": [3, 2, 1]}, "--field labels=none", False),
        (TOKENS, {"labels": [1, 2, 3]}, {"labels": None}, "--field labels=none", False),
        (TOKENS, {"labels": [1, 2, 3]}, {}, "--field labels=none", False),
        (TOKENS, {}, {"attention_mask": [1, 0, 1]}, "--field attention_mask=none", True),
        (TOKENS, {}, {"attention_mask": "1 1"}, "--field attention_mask=none", True),
        (
            TOKENS,
            {"attention_mask": [1, 1, 0]},
            {"attention_mask": [1, 0, 1]},
            "--field attention_mask=none",
            False,
        ),
        (
            TOKENS,
            {"attention_mask": [1, 1, 1]},
            {"attention_mask": [1, 2, 2]},
            "--field attention_mask=none --field segment_ids=attention_mask",
            False,
        ),
        (TOKENS, {}, {"position_ids": [0, 0, 5]}, "--field position_ids=none", True),
        (TOKENS, {"seq_idx": [0, 0, 1]}, {"seq_idx": [0]}, "--field seq_idx=none", False),
        (CHAT, {}, {"system": 1}, "--field system=none", True),
        (CHAT, {"system": "Be kind."}, {"system": 1}, "--field system=none", False),
        (CHAT, {}, {"tools": "a hammer"}, "--field tools=none", True),
        (
            CHAT,
            {"tools": "[]"},
            {"tools": "a hammer"},
            "--field tools=none --field system=tools",
            False,
        ),
        (CHAT, {"tools": [{"name": "f"}]}, {"tools": "a hammer"}, "--field tools=none", False),
        (PAIRS, {}, {"prompt": "", "chosen": ["a"]}, "--on-bad-line skip", True),
        (
            [*CHAT, "--leaf", "id=id"],
            {"id": "a"},
            {"id": 7},
            "--leaf id=id:any",
            True,
        ),
        (
            [*TOKENS, "--leaf", "id=meta.id"],
            {"meta": {"id": "a"}},
            {},
            "--leaf id=meta.id:any",
            True,
        ),
    ],
)
def test_what_is_printed_behind_a_finished_part_can_be_typed(
    headrace: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    good: dict[str, Any],
    bad: dict[str, Any],
    cure: str,
    is_kept: bool,
):
    monkeypatch.chdir(tmp_path)
    whole = {"--kind tokens": IDS, "--kind chat": {"messages": MESSAGES}}.get(
        " ".join(options[:2]), PAIR
    )
    write(Path("in/a.jsonl"), *[{**whole, **good}] * 30)
    write(Path("in/b.jsonl"), *[{**whole, **good}] * 25, {**whole, **bad})
    build = ["build", "in", "-t", "bytes", *options, "--engine", "inline", "--part-bytes", "1"]
    code, _, said = headrace(*build, "-o", "cache")
    assert (code, "in/b.jsonl, line 26" in said) == (2, True), said
    part = Path("cache/parts/00000/part.json")
    built = part.stat().st_mtime_ns
    typed = [*shlex.split(cure), *([] if is_kept else ["--restart"])]
    assert typed in cures_of(said), said
    code, _, said = headrace(*build, "-o", "cache", *typed)
    assert code == 0, said
    assert (part.stat().st_mtime_ns == built) == is_kept
    # It is what an uninterrupted build with the same options makes.
    assert headrace(*build, "-o", "fresh", *typed)[0] == 0
    assert tree(Path("cache")) == tree(Path("fresh"))


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("options", "record", "printed", "field"),
    [
        (["--kind", "text"], {"body_": "a text"}, "--text-field FIELD", "body_"),
        (["--kind", "prompts"], {"ask": "Why?"}, "--field prompt=FIELD", "ask"),
        (["--kind", "prompts", "--field", "prompt=p"], {"ask": "?"}, "--field prompt=FIELD", "ask"),
        (TOKENS, {"those": [1, 2]}, "--field tokens=FIELD", "those"),
        ([*TOKENS, "--field", "labels=l"], IDS, "--field labels=none", ""),
        (CHAT, {"said": MESSAGES}, "--field messages=FIELD", "said"),
        ([*CHAT, "--field", "system=s"], {"messages": MESSAGES}, "--field system=none", ""),
        (PAIRS, {"best": "a", "rejected": "b"}, "--field chosen=FIELD", "best"),
        (PAIRS, {"chosen": "a", "worst": "b"}, "--field rejected=FIELD", "worst"),
        ([*TOKENS, "--leaf", "id=name:int32"], {**IDS, "at": 7}, "--leaf id=FIELD:int32", "at"),
    ],
)
def test_a_field_that_is_missing_is_chosen_as_it_is_printed(
    headrace: Run,
    tmp_path: Path,
    options: list[str],
    record: dict[str, Any],
    printed: str,
    field: str,
    ending: str,
):
    path = tmp_path / f"a.{ending}"
    write(path, *[record] * 9)
    if ending != "jsonl":
        arrow = pytest.importorskip("pyarrow")
        rows = arrow.Table.from_pylist([record] * 9)
        if ending == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(rows, path)
        else:
            pytest.importorskip("pyarrow.feather").write_feather(rows, str(path))
    build = ["build", str(path), "-o", str(tmp_path / "cache"), "-t", "bytes", *options]
    code, _, said = headrace(*build)
    cures = cures_of(said)
    if options[:2] == ["--kind", "text"] and ending == "jsonl":
        printed = "--text-field body_"  # it is the only one
    assert (code, cures) == (2, [shlex.split(printed)]), said
    typed = [option.replace("FIELD", field) for option in cures[0]]
    assert headrace(*build, *typed)[0] == 0


@pytest.mark.parametrize("changed", [[0], [1, 3], [0, 1, 2, 3, 4, 6]])
def test_only_changed_files_are_built_again_by_the_command_that_is_printed(
    headrace: Run, tmp_path: Path, changed: list[int]
):
    for i in range(8):
        write(tmp_path / "my in" / f"{i}.jsonl", {"text": f"file {i}"})
    cache = tmp_path / "my cache"
    build = ["build", str(tmp_path / "my in"), "-o", str(cache), "-t", "bytes", "--part-bytes", "1"]
    assert headrace(*build)[0] == 0
    parts = sorted(cache.glob("parts/*/part.json"))
    built = [part.stat().st_mtime_ns for part in parts]
    for i in changed:
        write(tmp_path / "my in" / f"{i}.jsonl", {"text": f"another text {i}"})
    code, _, said = headrace(*build)
    assert code == 2
    command = said.rstrip().rpartition("run the same command again after: ")[2]
    assert subprocess.run(command, shell=True).returncode == 0
    code, out, said = headrace(*build)
    assert (code, f"{len(changed)} part" in out) == (0, True), said
    rebuilt = [i for i in range(8) if parts[i].stat().st_mtime_ns != built[i]]
    assert rebuilt == changed


RECORDS = [{"text": f"text {k}"} for k in range(30)]
LINES = "".join(json.dumps(one) + "\n" for one in RECORDS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(RECORDS)),
        ("a.json", json.dumps(RECORDS, indent=1)),
        ("my file.jsonl", "".join(json.dumps(one, indent=2) + "\n" for one in RECORDS)),
        ("a.json", json.dumps([{"text": "long " * 9000}] * 30)),
    ],
)
@pytest.mark.parametrize("rule", ["error", "skip"])
@pytest.mark.parametrize("beside", [True, False])
def test_a_json_file_is_converted_by_the_command_that_is_printed(
    headrace: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str,
    rule: str,
    beside: bool,
):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in", name).write_text(content)
    if beside:
        Path("in/b.jsonl").write_text(LINES)
    build = ["build", "in", "-o", "cache", "-t", "bytes", "--on-bad-line", rule]
    code, _, said = headrace(*build)
    assert code == 2
    assert f"in/{name}: is a JSON file, and not one object on each line" in said
    assert "--on-bad-line" not in said
    command = said.partition("Convert it: ")[2].partition(" (records")[0]
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    assert subprocess.run(command, shell=True).returncode == 0
    code, out, said = headrace(*build)  # of the folder, as before
    assert code == 0, said
    assert f"{30 + len(LINES.splitlines()) * beside} documents" in out
    assert survey("in")[0].files == 1 + beside  # and not also the one that was converted


def test_a_list_in_one_object_is_converted_by_its_name(headrace: Run, tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"version": "2", "data": RECORDS}))
    build = ["build", str(path), "-o", str(tmp_path / "c"), "-t", "bytes"]
    code, _, said = headrace(*build)
    assert code == 2
    assert f"{path}: is a JSON file, and not one object on each line" in said
    command = said.partition("Convert it: ")[2].partition(" (records")[0]
    assert "such as data: jq -c '.data[]'" in said
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    command = command.replace("arrays[], objects", ".data[]")
    assert subprocess.run(command, shell=True).returncode == 0
    assert headrace(*build)[0] == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json.gz", gzip.compress(json.dumps(RECORDS).encode())),
        ("a.json", json.dumps({"data": RECORDS}, indent=1).encode()),
    ],
)
def test_a_json_file_that_is_elsewhere_or_packed_is_refused(
    headrace: Run, tmp_path: Path, name: str, content: bytes
):
    fsspec.filesystem("memory").pipe(f"/elsewhere/{name}", content)
    code, _, said = headrace(
        "build", "-o", str(tmp_path / "cache"), "-t", "bytes", f"memory://elsewhere/{name}"
    )
    assert code == 2
    assert f"{name}: is a JSON file, and not one object on each line" in said
    assert "://" not in said.partition("Convert it: ")[2]


@pytest.mark.parametrize(
    ("options", "records", "printed"),
    [
        ([], [{"messages": MESSAGES}], "--kind chat"),
        (CHAT, [{"messages": [{"role": "user"}]}], ""),
        ([], [[1, 2], [3]], ""),
        ([], [{"data": {"text": "inner"}}] * 9, "--text-field data.text"),
    ],
)
def test_what_looks_like_a_json_file_and_is_none(
    headrace: Run, tmp_path: Path, options: list[str], records: list[Any], printed: str
):
    write(tmp_path / "a.jsonl", *records)
    code, _, said = headrace(
        "build", str(tmp_path), "-o", str(tmp_path / "c"), "-t", "bytes", *options
    )
    assert (code, "is a JSON file" in said) == (2, False), said
    assert printed in said


def test_a_long_line_with_a_list_is_a_record(headrace: Run, tmp_path: Path):
    write(tmp_path / "a.jsonl", {"data": RECORDS * 3000, "text": "a text"})
    build = ["build", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "c"), "-t", "bytes"]
    assert headrace(*build)[0] == 0


def test_a_document_that_is_too_long_is_divided(headrace: Run, tmp_path: Path):
    many = [{"messages": [{"role": "user", "content": "x" * n}]} for n in (1, 5_000_000, 2)]
    write(tmp_path / "a.jsonl", *many)
    build = ["build", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "c"), "-t", "bytes", *CHAT]
    code, _, said = headrace(*build)
    assert (code, "characters; at most 4,194,304. Divide it into several records" in said) == (
        2,
        True,
    )
    assert headrace(*build, *cures_of(said)[0])[0] == 0


def test_prompts_are_a_record_each(headrace: Run, tmp_path: Path):
    write(tmp_path / "a.jsonl", {"prompt": ["a", "b"]})
    build = ["build", str(tmp_path), "-o", str(tmp_path / "c"), "-t", "bytes", "--kind", "prompts"]
    code, _, said = headrace(*build)
    assert (code, "holds a string in prompt[0], not a message with a role" in said) == (2, True)
    assert "Texts without roles, such as prompts, are a record each" in said
    write(tmp_path / "a.jsonl", {"prompt": "a"}, {"prompt": "b"})
    assert headrace(*build)[0] == 0


def test_saved_datasets_in_a_folder_are_read_as_such(
    headrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    saved = datasets.Dataset.from_list(RECORDS)
    saved.save_to_disk("in/saved")
    shutil.copy("in/saved/data-00000-of-00001.arrow", "in/saved/cache-1.arrow")  # of a map()
    Path("in/a.txt").write_text("a text")
    for name, sources, documents in (
        ("mixed", ["in"], 31),
        ("alone", ["in/saved"], 30),
        ("absolute", [str(tmp_path / "in" / "saved")], 30),
        ("both", ["in/a.txt", "hf://./in/saved"], 31),
    ):
        code, out, said = headrace("build", *sources, "-o", name, "-t", "bytes")
        assert (code, f"{documents} documents" in out) == (0, True), said
    assert tree(Path("mixed/parts")) == tree(Path("both/parts"))
    assert headrace("init", "in", "-o", "first", "--dry-run")[0] == 0
    datasets.DatasetDict({"train": saved, "test": saved.select([0])}).save_to_disk("all")
    code, _, said = headrace("build", "all", "-o", "c", "-t", "bytes")
    assert (code, "all: is a saved dataset of several splits" in said) == (2, True)
    splits = said.rstrip().rpartition("in place of the folder: ")[2].split(", ")
    assert splits == ["hf://./all/test", "hf://./all/train"]
    code, out, _ = headrace("build", splits[1], "-o", "c", "-t", "bytes")
    assert (code, "30 documents" in out) == (0, True)
    code, _, said = headrace("init", "all", "-o", "first")
    assert (code, splits) == (2, said.rstrip().rpartition("of the folder: ")[2].split(", "))
    for folder in (splits[1], "in/saved"):
        code, out, said = headrace("init", folder, "-o", "first", "--dry-run")
        assert (code, "can be built from" in out) == (0, True), said


@pytest.mark.parametrize("unit", ["1", "3"])
def test_pairs_that_are_parted_can_be_packed_as_it_is_printed(
    headrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
):
    monkeypatch.chdir(tmp_path)
    write(Path("a.jsonl"), *[{"prompt": "q", **PAIR}] * 50)
    assert headrace("build", "a.jsonl", "--kind", "preference", "-o", "c", "-t", "bytes")[0] == 0
    component = f"{{cache: c, packing: {{unit: {unit}}}}}"
    Path("run.yaml").write_text(f"{{seq_len: 64, components: {{p: {component}}}}}")
    code, _, said = headrace("cache", "pack", "run.yaml")
    assert (code, "parts the two answers of each pair of c. Leave it out" in said) == (2, True)
    assert headrace("cache", "pack", "run.yaml", "components.p.packing={}")[0] == 0
    assert "as on text: components.p.pairs: false" in said
    as_text = ("components.p.packing={unit: 1}", "components.p.pairs=false")
    assert headrace("cache", "pack", "run.yaml", *as_text)[0] == 0
