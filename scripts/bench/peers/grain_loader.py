"""Grain: rows in memory and rows in ArrayRecord files, in the order of its documentation (shuffle, read, batch) and
with the batch made first; and, for ``--latency``, records that are each some milliseconds away.
"""

# pyright: reportMissingImports=false
# (the library is optional)

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.interface import BATCH, Corpus, Peer, Setting, place


class Memory:
    """All rows in one array."""

    def __init__(self, corpus: Corpus) -> None:
        self.rows = np.array(corpus.rows())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.rows[index]


class FarAway(Memory):
    """Rows that each take a request of ``latency_s``."""

    def __init__(self, corpus: Corpus, latency_s: float) -> None:
        self.rows, self.latency_s = corpus.rows(), latency_s

    def __getitem__(self, index: Any) -> np.ndarray:
        time.sleep(self.latency_s)
        return np.asarray(self.rows[index])


def decode(record: bytes) -> np.ndarray:
    return np.frombuffer(record, np.int32)


def write(corpus: Corpus, layout: str) -> None:
    if layout != "array_record":
        return
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(corpus.folder / "rows.array_record"), "group_size:1,uncompressed")
    for rows in corpus.chunks():
        for row in rows:
            writer.write(row.tobytes())
    writer.close()


def _source(corpus: Corpus, setting: Setting) -> Any:
    if latency := setting.options.get("latency_s"):
        return FarAway(corpus, latency)
    if setting.formats[0] == "array_record":
        import grain

        return grain.sources.ArrayRecordDataSource(str(corpus.folder / "rows.array_record"))
    return Memory(corpus)


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    import grain

    dataset: Any = grain.MapDataset.source(_source(corpus, setting)).seed(0).shuffle().repeat()
    if setting.formats[0] == "array_record":
        dataset = dataset.map(decode)
    workers = setting.options.get("workers", 0)
    threads = setting.options.get("threads")
    read = grain.ReadOptions(num_threads=threads) if threads is not None else None
    if setting.options.get("batch_first"):
        dataset = dataset.batch(BATCH, drop_remainder=True).to_iter_dataset(read)
        at = step
    else:
        dataset = dataset.to_iter_dataset(read).batch(BATCH, drop_remainder=True)
        at = step * BATCH
    if workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    batches = iter(dataset)
    if step:
        batches.set_state(_state_at(batches.get_state(), at, step))
    try:
        for batch in batches:
            yield place(batch)
    finally:
        if hasattr(batches, "close"):
            batches.close()


def _state_at(state: dict[str, Any], at: int, step: int) -> dict[str, Any]:
    """The state that a checkpoint of that step would hold."""
    if "next_index" in state:
        return state | {"next_index": at}
    if "workers_state" in state:  # batches go round the workers
        workers = state["workers_state"]
        ahead = {key: _state_at(worker, step * BATCH, step) for key, worker in workers.items()}
        return state | {"workers_state": ahead, "iterations_to_skip": dict.fromkeys(workers, 0)}
    return {k: _state_at(v, at, step) if isinstance(v, dict) else v for k, v in state.items()}


PEER = Peer(
    title="Grain",
    packages=("grain", "array-record"),
    install="uv pip install grain array-record",
    settings=(
        Setting("memory, batch last", "default", "loads all"),
        Setting("memory, batch first", "documented", "loads all", {"batch_first": True, "threads": 0}),
        Setting("ArrayRecord, batch last", "default", "streams", formats=("array_record",)),
        Setting("ArrayRecord, batch first", "documented", "streams", {"batch_first": True}, formats=("array_record",)),
    ),
    write=write,
    stream=stream,
    modules=("grain",),
    resumes="set_state",
)

FAR = (
    Setting("a record a request", "default", "streams"),
    Setting("the same, 128 threads", "documented", "streams", {"threads": 128}),
)
