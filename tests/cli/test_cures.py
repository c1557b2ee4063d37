"""What ``headrace build`` prints as a cure is typed here as it is printed, also behind the first
finished part of a build.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
