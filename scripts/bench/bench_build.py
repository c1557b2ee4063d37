"""Building caches: against the tokenizer alone, by workers, engines, and against Levanter's
builder, on the same text.

The text is Python's own standard library (source files), the tokenizer an 8192 BPE trained on it.
Everything is measured in one run on the same cores: what ``encode_batch_fast`` alone makes of the
texts, then whole builds from JSONL with all that they write; builds of a pool beside those of a Ray
cluster that is already running, so that starting it does not count; and what the process and its
workers hold in memory (proportional set size) for files of 8 and of 48 MB that cannot be cut.
Builds with gigatoken have a text and a tokenizer of their own, see ``_tokenizing.py``. ``--quick``
takes less text and no Ray; ``--only-gigatoken`` leaves the rest out.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import resource
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from _common import Report, run_bench
from _tokenizing import measure_gigatoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.build import BuildReport
from headrace.ingest.tokenize import cores

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


def tokenizer_in(folder: Path) -> TokenizerConfig:
    return TokenizerConfig(str(folder / "tokenizer.json"), engine="tokenizers")


def encode_alone(tokenizer: Tokenizer, texts: list[str]) -> tuple[float, int]:
    """Seconds of ``encode_batch_fast`` on batches of about 1 MB, and tokens (one
    more a document).
    """
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
        tokens += sum(
            len(e) + 1 for e in tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        )
    return time.perf_counter() - began, tokens


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    return sum(
        r.ru_utime + r.ru_stime
        for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@contextmanager
def on_one_core() -> Iterator[None]:
    """This process and those that it starts run on one core while the block runs, where the system
    can do that.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if before is not None:
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def levanter_build(texts: list[str], tokenizer: Tokenizer, folder: str) -> float | None:
    """Seconds of Levanter's serial builder with the same tokenizer; None if Levanter is not
    installed.
    """
    try:
        import numpy as np
        from levanter.store.cache import SerialCacheWriter
    except ImportError:
        return None
    exemplar = {"input_ids": np.zeros(0, np.int32)}
    began = time.perf_counter()
    with SerialCacheWriter(folder, exemplar) as writer:
        for start in range(0, len(texts), 1024):
            encoded = tokenizer.encode_batch_fast(
                texts[start : start + 1024], add_special_tokens=False
            )
            writer.write_batch([{"input_ids": np.array([*e.ids, 0], np.int32)} for e in encoded])
    return time.perf_counter() - began


@contextmanager
def ray_cluster() -> Iterator[None]:
    """A cluster of this machine's cores that runs before a build asks for it; ``RAY_ADDRESS`` names
    it.
    """
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": cores(), "include_dashboard": False}
    )
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield
    finally:
        del os.environ["RAY_ADDRESS"]
        cluster.shutdown()


def held_by_workers() -> int:
    """Bytes that this process's worker processes hold now, each its share of what several have; 0
    if not told.
    """
    total = 0
    for task in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
                total += next(
                    (int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0
                )
    return total


@contextmanager
def watched_memory(peak: list[int]) -> Iterator[None]:
    """Appends the most that the workers held together while the block ran, in bytes."""
    over = threading.Event()
    most = 0

    def watch() -> None:
        nonlocal most
        while not over.wait(0.05):
            most = max(most, held_by_workers())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        peak.append(most)


def memory_of_pool(texts: list[str], folder: Path, megabytes: int) -> float:
    """Peak of a pool of two in MiB, from two packed files of so many megabytes of text each."""
    source = folder / f"packed-{megabytes}"
    source.mkdir()
    for i in range(2):
        with gzip.open(source / f"{i}.jsonl.gz", "wt", compresslevel=1) as f:
            size = 0
            while size < megabytes * 1e6:
                for text in texts:
                    size += f.write(json.dumps({"text": text}) + "\n")
                    if size >= megabytes * 1e6:
                        break
    peak: list[int] = []
    with watched_memory(peak):
        build_cache(
            SourceConfig([str(source)]),
            tokenizer_in(folder),
            str(folder / "packed-cache"),
            engine="pool",
            workers=2,
            progress=False,
            chunk_tokens=4096,
            shard_chunks=64,
            part_bytes=1,
        )
    shutil.rmtree(folder / "packed-cache")
    shutil.rmtree(source)
    return peak[0] / 2**20


def report_memory(texts: list[str], folder: Path, quick: bool, report: Report) -> None:
    """What a pool holds, for small files and for larger ones."""
    if sys.platform != "linux":
        return
    small, large = (2, 6) if quick else (8, 48)
    held = {size: memory_of_pool(texts, folder, size) for size in (small, large)}
    report.number(
        "two workers hold, MiB", {f"files of {size} MB": round(mib) for size, mib in held.items()}
    )
    report.bar("memory: larger files against small ones", held[large] / held[small], at_most=1.3)


def report_shares(best: dict[str, float], cpu: dict[str, float], report: Report) -> None:
    """One way to build against another, each by its best round."""
    alone = best["encode_batch_fast alone"]
    pool = best.get("build, pool of 2")
    report.bar(
        "inline build: share of encode_batch_fast", alone / best["build, inline"], at_least=0.9
    )
    report.number(
        "inline build: share in CPU seconds", cpu["encode_batch_fast alone"] / cpu["build, inline"]
    )
    if pool is not None:
        report.number(
            "pool, 2 workers on two cores against 1 on one",
            best["build, pool of 1, on one core"] / pool,
        )
        report.number("pool of 2: share of encode_batch_fast", alone / pool)
        if "build, Ray (started here)" in best:
            report.number(
                "Ray, started here, against the pool of 2", pool / best["build, Ray (started here)"]
            )
    if "build, Ray (running)" in best:
        share = best["build, pool of 2, beside Ray"] / best["build, Ray (running)"]
        report.number("Ray, running, against the pool of 2", share)
    if "Levanter's SerialCacheWriter" in best:
        report.number(
            "inline against Levanter's builder",
            best["Levanter's SerialCacheWriter"] / best["build, inline"],
        )


def measure(args: argparse.Namespace, report: Report) -> None:
    """Fills the report."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        measure_gigatoken(args, Path(name), report)
    if not args.only_gigatoken:
        measure_tokenizers(args, report)


def measure_tokenizers(args: argparse.Namespace, report: Report) -> None:
    """Builds with the tokenizers library."""
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
            used = cpu_seconds() - spent
            spent = cpu_seconds()
            best[what] = min(best.get(what, float("inf")), seconds)
            cpu[what] = min(cpu.get(what, float("inf")), used)
            rows.append(
                [
                    what,
                    seconds,
                    used,
                    len(texts) / seconds,
                    tokens / seconds / 1e6,
                    megabytes / seconds,
                ]
            )

        def build(what: str, **options: object) -> BuildReport:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            config = SourceConfig([str(source)])
            done = build_cache(
                config,
                tokenizer_in(folder),
                str(folder / "cache"),
                progress=False,
                part_bytes=PART_BYTES,
                **options,  # type: ignore[arg-type]
            )
            note(what, done.seconds, done.tokens)
            return done

        tokens = 0
        for _ in range(
            1 if args.quick else args.rounds
        ):  # interleaved: what else the machine does falls on all
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
                with ray_cluster():
                    for _ in range(args.rounds):
                        build("build, pool of 2, beside Ray", engine="pool", workers=2)
                        build("build, Ray (running)", engine="ray")
            except Exception as error:  # noqa: BLE001 (a machine too busy to start it)
                report.note(f"Ray was left out: {error}")
        seconds = levanter_build(texts, tokenizer, str(folder / "levanter"))
        if seconds is not None:
            note("Levanter's SerialCacheWriter", seconds, tokens)
        report.table(
            "Builds of one JSONL file",
            ["what", "s", "CPU s", "documents/s", "M tokens/s", "MB/s"],
            rows,
        )
        report_shares(best, cpu, report)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        report.number(
            "peak memory MiB",
            {"this process (with the texts)": peak >> 10, "largest worker": workers >> 10},
        )
        report_memory(texts, folder, args.quick, report)
        report.note(
            f"{len(texts):,} documents, {megabytes} MB, parts of {PART_BYTES >> 20} MiB; the bars"
            " take the best round."
            " A pool's time includes starting it; that of a Ray that is started here the cluster's"
            " start."
        )


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=60, help="size of the text")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")
    parser.add_argument(
        "--gigatoken-megabytes", type=int, default=400, help="size of the text for gigatoken"
    )
    parser.add_argument(
        "--only-gigatoken", action="store_true", help="measure builds with gigatoken alone"
    )
    parser.add_argument("--no-ray", action="store_true", help="leave Ray out")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    run_bench("bench_build", __doc__, measure, add_arguments=_flags)
