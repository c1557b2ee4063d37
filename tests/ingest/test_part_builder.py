"""The pipeline: parts are the same whatever the batches and the company; nothing half done ever
looks whole.
"""

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.ingest import SourceConfig, TokenizerConfig
from headrace.ingest.part_builder import BuildJob, PartBuilder, PartTask, plan_parts
from headrace.ingest.progress import Progress
from headrace.ingest.tokenize import ByteTokenizer, Encoded, load_tokenizer
from headrace.store import CacheLayout
from headrace.store.ahead import ItemsAhead
from headrace.store.ledger import read_part_record
from headrace.store.ledger_table import PartRecord

LAYOUT = CacheLayout("uint16", chunk_elements=64, shard_chunks=4)


def job_of(root: Path, corpus: Path, **settings: object) -> tuple[BuildJob, list[PartTask]]:
    source = SourceConfig([str(corpus)], **settings)
    return BuildJob(str(root), source, ByteTokenizer().record(), LAYOUT), plan_parts(
        source.files(), part_bytes=1
    )


def build_parts(
    job: BuildJob,
    tasks: Sequence[PartTask],
    *,
    tokenizer: ByteTokenizer | None = None,
    report: Callable[[Progress], None] = lambda _: None,
    batch_bytes: int | None = None,
) -> Iterator[PartRecord]:
    build = PartBuilder(job, tokenizer or ByteTokenizer(), batch_bytes)
    return (build(task, job.root, report) for task in tasks)


@given(
    files=st.lists(st.lists(st.text(max_size=30), max_size=12), min_size=1, max_size=4).filter(any),
    batch_bytes=st.sampled_from([1, 7, 100, 1 << 20]),
)
def test_parts_hold_their_documents_whatever_the_batches(
    tmp_path_factory: pytest.TempPathFactory,
    write_jsonl: Callable[..., str],
    tree: Callable[..., dict[str, bytes]],
    files: list[list[str]],
    batch_bytes: int,
):
    folder = tmp_path_factory.mktemp("engine")
    for i, texts in enumerate(files):
        write_jsonl(folder / "corpus" / f"{i}.jsonl", texts)
    job, tasks = job_of(folder / "a", folder / "corpus")
    moved: list[Progress] = []
    records = list(build_parts(job, tasks, report=moved.append, batch_bytes=batch_bytes))
    wanted = [[t for f in task.files for t in files[int(Path(f.path).stem)]] for task in tasks]
    assert [r.documents for r in records] == [len(w) for w in wanted]
    assert [r.tokens for r in records] == [sum(len(t.encode()) + 1 for t in w) for w in wanted]
    assert [r.extra["empty_documents"] for r in records] == [w.count("") for w in wanted]
    assert sum(m.documents for m in moved) == sum(r.documents for r in records)
    assert sum(m.tokens for m in moved) == sum(r.tokens for r in records)
    assert sum(m.text_bytes for m in moved) == sum(r.extra["text_bytes"] for r in records)
    assert sum(m.stored_bytes for m in moved) == sum(f.size or 0 for t in tasks for f in t.files)
    # Alone, in another order and in batches of another size, every part is the same to the bit.
    again, _ = job_of(folder / "b", folder / "corpus")
    for task in tasks[::-1]:
        assert list(build_parts(again, [task])) == [records[tasks.index(task)]]
    assert tree(folder / "a") == tree(folder / "b")


def test_jobs_travel(tmp_path: Path, write_jsonl: Callable[..., str]):
    write_jsonl(tmp_path / "corpus" / "a.jsonl", ["x"])
    job, tasks = job_of(tmp_path / "out", tmp_path / "corpus")
    job, tasks = pickle.loads(pickle.dumps((job, tasks)))
    build = job.part_builder()
    assert build(tasks[0], job.root, lambda _: None).documents == 1


def test_the_parts_before_a_bad_line_are_kept(tmp_path: Path, write_jsonl: Callable[..., str]):
    for i in range(4):
        write_jsonl(tmp_path / "corpus" / f"{i}.jsonl", [f"text {i} {j}" for j in range(50)])
    with (tmp_path / "corpus" / "2.jsonl").open("a") as f:
        f.write("{\n")
    job, tasks = job_of(tmp_path / "out", tmp_path / "corpus")
    done: list[PartRecord] = []
    with pytest.raises(SourceError, match=r"2\.jsonl, line 51"):
        done.extend(build_parts(job, tasks, batch_bytes=64))
    assert [r.name for r in done] == ["00000", "00001"]
    assert [read_part_record(job.root, t.name) is not None for t in tasks] == [
        True,
        True,
        False,
        False,
    ]


class Failing(ByteTokenizer):
    """Fails at the batch that holds a given text; the batches after it are fine."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        if self.text in texts:
            time.sleep(0.05)  # the batches after it are done first
            raise RuntimeError("out of luck")
        return super().encode_batch(texts)


def test_a_part_with_a_failed_batch_is_never_complete(
    tmp_path: Path, write_jsonl: Callable[..., str]
):
    write_jsonl(tmp_path / "corpus" / "0.jsonl", [f"text {j}" for j in range(20)])
    write_jsonl(tmp_path / "corpus" / "1.jsonl", ["more"])
    job, tasks = job_of(tmp_path / "out", tmp_path / "corpus")
    with pytest.raises(RuntimeError, match="out of luck"):
        list(build_parts(job, tasks, tokenizer=Failing("text 17"), batch_bytes=1))
    assert [read_part_record(job.root, t.name) for t in tasks] == [None, None]


def test_a_build_that_is_given_up_leaves_no_threads(
    tmp_path: Path, write_jsonl: Callable[..., str]
):
    for i in range(6):
        write_jsonl(tmp_path / "corpus" / f"{i}.jsonl", ["some text"] * 500)
    job, tasks = job_of(tmp_path / "out", tmp_path / "corpus")
    before = set(threading.enumerate())  # the library's, too, that serve a whole process

    def give_up(_: Progress) -> None:
        assert begun(before)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(build_parts(job, tasks, report=give_up, batch_bytes=10))
    assert not begun(before)


def begun(before: set[threading.Thread]) -> list[str]:
    """The library's threads that run now and did not before."""
    threads = set(threading.enumerate()) - before
    return [thread.name for thread in threads if thread.name.startswith("headrace-")]


class TestPrefetch:
    @given(weights=st.lists(st.integers(0, 30), max_size=30), capacity=st.integers(1, 40))
    def test_all_items_in_order_and_never_too_much_waiting(self, weights: list[int], capacity: int):
        ahead = ItemsAhead(iter(weights), weigh=lambda w: w, capacity=capacity)
        got = []
        for item in ahead:
            with ahead._changed:
                waiting = [w for _, w in ahead._waiting]
                assert sum(waiting) == ahead._weight
                assert ahead._weight <= capacity or len(waiting) == 1
            got.append(item)
        assert got == weights
        ahead.close()

    def test_the_reader_waits_for_the_consumer(self):
        made: list[int] = []

        def items() -> Iterator[int]:
            for i in range(100):
                made.append(i)
                yield i

        ahead = ItemsAhead(items(), weigh=lambda _: 1, capacity=3)
        assert next(iter(ahead)) == 0
        time.sleep(0.1)
        assert len(made) <= 1 + 3 + 1  # taken, waiting, in hand
        ahead.close()
        assert len(made) < 10
        assert not ahead._thread.is_alive()

    def test_an_error_comes_after_what_was_before_it(self):
        def items() -> Iterator[int]:
            yield from range(3)
            raise SourceError("bad")

        ahead = ItemsAhead(items(), weigh=lambda _: 1, capacity=10)
        got: list[int] = []
        with pytest.raises(SourceError, match="bad"):
            got.extend(ahead)
        assert got == [0, 1, 2]
        ahead.close()


def test_a_document_larger_than_every_limit(tmp_path: Path, write_jsonl: Callable[..., str]):
    write_jsonl(tmp_path / "corpus" / "a.jsonl", ["x", "y" * 3_000_000, "z"])
    job, tasks = job_of(tmp_path / "out", tmp_path / "corpus")
    job = replace(job, layout=CacheLayout("uint16"))
    (record,) = build_parts(job, tasks, batch_bytes=1000)
    assert (record.documents, record.tokens) == (3, 3_000_005)


@given(
    texts=st.lists(
        st.sampled_from(["good", "good bad", "", "größer", "bäd good"]), min_size=1, max_size=30
    ),
    broken=st.sets(st.integers(0, 29)),
    batch_bytes=st.sampled_from([1, 40, 1 << 20]),
)
def test_what_the_tokenizer_panics_at_is_a_bad_line(
    tmp_path_factory: pytest.TempPathFactory,
    panicking_path: str,
    texts: list[str],
    broken: set[int],
    batch_bytes: int,
):
    """Skipped and counted like a line that is no JSON, the first of both kinds named; whatever the
    batches.
    """
    folder = tmp_path_factory.mktemp("panics")
    lines = ["no JSON" if i in broken else json.dumps({"text": t}) for i, t in enumerate(texts)]
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    source = SourceConfig([str(folder)], on_bad_line="skip")
    tokenizer = load_tokenizer(TokenizerConfig(panicking_path, eos="none"))
    job = BuildJob(str(folder / "out"), source, tokenizer.record(), LAYOUT)
    tasks = plan_parts(source.files(), 1)
    (record,) = build_parts(job, tasks, tokenizer=tokenizer, batch_bytes=batch_bytes)
    bad = [i for i, t in enumerate(texts) if i in broken or not t.isascii()]
    kept = [t for i, t in enumerate(texts) if i not in bad]
    assert (record.documents, record.tokens) == (len(kept), sum(len(t.split()) for t in kept))
    assert record.extra["text_bytes"] == sum(map(len, kept))
    assert record.extra["empty_documents"] == kept.count("")
    assert record.extra["skipped_lines"] == len(bad)
    assert str(record.extra["first_skipped"]).startswith(
        f"{folder}/a.jsonl, line {bad[0] + 1}: " if bad else ""
    )


def test_a_pair_of_which_one_answer_cannot_be_encoded_is_left_out_whole(
    tmp_path: Path, panicking_path: str
):
    pairs = [("good", "bad"), ("good", "bäd"), ("größer", "bad"), ("bad", "good")]
    records = [json.dumps({"prompt": "good", "chosen": a, "rejected": b}) for a, b in pairs]
    (tmp_path / "a.jsonl").write_text("\n".join(records))
    source = SourceConfig([str(tmp_path / "a.jsonl")], on_bad_line="skip", kind="preference")
    tokenizer = load_tokenizer(TokenizerConfig(panicking_path, eos="none"))
    for k, batch_bytes in enumerate((1, 10, 1 << 20)):
        job = BuildJob(str(tmp_path / f"out{k}"), source, tokenizer.record(), LAYOUT, "preference")
        (record,) = build_parts(
            job, plan_parts(source.files(), 1), tokenizer=tokenizer, batch_bytes=batch_bytes
        )
        assert (record.documents, record.extra["skipped_lines"]) == (4, 2)
        assert str(record.extra["first_skipped"]).startswith(
            f"{tmp_path}/a.jsonl, line 2: cannot be encoded by this"
        )
