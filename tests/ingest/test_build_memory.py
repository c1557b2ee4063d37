"""What a build holds in memory: bounded by batches and output shards, whatever the size of the
source's files.
"""

import gzip
import json
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from headrace.ingest.part_builder import WORKER_BYTES
from headrace.store import open_cache

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
PROGRAM = """
import json, sys
from headrace.ingest.build import build_cache
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig
source, tokenizer, output, engine = sys.argv[1:]
options = dict(part_bytes=1 << 20, chunk_tokens=4096, shard_chunks=64, progress=False)
build_cache(SourceConfig([source]), TokenizerConfig(tokenizer), output, engine=engine, workers=2, **options)
"""


def family(pid: int) -> list[int]:
    """A process and all that it started, and they."""
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def held(pid: int) -> int:
    """Bytes of memory that a process has to itself, and its share of what several have (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def peak_of_build(source: Path, tokenizer: str, output: Path, engine: str) -> tuple[int, int]:
    """Builds in a process of its own; most bytes that it and its workers held together, and that
    any held alone.
    """
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(PROGRAM),
        str(source),
        tokenizer,
        str(output),
        engine,
    ]
    together = alone = 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            now = [held(pid) for pid in family(process.pid)]
            together = max(together, sum(now))
            alone = max(alone, *now)
            time.sleep(0.02)
    assert process.returncode == 0
    return together, alone


def write_packed(folder: Path, files: int, megabytes: float) -> Path:
    """Files that cannot be cut, so each is a part, of so many megabytes of text."""
    folder.mkdir()
    pick = random.Random(1)
    lines = [
        json.dumps({"text": " ".join(pick.choices(["alpha", "beta", "gamma"], k=2000))}) + "\n"
        for _ in range(80)
    ]
    block = "".join(lines).encode()
    for i in range(files):
        with gzip.open(folder / f"{i}.jsonl.gz", "wb", compresslevel=1) as f:
            for _ in range(max(1, round(megabytes * 1e6 / len(block)))):
                f.write(block)
    return folder


def check_bound(tmp_path: Path, tokenizer: str, small: float, large: float) -> None:
    peaks = {
        size: peak_of_build(
            write_packed(tmp_path / f"{size}", 4, size),
            tokenizer,
            tmp_path / f"cache-{size}",
            "pool",
        )
        for size in (small, large)
    }
    print(
        {
            f"{size} MB a file": [f"{n / 2**20:.0f} MiB" for n in peak]
            for size, peak in peaks.items()
        }
    )
    assert peaks[large][0] < 1.3 * peaks[small][0] + (32 << 20)
    assert peaks[large][1] < WORKER_BYTES  # what the pool reckons with


@pytest.mark.slow
def test_memory_does_not_grow_with_the_files(tmp_path: Path):
    check_bound(tmp_path, "bytes", 10, 60)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_files_under_a_bpe(tmp_path: Path, bpe_path: str):
    check_bound(tmp_path, bpe_path, 10, 80)


def one_document(tmp_path: Path, megabytes: int) -> Path:
    path = tmp_path / "a.jsonl"
    word = "Wörter und words, lines\\n"
    with path.open("w") as f:
        f.write('{"text": "small"}\n{"text": "')
        for _ in range(megabytes):
            f.write(word * (1_000_000 // len(word.encode())))
        f.write('"}\n{"text": "last"}\n')
    return path


def check_huge(tmp_path: Path, tokenizer: str, times: float) -> None:
    source = one_document(tmp_path, 200)
    size = source.stat().st_size
    _, alone = peak_of_build(source, tokenizer, tmp_path / "cache", "inline")
    cache = open_cache(tmp_path / "cache")
    assert cache.num_documents == 3
    if tokenizer == "bytes":
        assert cache.num_tokens > 0.9 * size
    print(f"a document of {size / 1e6:.0f} MB: {alone / 2**20:.0f} MiB")
    assert alone < times * size + WORKER_BYTES


@pytest.mark.slow
def test_a_document_of_200_megabytes(tmp_path: Path):
    check_huge(tmp_path, "bytes", 12)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_document_of_200_megabytes_under_a_bpe(tmp_path: Path, bpe_path: str):
    check_huge(tmp_path, bpe_path, 12)
