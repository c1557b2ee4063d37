"""Building what is small: 1e5 files of 1 kB, and 40 MB in five compressed files, which is killed at
half time.

Each build is a process of its own with the workers that it chooses. Bars: what a file costs, from
the start of the process to its end; how much CPU the less busy of the workers took, of what the
busier did; and what share of the tokens the second build finds there that the first, killed at half
the time that a whole one takes, has left.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from _common import Report
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from headrace import SourceConfig, TokenizerConfig, build_cache

WORDS = [
    "".join(random.Random(k).choices("abcdefghijklmnopqrstuvwxyz", k=2 + k % 8))
    for k in range(5000)
]


def forge_tokenizer(path: Path) -> None:
    """A BPE of 8,192 tokens of the words."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer: Any = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    tokenizer.save(str(path))


def forge_documents(number: int, size: int) -> bytes:
    """Lines of JSON, together of so many bytes or a little more; every number has its own."""
    pick = random.Random(number)
    documents: list[bytes] = []
    while size > 0:
        line = (
            json.dumps(
                {"text": " ".join(pick.choices(WORDS, k=min(300, max(size // 7, 1))))}
            ).encode()
            + b"\n"
        )
        documents.append(line)
        size -= len(line)
    return b"".join(documents)


def job_build(corpus: str, tokenizer: str, output: str) -> list[float]:
    """Builds, and says: seconds of the call, CPU seconds in all, tokens, those that were built now,
    parts.
    """
    report = build_cache(SourceConfig([corpus]), TokenizerConfig(tokenizer), output, progress=False)
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in spent)
    parts = report.parts_built + report.parts_reused
    return [report.seconds, cpu, report.tokens, report.tokens_built, parts]


JOBS: dict[str, Callable[..., list[float]]] = {"build": job_build}


def workers_cpu(builder: int, so_far: dict[int, float]) -> None:
    """Brings CPU seconds of a process's children up to date."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[1]) == builder:
                so_far[int(entry.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf(
                    "SC_CLK_TCK"
                )


def build_apart(
    arguments: list[str], kill_after: float | None = None
) -> tuple[float, list[float], list[float]]:
    """Runs :func:`job_build` in a process; its seconds, what it says, CPU seconds of its workers,
    the least first.
    """
    command = [
        sys.executable,
        str(Path(__file__).with_name("bench_scale.py")),
        "--job",
        "build",
        *arguments,
    ]
    began = time.perf_counter()
    cpu = dict[int, float]()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=output)
        while process.poll() is None:
            workers_cpu(process.pid, cpu)
            if kill_after is not None and time.perf_counter() - began > kill_after:
                process.kill()
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        if process.returncode and kill_after is None:
            raise RuntimeError(f"a build ended with status {process.returncode}")
        output.seek(0)
        lines = output.read().splitlines()
    return seconds, json.loads(lines[-1]) if process.returncode == 0 else [], sorted(cpu.values())


def measure_builds(args: argparse.Namespace, report: Report) -> None:
    """Both corpora; with ``--quick`` a tenth of the first alone."""
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        tokenizer = Path(folder, "tokenizer.json")
        forge_tokenizer(tokenizer)

        def corpus(name: str, ending: str, contents: Iterator[bytes]) -> list[str]:
            Path(folder, name).mkdir()
            for number, content in enumerate(contents):
                Path(folder, name, f"{number:06d}{ending}").write_bytes(content)
            return [f"{folder}/{name}", str(tokenizer), f"{folder}/{name}-cache"]

        def row(name: str, arguments: list[str]) -> tuple[int, float, list[float]]:
            sizes = [path.stat().st_size for path in Path(arguments[0]).iterdir()]
            seconds, said, workers = build_apart(arguments)
            rows.append(
                [
                    name,
                    len(sizes),
                    sum(sizes) / 1e6,
                    int(said[4]),
                    int(said[2]),
                    len(workers),
                    seconds,
                    said[1],
                ]
            )
            return len(sizes), seconds, workers

        small = (forge_documents(k, 1000) for k in range(10_000 if args.quick else 100_000))
        files, seconds, _ = row("small files", corpus("small", ".jsonl", small))
        report.bar(f"{files:,} files of 1 kB: ms each", 1e3 * seconds / files, at_most=1)
        if not args.quick:
            packed = (gzip.compress(forge_documents(k, 20_000_000), 6) for k in range(5))
            arguments = corpus("packed", ".jsonl.gz", packed)
            files, seconds, workers = row("compressed", arguments)
            report.bar(
                f"{files} compressed files: CPU of worker to worker",
                workers[0] / workers[-1],
                at_least=0.6,
            )
            arguments[-1] += "-killed"
            build_apart(arguments, 0.5 * seconds)
            _, again, _ = build_apart(arguments)
            kept = 1 - again[3] / again[2]
            report.bar(
                f"{files} compressed files, killed at half time: share kept", kept, at_least=1 / 3
            )
            report.number("share kept of a build that is killed at half time", kept)
    columns = ["corpus", "files", "MB", "parts", "tokens", "workers", "s", "CPU s"]
    report.table("Building what is small", columns, rows)
