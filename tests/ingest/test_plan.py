"""The plan: every file once, in order, parts of the wanted size, never too many; and its way
through the ledger.
"""

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.ingest import part_builder
from headrace.ingest.part_builder import (
    MAX_PARTS,
    PartTask,
    plan_parts,
    source_records,
    tasks_from_records,
)
from headrace.ingest.records import Slice, SourceFile

SIZES = st.lists(st.one_of(st.none(), st.integers(0, 1000)), min_size=1, max_size=60)


def made(sizes: list[int | None]) -> list[SourceFile]:
    return [
        SourceFile(f"{i:04d}.txt", "text", size=s, version=f"mtime:{i}")
        for i, s in enumerate(sizes)
    ]


@given(sizes=SIZES, part_bytes=st.integers(1, 2000))
def test_every_file_once_in_order(sizes: list[int | None], part_bytes: int):
    files = made(sizes)
    tasks = plan_parts(files, part_bytes)
    assert [f for t in tasks for f in t.files] == files
    assert all(t.files for t in tasks)
    assert [t.name for t in tasks] == [f"{i:05d}" for i in range(len(tasks))]


@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=60), part_bytes=st.integers(1, 2000)
)
def test_a_part_ends_with_the_file_that_fills_it(sizes: list[int], part_bytes: int):
    for task in plan_parts(made(sizes), part_bytes)[:-1]:
        assert task.stored_bytes >= part_bytes
        assert task.stored_bytes - (task.files[-1].size or 0) < part_bytes


def test_a_huge_corpus_has_some_thousands_of_parts():
    tasks = plan_parts(made([1 << 40] * 20_000), part_bytes=64 << 20)
    assert MAX_PARTS // 2 < len(tasks) <= MAX_PARTS


@pytest.mark.parametrize("sizes", [[1] * 50_000, [0] * 50_000, [None] * 50_000])
def test_never_too_many_parts(sizes: list[int | None]):
    assert len(plan_parts(made(sizes), part_bytes=1)) <= MAX_PARTS


@given(sizes=SIZES, part_bytes=st.integers(1, 2000))
def test_the_plan_survives_the_ledger_and_the_wire(sizes: list[int | None], part_bytes: int):
    tasks = plan_parts(made(sizes), part_bytes)
    assert tasks_from_records(source_records(tasks), {t.path: t for t in made(sizes)}) == tasks
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_part_bytes_must_be_positive():
    with pytest.raises(ConfigError, match="part_bytes"):
        plan_parts(made([1]), 0)


def halves(file: SourceFile, target: int) -> list[SourceFile]:
    size = file.size or 0
    if size <= target:
        return [file]
    slices = [Slice(0, size // 2, size // 2), Slice(size // 2, None, size - size // 2)]
    return [replace(file, part=s) for s in slices]


@given(sizes=SIZES, part_bytes=st.integers(1, 2000))
def test_slices_are_planned_in_order_and_survive_the_ledger(
    sizes: list[int | None], part_bytes: int
):
    tasks = plan_parts(made(sizes), part_bytes, halves)
    planned = [f for t in tasks for f in t.files]
    assert list(dict.fromkeys(f.path for f in planned)) == [f.path for f in made(sizes)]
    assert sum(f.num_bytes or 0 for f in planned) == sum(s or 0 for s in sizes)
    records = json.loads(json.dumps(source_records(tasks)))
    assert tasks_from_records(records, {f.path: f for f in made(sizes)}) == tasks


def test_a_path_is_written_down_without_its_credentials():
    file = SourceFile("https://host/a.jsonl?X-Amz-Signature=0a1b&part=3", "jsonl", size=1)
    (record,) = source_records(plan_parts([file]))
    assert record["path"] == "https://host/a.jsonl?X-Amz-Signature=***&part=3"
    assert tasks_from_records([record], {file.shown_path: file})[0].files == (file,)


def test_small_corpora_have_parts_for_all_cores():
    """Five compressed files of some megabytes are five parts, whatever is the most that a part may
    have.
    """
    small = [SourceFile(f"{i}.jsonl.gz", "jsonl", size=2 << 20) for i in range(5)]
    assert len(plan_parts(small)) == 5
    assert len(plan_parts([SourceFile(f"{i}.txt", "text", size=1 << 10) for i in range(2000)])) == 2
    assert len(plan_parts([SourceFile(f"{i}.txt", "text", size=1 << 20) for i in range(64)])) == 16
    assert len(plan_parts([SourceFile(f"{i}.txt", "text", size=64 << 20) for i in range(64)])) == 64


def test_compressed_files_are_cut_for_want_of_parts_alone():
    asked: list[tuple[int | None, int]] = []

    def ask(file: SourceFile, target: int) -> list[SourceFile]:
        asked.append((file.size, target))
        return [file]

    few = [SourceFile(f"{i}.jsonl.zst", "jsonl", "zstd", size=8 << 20) for i in range(5)]
    plan_parts(few, split=ask)
    assert {size // target for size, target in asked if size} == {3}
    asked.clear()
    many = [SourceFile(f"{i}.jsonl.zst", "jsonl", "zstd", size=1 << 30) for i in range(64)]
    plan_parts([*many, SourceFile("a.jsonl", "jsonl", size=1 << 30)], split=ask)
    assert {size // target for size, target in asked[:-1] if size} == {0}
    assert asked[-1] == (1 << 30, 64 << 20)


def test_workers_without_a_part_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(
        part_builder.extensions, "load_extension", lambda *names: lambda *settings: iter(())
    )
    job: Any = None
    for workers, parts, message in (
        (8, 5, "3 of 8 workers have nothing to do: 5 parts are to be built"),
        (5, 5, ""),
    ):
        caplog.clear()
        tasks = [PartTask(f"{i:05d}", ()) for i in range(parts)]
        assert [*part_builder.run_tasks("zephyr", job, tasks, workers, lambda _: None)] == []
        assert " ".join(caplog.messages) == message
