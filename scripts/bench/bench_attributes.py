"""What joining an attribute costs: seconds of CPU and memory for as many ids as documents.

    python scripts/bench/bench_attributes.py --check --json docs/bench/attributes.json

A cache of 1e8 documents (``--quick``: 1e6), of which only ids can be read (texts of 16 bytes, made
as they are asked for), and Parquet files with as many rows, in another order, of an id and a
float32. Measured is a process that joins them, saves the result, and reads it again; memory is the
largest resident size of the process above that at its start, without the pages of the saved file.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _common import Report, run_bench

from headrace.data.attributes import AttributeConfig, open_attribute
from headrace.order.permutation import Feistel
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS, CacheLayout, LeafKind, LeafSpec
from headrace.store.leaf import LeafPart
from headrace.store.ledger import Ledger
from headrace.store.parts import LeafRecord, PartRecord
from headrace.store.plain import ComputedArray

WIDTH = 16
ROWS = 1 << 20  # of a group of rows
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def ids_of(numbers: np.ndarray) -> np.ndarray:
    """The texts of ids, uint8 ``[n, 16]``: hexadecimal digits of scrambled numbers."""
    scrambled = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    shifts = np.arange(WIDTH, dtype=np.uint64) * np.uint64(4)
    return _DIGITS[(scrambled[:, None] >> shifts & np.uint64(15)).astype(np.int64)]


def forged_cache(documents: int, folder: str) -> TokenCache:
    """So many documents of one token, of which only the ids can be read."""
    layout = CacheLayout("uint16")

    def bytes_of(start: int, stop: int) -> Callable[[], np.ndarray]:
        first = start // WIDTH
        text = ids_of(np.arange(first, -(-stop // WIDTH))).reshape(-1)
        return lambda: text[start - first * WIDTH : stop - first * WIDTH]

    def offsets_of(start: int, stop: int) -> Callable[[], np.ndarray]:
        return lambda: np.arange(start, stop, dtype=np.int64) * WIDTH

    def open_part(name: str, kind: LeafKind, part: int) -> LeafPart:
        assert name != TOKENS
        data = ComputedArray("ids", documents * WIDTH, bytes_of, dtype="uint8")
        return LeafPart(documents, data, ComputedArray("ids", documents + 1, offsets_of))

    leaf = LeafSpec("id", "uint8", "ragged").to_dict()
    part = PartRecord(
        "00000",
        documents,
        documents,
        "forged",
        leaves={"id": LeafRecord(documents * WIDTH, "forged")},
    )
    tokenizer = {"path": "forged", "file": None, "fingerprint": "forged", "vocab_size": 1 << 16}
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": 0}
    ledger = Ledger(True, tokenizer, layout.to_dict(), parts=[part], leaves=[leaf])
    return TokenCache(folder, ledger, open_part)


def write_rows(path: Path, documents: int) -> None:
    """A Parquet file with the ids of all documents, in another order, each with a number."""
    order = Feistel(documents, seed=1)
    schema = pa.schema({"id": pa.string(), "quality": pa.float32()})
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for first in range(0, documents, ROWS):
            numbers = order(np.arange(first, min(first + ROWS, documents)))
            text = ids_of(numbers).tobytes()
            offsets = np.arange(numbers.size + 1, dtype=np.int32) * WIDTH
            ids = pa.StringArray.from_buffers(
                numbers.size, pa.py_buffer(offsets), pa.py_buffer(text)
            )
            values = pa.array((numbers % 1000).astype(np.float32))
            writer.write_table(pa.Table.from_arrays([ids, values], schema=schema))


def largest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(args: argparse.Namespace, report: Report) -> None:
    documents = 1_000_000 if args.quick else args.documents
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.parquet")
        # In a process of its own: the memory of writing is not that of the join
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(write_rows, rows, documents).result()
        cache = forged_cache(documents, f"{folder}/cache")
        config = AttributeConfig(str(rows))
        before = largest_bytes()
        begin = time.process_time()
        open_attribute(cache, "quality", config)
        join_s = time.process_time() - begin
        grown = largest_bytes() - before
        begin = time.process_time()
        values = open_attribute(cache, "quality", config).values
        read_s = time.process_time() - begin
        right = np.arange(documents) % 1000
        assert (values == right).all()
        assert files.names_in(f"{folder}/cache/attributes")
    report.table(
        f"{documents:,} ids",
        ["documents", "CPU s, joined", "CPU s, read again", "MiB", "bytes a document"],
        [[f"{documents:,}", join_s, read_s, grown / 2**20, grown / documents]],
    )
    report.bar("memory of the join, GiB", grown / 2**30, at_most=2.0 * documents / 100_000_000)
    report.bar("CPU of reading again over joining", read_s / join_s, at_most=0.1)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--documents", type=int, default=100_000_000, help="documents and ids")


if __name__ == "__main__":
    run_bench("bench_attributes", __doc__, measure, add_arguments=flags)
