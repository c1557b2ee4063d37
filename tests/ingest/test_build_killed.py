"""A build killed by SIGKILL at any moment, and started again, ends as the same folder, bit for bit.

Twice over: before every single operation that Python makes on the output's files (a process that
kills itself at the n-th, for every n), and a real command line killed from outside at random
moments, which also hits TensorStore in mid-write.
"""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CacheUnfinishedError
from headrace.store import open_cache

Tree = Callable[[str | Path], dict[str, bytes]]

# Builds in a child that kills itself before the n-th operation on a file of the output; then builds
# on in another. The parent only imports: forking what has threads would be another test.
EVERY_OPERATION = """
import os, signal, sys
from headrace.ingest.build import build_cache
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig
from headrace.store.ledger import read_ledger

corpus, tokenizer, out, restart = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "restart"
OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}

def build(root, **options):
    source, layout = SourceConfig([corpus]), {"chunk_tokens": 64, "part_bytes": 1500}
    build_cache(source, TokenizerConfig(tokenizer), root, progress=False, **layout, **options)

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def killed_before(n, root):
    def work():
        seen = 0
        def watch(event, arguments):
            nonlocal seen
            if event not in OPERATIONS:
                return
            within_a_folder = event in {"os.remove", "os.rmdir"} and arguments[1] != -1  # rmtree names no paths
            if within_a_folder or str(arguments[0]).startswith(root):
                if seen == n:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
        sys.addaudithook(watch)
        build(root, restart=restart)
    return in_child(work)

def tree(root):
    return {
        os.path.relpath(os.path.join(parent, name), root): open(os.path.join(parent, name), "rb").read()
        for parent, _, names in os.walk(root) for name in names
    }

n = after = 0
while True:
    root = f"{out}/{n:07d}"
    if restart:
        assert in_child(lambda: build(root, dtype="uint32")) == 0
        old = tree(root)
    code = killed_before(n, root)
    assert code in (0, -signal.SIGKILL), (n, code)
    if restart and b"uint32" in tree(root).get("ledger.json", b""):  # killed while the old cache was being deleted
        if read_ledger(root).finished:
            assert old.items() <= tree(root).items(), f"half a cache looks finished, operation {n}"
        assert in_child(lambda: build(root, dtype="uint32")) == 0, n
        assert tree(root) == old, f"what was left of the old cache was taken for whole, operation {n}"
    else:
        after += 1
    assert in_child(lambda: build(root, restart=restart)) == 0, n
    if code == 0:
        break
    n = n + 1 if after < 4 or not restart else 1_000_000  # what follows the deletion is the other case
"""


def corpus_of(folder: Path, files: int, write_jsonl: Callable[..., str], bytes_each: int) -> str:
    pick = random.Random(0)
    words = ["alpha", "beta", "gamma", "Ünder", "日本", "value", "return", "\n", "  ", "0123"]
    for i in range(files):
        texts: list[str] = []
        while sum(map(len, texts)) < bytes_each:
            texts.append(" ".join(pick.choices(words, k=pick.choice([0, 3, 50, 200]))))
        write_jsonl(folder / f"{i:03d}.jsonl", texts)
    return str(folder)


@pytest.mark.parametrize(("restart", "files"), [("resume", 3), ("restart", 1)])
def test_killed_before_every_operation_on_a_file(
    tmp_path: Path,
    write_jsonl: Callable[..., str],
    bpe_path: str,
    tree: Tree,
    restart: str,
    files: int,
):
    corpus = corpus_of(tmp_path / "corpus", files, write_jsonl, 1500)
    done = subprocess.run(
        [sys.executable, "-c", EVERY_OPERATION, corpus, bpe_path, str(tmp_path / "out"), restart],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *killed, uninterrupted = sorted((tmp_path / "out").iterdir())
    assert len(killed) >= 12
    whole = tree(uninterrupted)
    assert len([name for name in whole if name.endswith("part.json")]) == files
    for root in killed:
        assert tree(root) == whole, f"killed before operation {root.name}"


@pytest.mark.slow
def test_a_command_line_killed_from_outside(
    tmp_path: Path, write_jsonl: Callable[..., str], bpe_path: str, tree: Tree
):
    corpus = corpus_of(tmp_path / "corpus", 24, write_jsonl, 20_000)

    def start(root: Path) -> subprocess.Popen[str]:
        command = [
            "build",
            corpus,
            "--output",
            str(root),
            "--tokenizer",
            bpe_path,
            "--chunk-tokens",
            "512",
        ]
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *command, "--part-bytes", "20000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finished_parts(root: Path) -> int:
        return len(list(root.glob("parts/*/part.json")))

    def whole(root: Path) -> str:
        process = start(root)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    began = time.monotonic()
    whole(tmp_path / "whole")
    alone_s = time.monotonic() - began
    wanted = tree(tmp_path / "whole")
    parts = finished_parts(tmp_path / "whole")
    assert parts > 15

    seed = time.time_ns()
    pick = random.Random(seed)
    killed = started = 0
    chain = tmp_path / "chain0"
    while killed < 14 and started < 60:
        # One folder whose build is killed again and again as it goes on, until it is finished and
        # another one begins; and now and then a fresh one that is killed at any time from the start
        # of its process.
        started += 1
        root = tmp_path / f"fresh{started}" if started % 5 == 0 else chain
        process = start(root)
        if root is chain:
            target = min(finished_parts(root) + pick.randint(0, 3), parts)
            while process.poll() is None and finished_parts(root) < target:
                time.sleep(0.001)
            time.sleep(pick.random() * 0.02)
        else:
            time.sleep(pick.random() * alone_s)
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), output
        killed += process.returncode != 0
        if (
            process.returncode != 0
            and (root / "ledger.json").exists()
            and finished_parts(root) < parts
        ):
            with pytest.raises(CacheUnfinishedError):
                open_cache(str(root))
        if process.returncode == 0 or root is not chain:
            whole(root)
            assert tree(root) == wanted, seed
            chain = tmp_path / f"chain{started}" if root is chain else chain
    assert killed == 14, "nothing was interrupted: are the delays too long for this machine?"
    whole(chain)
    assert tree(chain) == wanted, seed
