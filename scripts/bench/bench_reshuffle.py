"""What it costs to shuffle a store: time against copying the same cache, and peak memory against
the setting.

    python scripts/bench/bench_reshuffle.py --check --json docs/bench/reshuffle.json

Documents of 100 to 1,900 tokens in 16 bits. "Copy" is `headrace cache consolidate`: each chunk read
and checked, hashed and written once; a shuffle does so twice, through files in between. "cp" copies
the files as they are and checks nothing. Each is done by one process of its own (`engine="inline"`)
and takes turns with the others; the ratio is of the best turns. Peak memory is the most that the
process held at a time, interpreter included, without the pages of files that it maps, which the
system takes back when it likes; at two sizes of the corpus under one setting. That each document
comes exactly once is held by a hash of each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import Report, run_bench

from headrace import open_cache
from headrace.store import TokenCache
from headrace.store.layout import CacheLayout
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter

MEMORY = 448 << 20
PROGRAM = """
import json, re, shutil, sys, threading, time
what, source, target, memory = sys.argv[1:]
peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.01):
        peak = max(peak, int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10)
watcher = threading.Thread(target=watch)
watcher.start()
if what != "cp":  # which needs no library
    from headrace.ingest.reshuffle import reshuffle
    from headrace.ingest.shuffle_plan import ReshuffleConfig
    from headrace.store import open_cache
    from headrace.store.consolidate import consolidate
began, cpu = time.perf_counter(), time.process_time()
if what == "shuffle":
    reshuffle(source, target, ReshuffleConfig(7, memory=int(memory)), engine="inline", progress=False)
elif what == "copy":
    consolidate(open_cache(source), target)
else:
    shutil.copytree(source, target)
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
done.set()
watcher.join()
print(json.dumps([seconds, cpu, peak]))
"""


def make_cache(root: str, mebibytes: int) -> TokenCache:
    """A cache of random documents, in parts of 128 MiB."""
    rng = np.random.default_rng(0)
    layout = CacheLayout("uint16")
    records = []
    for part in range(-(-mebibytes // 128)):
        writer = PartWriter(root, f"{part:05d}", layout)
        for _ in range(min(128, mebibytes - 128 * part) // 8):
            lengths = rng.integers(100, 1900, 4096)
            writer.append(rng.integers(0, 50_000, int(lengths.sum()), np.uint16), lengths)
        records.append(writer.close())
    tokenizer = {"path": "bench", "file": None, "fingerprint": "bench", "vocab_size": 50_000}
    write_ledger(root, Ledger(False, tokenizer, layout.to_dict()).complete(records))
    return open_cache(root)


def hashes(cache: TokenCache) -> np.ndarray:
    """A hash of each document, in stored order."""
    found: list[int] = []
    for first in range(0, cache.num_documents, 1 << 15):
        last = min(first + (1 << 15), cache.num_documents)
        pieces = np.split(
            cache.leaf("input_ids").values(first, last), np.cumsum(cache.lengths(first, last))[:-1]
        )
        found += [
            int.from_bytes(hashlib.blake2b(p.tobytes(), digest_size=8).digest(), "little")
            for p in pieces
        ]
    return np.array(found, np.uint64)


def timed(what: str, source: str, target: str) -> list[float]:
    """Wall seconds, CPU seconds and peak bytes of one way, in a fresh process."""
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-c", PROGRAM, what, source, target, str(MEMORY)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(args: argparse.Namespace, report: Report) -> None:
    sizes = (96, 192) if args.quick else (512, 2048)
    turns = 3
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            source = f"{folder}/cache"
            cache = make_cache(source, size)
            every: dict[str, list[list[float]]] = {"cp": [], "copy": [], "shuffle": []}
            for _ in range(turns):
                for what, runs in every.items():
                    runs.append(timed(what, source, f"{folder}/{what}"))
            best = {
                what: (*np.min(runs, axis=0)[:2], np.max(runs, axis=0)[2])
                for what, runs in every.items()
            }
            shuffled = open_cache(f"{folder}/shuffle")
            original = hashes(cache)
            copy = hashes(shuffled)
            once = bool((copy[shuffled.stored_at(np.arange(original.size))] == original).all())
            for what, (seconds, cpu, peak) in best.items():
                ratios = seconds / best["copy"][0], cpu / best["copy"][1]
                rows.append([size, what, seconds, cpu, *ratios, peak / 2**20])
            report.bar(
                f"{size} MiB: shuffle over copy, wall",
                best["shuffle"][0] / best["copy"][0],
                at_most=2.5,
            )
            report.bar(
                f"{size} MiB: shuffle over copy, CPU",
                best["shuffle"][1] / best["copy"][1],
                at_most=2.5,
            )
            report.bar(
                f"{size} MiB: peak memory over the setting",
                best["shuffle"][2] / MEMORY,
                at_most=1.0,
            )
            report.bar(f"{size} MiB: each document once, where the seed says", once, at_least=1)
            for path in Path(folder).iterdir():
                shutil.rmtree(path)
    report.number("memory_setting", MEMORY)
    report.table(
        f"Shuffling a store, memory set to {MEMORY >> 20} MiB",
        ["MiB", "way", "wall s", "CPU s", "wall, of a copy", "CPU, of a copy", "peak MiB"],
        rows,
    )


if __name__ == "__main__":
    run_bench("bench_reshuffle", __doc__, measure)
