"""Grain: rows in memory and rows in ArrayRecord files, in the order of its documentation (shuffle,
read, batch) and with the batch made first; and, for ``--latency``, records that are each some
milliseconds away.
"""

# pyright: reportMissingImports=false
# (the library is optional)

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from peers.interface import BATCH, Corpus, Peer, Setting, both_dtypes, place


class Memory:
    """All rows in one array."""

    def __init__(self, corpus: Corpus, dtype: str) -> None:
        self.rows = np.array(corpus.rows(dtype))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.rows[index]


class FarAway(Memory):
    """Rows that each take a request of ``latency_s``."""

    def __init__(self, corpus: Corpus, latency_s: float) -> None:
        self.rows = corpus.rows("int32")
        self.latency_s = latency_s

    def __getitem__(self, index: Any) -> np.ndarray:
        time.sleep(self.latency_s)
        return np.asarray(self.rows[index])


def decode(record: bytes, dtype: str) -> np.ndarray:
    return np.frombuffer(record, dtype)


def write(corpus: Corpus, layout: str) -> None:
    if not layout.startswith("array_record"):
        return
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(corpus.folder / layout), "group_size:1,uncompressed")
    for rows in corpus.chunks(layout.split("-")[1]):
        for row in rows:
            writer.write(row.tobytes())
    writer.close()


def _source(corpus: Corpus, setting: Setting) -> Any:
    if latency := setting.options.get("latency_s"):
        return FarAway(corpus, latency)
    if setting.formats[0].startswith("array_record"):
        import grain

        return grain.sources.ArrayRecordDataSource(str(corpus.folder / setting.formats[0]))
    return Memory(corpus, setting.dtype)


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    import grain

    dataset: Any = grain.MapDataset.source(_source(corpus, setting)).seed(0).shuffle().repeat()
    if setting.formats[0].startswith("array_record"):
        dataset = dataset.map(partial(decode, dtype=setting.dtype))
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
        *both_dtypes("memory, batch last", "default", "loads all"),
        *both_dtypes(
            "memory, batch first", "documented", "loads all", {"batch_first": True, "threads": 0}
        ),
        *both_dtypes(
            "ArrayRecord, batch last", "default", "streams", layout="array_record-{dtype}"
        ),
        *both_dtypes(
            "ArrayRecord, batch first",
            "documented",
            "streams",
            {"batch_first": True},
            layout="array_record-{dtype}",
        ),
    ),
    write=write,
    stream=stream,
    modules=("grain",),
    resumes="set_state",
)

FAR = (
    Setting("a record a request", "default", "streams", "int32"),
    Setting("the same, 128 threads", "documented", "streams", "int32", {"threads": 128}),
)
