"""Building caches: against the tokenizer alone, by workers, engines, and against Levanter's builder, on the same text.

The text is Python's own standard library (source files), the tokenizer an 8192 BPE trained on it. Everything is
measured in one run on the same cores: what ``encode_batch_fast`` alone makes of the texts, then whole builds from JSONL
with all that they write. ``--quick`` takes less text and no Ray.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _common import Report, run_bench
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.ingest.build import BuildReport, build_cache
from headrace.ingest.pieces import cores
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig

PART_BYTES = 4 << 20
ROUNDS = 3


def texts_of(megabytes: float) -> list[str]:
    """Source files of the standard library, over again until there is enough."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    every: list[str] = []
    for path in sorted(folder.glob("**/*.py")):
        if "site-packages" not in path.parts:
            try:
                every.append(path.read_text())
            except UnicodeDecodeError:
                continue
    texts: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        for text in every:
            texts.append(text)
            size += len(text)
            if size >= megabytes * 1e6:
                break
    return texts


def train(texts: list[str], path: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[:400], trainer)
    tokenizer.save(str(path))
    return tokenizer


def encode_alone(tokenizer: Tokenizer, texts: list[str]) -> tuple[float, int]:
    """Seconds of ``encode_batch_fast`` on batches of about 1 MB, and tokens (one more a document)."""
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        batches[-1].append(text)
        size += len(text)
        if size > 1_000_000:
            batches.append([])
            size = 0
    gc.collect()
    began = time.perf_counter()
    tokens = 0
    for batch in batches:
        tokens += sum(len(e) + 1 for e in tokenizer.encode_batch_fast(batch, add_special_tokens=False))
    return time.perf_counter() - began, tokens


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@contextmanager
def on_one_core() -> Iterator[None]:
    """This process and those that it starts run on one core while the block runs, where the system can do that."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if before is not None:
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def levanter_build(texts: list[str], tokenizer: Tokenizer, folder: str) -> float | None:
    """Seconds of Levanter's serial builder with the same tokenizer; None if Levanter is not installed."""
    try:
        import numpy as np
        from levanter.store.cache import SerialCacheWriter
    except ImportError:
        return None
    exemplar = {"input_ids": np.zeros(0, np.int32)}
    began = time.perf_counter()
    with SerialCacheWriter(folder, exemplar) as writer:
        for start in range(0, len(texts), 1024):
            encoded = tokenizer.encode_batch_fast(texts[start : start + 1024], add_special_tokens=False)
            writer.write_batch([{"input_ids": np.array([*e.ids, 0], np.int32)} for e in encoded])
    return time.perf_counter() - began


def measure(args: argparse.Namespace, report: Report) -> None:
    """Fills the report."""
    megabytes = 12 if args.quick else args.megabytes
    texts = texts_of(megabytes)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        tokenizer = train(texts, folder / "tokenizer.json")
        source = folder / "corpus.jsonl"
        with source.open("w") as f:
            f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
        encode_alone(tokenizer, texts[:200])
        rows: list[list[object]] = []
        best: dict[str, float] = {}

        cpu: dict[str, float] = {}
        spent = cpu_seconds()

        def note(what: str, seconds: float, tokens: int) -> None:
            nonlocal spent
            used, spent = cpu_seconds() - spent, cpu_seconds()
            best[what] = min(best.get(what, float("inf")), seconds)
            cpu[what] = min(cpu.get(what, float("inf")), used)
            rows.append([what, seconds, used, len(texts) / seconds, tokens / seconds / 1e6, megabytes / seconds])

        def build(what: str, **options: object) -> BuildReport:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            config = SourceConfig([str(source)])
            done = build_cache(
                config, TokenizerConfig(str(folder / "tokenizer.json")), str(folder / "cache"), progress=False,
                part_bytes=PART_BYTES, **options,  # type: ignore[arg-type]
            )  # fmt: skip
            note(what, done.seconds, done.tokens)
            return done

        tokens = 0
        for _ in range(1 if args.quick else ROUNDS):  # interleaved: what else the machine does falls on all
            seconds, tokens = encode_alone(tokenizer, texts)
            note("encode_batch_fast alone", seconds, tokens)
            done = build("build, inline", engine="inline")
            assert done.tokens == tokens
            if cores() > 1:
                with on_one_core():
                    build("build, pool of 1, on one core", engine="pool", workers=1)
                build("build, pool of 2", engine="pool", workers=2)
        if not args.quick and not args.no_ray:
            try:
                build("build, Ray (started here)", engine="ray")
            except Exception as error:  # noqa: BLE001 (a machine too busy to start it)
                report.note(f"Ray was left out: {error}")
        seconds = levanter_build(texts, tokenizer, str(folder / "levanter"))
        if seconds is not None:
            note("Levanter's SerialCacheWriter", seconds, tokens)
        report.table("Builds of one JSONL file", ["what", "s", "CPU s", "documents/s", "M tokens/s", "MB/s"], rows)
        alone = best["encode_batch_fast alone"]
        report.bar("inline build: share of encode_batch_fast", alone / best["build, inline"], at_least=0.9)
        report.number("inline build: share in CPU seconds", cpu["encode_batch_fast alone"] / cpu["build, inline"])
        if "build, pool of 2" in best:
            scaling = best["build, pool of 1, on one core"] / best["build, pool of 2"]
            report.number("pool, 2 workers on two cores against 1 on one", scaling)
            report.number("pool of 2: share of encode_batch_fast", alone / best["build, pool of 2"])
        if "build, Ray (started here)" in best:
            report.number("Ray against the pool of 2", best["build, pool of 2"] / best["build, Ray (started here)"])
        if seconds is not None:
            report.number("inline against Levanter's builder", seconds / best["build, inline"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        report.number("peak memory MiB", {"this process (with the texts)": peak >> 10, "largest worker": workers >> 10})
        report.note(
            f"{len(texts):,} documents, {megabytes} MB, parts of {PART_BYTES >> 20} MiB; the bars take the best round."
            " A pool's time includes starting it; Ray's includes starting the cluster."
        )


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=60, help="size of the text")
    parser.add_argument("--no-ray", action="store_true", help="leave Ray out")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    run_bench("bench_build", __doc__, measure, add_arguments=_flags)
