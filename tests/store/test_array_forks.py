"""A forked child of a process that reads: an error that says what to do, not a read that never
ends.
"""

import json
import subprocess
import sys

from headrace.testing import tiny_cache

SCRIPT = """
import json, os, signal, sys, warnings
from headrace.store import open_cache
path, when = sys.argv[1:]
cache = open_cache(path)
if when == "after":
    wanted = cache.tokens(0, 10).tolist()
ours, theirs = os.pipe()
warnings.simplefilter("ignore")  # Python's own about forking with threads
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        said = {"read": open_cache(path).tokens(0, 10).tolist()}
    except Exception as error:
        said = {"error": type(error).__name__, "text": str(error)}
    os.write(theirs, json.dumps(said).encode())
    os._exit(0)
os.close(theirs)
os.waitpid(child, 0)
said = json.loads(os.read(ours, 65536) or b"{}")
said["parent"] = cache.tokens(0, 10).tolist()
print(json.dumps(said))
"""


ITERATOR = """
import os, signal, sys, warnings
import numpy as np, jax
from jax.sharding import Mesh
from headrace.data.token_seq import TokenSeqDataset
from headrace.errors import ReadError
from headrace.feed.loader import DataLoader
from headrace.store import open_cache
loader = DataLoader(TokenSeqDataset(open_cache(sys.argv[1]), 8), batch_size=8)
batches = loader.iter_from_step(0)
next(batches)
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    signal.alarm(20)
    told = []
    for read, said in (
        (lambda: next(batches), "was made before os.fork"),
        (lambda: loader.batch_at(1), "was forked from process"),
        (lambda: loader.iter_from_step(1), "was forked from process"),
    ):
        try:
            read()
        except ReadError as error:
            told.append(said in str(error))
    os._exit(7 if told == [True] * 3 else 1)
_, status = os.waitpid(child, 0)
assert next(batches).batch_size == 8
batches.close()
print(os.waitstatus_to_exitcode(status))
"""


def run(path, when):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, path, when], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_reading_in_a_child_after_the_parent_has_read_is_an_error(tmp_path):
    cache = tiny_cache(tmp_path)
    said = run(cache.path, "after")
    assert said["error"] == "ReadError"
    assert "was forked from process" in said["text"]
    assert "spawn" in said["text"]
    assert said["parent"] == cache.tokens(0, 10).tolist()


def test_reading_in_a_child_before_the_parent_has_read_works(tmp_path):
    cache = tiny_cache(tmp_path)
    assert run(cache.path, "before")["read"] == cache.tokens(0, 10).tolist()


def test_an_iterator_from_before_the_fork_is_an_error_in_the_child(tmp_path):
    tiny_cache(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ITERATOR, tmp_path], capture_output=True, text=True
    )
    assert done.stdout.strip() == "7", done.stderr
