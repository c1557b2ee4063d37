"""Token files as Megatron-LM and nmoe write them, for tests that go from there to batches."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_megatron(base: Path, documents: Sequence[Sequence[int]]) -> Path:
    """``base.bin`` and ``base.idx`` of int32 ids, one sequence a document; the former's path."""
    arrays = [np.array(ids, "<i4") for ids in documents]
    base.parent.mkdir(parents=True, exist_ok=True)
    base.with_suffix(".bin").write_bytes(b"".join(a.tobytes() for a in arrays))
    lengths = np.array([a.size for a in arrays], "<i4")
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * 4
    bounds = np.arange(len(arrays) + 1, dtype="<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, lengths.size, bounds.size)
    base.with_suffix(".idx").write_bytes(
        head + lengths.tobytes() + pointers.astype("<i8").tobytes() + bounds.tobytes()
    )
    return base.with_suffix(".bin")


def write_nmoe(base: Path, documents: Sequence[Sequence[int]]) -> Path:
    """``base.npy`` and ``base.idx`` of uint32 ids; the former's path."""
    stops = np.cumsum([len(ids) for ids in documents])
    base.parent.mkdir(parents=True, exist_ok=True)
    np.save(base.with_suffix(".npy"), np.array([i for ids in documents for i in ids], "<u4"))
    pairs = np.stack([np.concatenate([[0], stops[:-1]]), stops], 1).astype("<u8")
    base.with_suffix(".idx").write_bytes(
        b"NMOEIDX\0" + struct.pack("<QQQ", 1, len(documents), 0) + pairs.tobytes()
    )
    return base.with_suffix(".npy")
