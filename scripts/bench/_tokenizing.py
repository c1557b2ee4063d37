"""Builds with gigatoken against encoding alone, with ``encode_batch_fast`` and gigatoken's own
batches, on one text.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import statistics
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import gigatoken
import zstandard
from _common import Report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.gigatoken_encoder import code_points_of
from headrace.ingest.tokenize import FileTokenizer, cores

VOCABULARY = 32_000
FILES = 8
BATCH_CHARS = 8 << 20
LIBRARY = "encode_batch_fast alone"
ALONE = "gigatoken alone"


def own_texts(megabytes: float) -> list[str]:
    """Python files of this environment, each once: text that repeats itself is a gift to a cache of
    words.
    """
    texts: list[str] = []
    size = 0
    for name in ("stdlib", "purelib"):
        for path in sorted(Path(sysconfig.get_paths()[name]).rglob("*.py")):
            if name == "stdlib" and "site-packages" in path.parts:
                continue
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
            size += len(texts[-1])
            if size >= megabytes * 1e6:
                return texts
    return texts


def train(texts: list[str], path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def write_sources(texts: list[str], folder: Path) -> dict[str, Path]:
    """The texts as JSONL, and packed with zstd, in several files each."""
    sources = {name: folder / name for name in ("JSONL", "zst")}
    for source in sources.values():
        source.mkdir()
    for i in range(FILES):
        raw = "".join(json.dumps({"text": t}) + "\n" for t in texts[i::FILES]).encode()
        (sources["JSONL"] / f"{i}.jsonl").write_bytes(raw)
        (sources["zst"] / f"{i}.jsonl.zst").write_bytes(zstandard.ZstdCompressor(3).compress(raw))
    return sources


def batches_of(texts: list[str]) -> list[list[str]]:
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        batches[-1].append(text)
        size += len(text)
        if size >= BATCH_CHARS:
            batches.append([])
            size = 0
    return batches


def cpu_seconds() -> float:
    """Of this process, and of its workers that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in used)


def seconds_of(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of some work."""
    gc.collect()
    began = time.perf_counter()
    cpu = cpu_seconds()
    work()
    return time.perf_counter() - began, cpu_seconds() - cpu


def encode_with_library(path: Path, texts: list[str]) -> tuple[float, float]:
    tokenizer = Tokenizer.from_file(str(path))
    batches = batches_of(texts)
    return seconds_of(
        lambda: [len(tokenizer.encode_batch_fast(b, add_special_tokens=False)) for b in batches]
    )


def encode_with_gigatoken(path: Path, texts: list[str]) -> tuple[float, float]:
    """On all cores, with empty caches; loading it is not counted."""
    tokenizer = gigatoken.Tokenizer.from_json(path.read_text())
    batches = batches_of(texts)
    return seconds_of(lambda: [len(tokenizer.encode_batch(b, parallel=True)) for b in batches])


def measure_gigatoken(args: argparse.Namespace, folder: Path, report: Report) -> None:
    """Fills the report."""
    texts = own_texts(16 if args.quick else args.gigatoken_megabytes)
    megabytes = sum(len(t.encode()) for t in texts) / 1e6
    path = folder / "tokenizer-32k.json"
    train(texts[:: max(1, len(texts) // 1200)], path)
    sources = write_sources(texts, folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache-home")
    began = time.perf_counter()
    cpu = time.process_time()
    ranges = code_points_of(FileTokenizer(path.read_bytes(), str(path)))
    report.number(
        "comparing all code points, once a tokenizer",
        {
            "s": time.perf_counter() - began,
            "CPU s": time.process_time() - cpu,
            "differ": sum(stop - start for start, stop in ranges),
        },
    )
    few = texts[:: max(1, int(megabytes / (2 if args.quick else 8)))]
    few_megabytes = sum(len(t.encode()) for t in few) / 1e6
    encode_with_gigatoken(path, few)  # imports awkward, which takes a second
    wall: dict[str, list[float]] = {}
    cpu_rates: dict[str, list[float]] = {}

    def note(name: str, size: float, spent: tuple[float, float]) -> None:
        wall.setdefault(name, []).append(size / spent[0])
        cpu_rates.setdefault(name, []).append(size / spent[1])

    for _ in range(1 if args.quick else args.rounds):
        note(LIBRARY, few_megabytes, encode_with_library(path, few))
        note(ALONE, megabytes, encode_with_gigatoken(path, texts))
        for name, source in sources.items():
            note(
                f"build from {name}",
                megabytes,
                seconds_of(lambda: build(source, path, folder / "cache")),  # noqa: B023
            )
    load = os.getloadavg()[0]
    rows = [
        [n, min(r), statistics.median(r), max(r), statistics.median(cpu_rates[n])]
        for n, r in wall.items()
    ]
    columns = ["what", "MB/s, least", "median", "most", "MB a CPU s, median"]
    report.table(f"BPE of {VOCABULARY:,}, {cores()} cores, load {load:.1f}", columns, rows)
    for name in sources:
        for alone, least in ((LIBRARY, 15.0), (ALONE, 0.5)):
            of_wall, of_cpu = (
                statistics.median(
                    b / a for b, a in zip(rates[f"build from {name}"], rates[alone], strict=True)
                )
                for rates in (wall, cpu_rates)
            )
            report.number(f"build from {name} against {alone}, by CPU", of_cpu)
            if args.quick:  # starting workers takes as long as the build
                report.number(f"build from {name} against {alone}", of_wall)
            else:
                report.bar(f"build from {name} against {alone}", of_wall, at_least=least)
    report.note(
        f"{len(texts):,} Python files, {megabytes:.0f} MB, each once; ratios are medians of rounds"
    )


def build(source: Path, path: Path, cache: Path) -> None:
    """With gigatoken, by one worker a core."""
    shutil.rmtree(cache, ignore_errors=True)
    done = build_cache(
        SourceConfig([str(source)]),
        TokenizerConfig(str(path), engine="gigatoken"),
        str(cache),
        engine="pool",
        workers=cores(),
        progress=False,
        part_bytes=32 << 20,
    )
    assert done.tokenizer_engine == "gigatoken"
    assert not done.encoded.differences
