"""One run of one peer in a process of its own; ``bench_peers.py`` starts it and reads the last line
that it prints.

    python -m peers.one_run '{"task": "write", "peer": "grain_loader", "format": "array_record",
    ...}'

Tasks: ``write`` a format, ``time`` a setting (the floor before and after it in the same process,
first batch, the first pass, then two stretches of whole periods, whose consumers look at nothing
and sum the tokens), ``far`` (an epoch over a slow link, from opening on),
``restart`` at a late step (the first batch only). Clocks start once libraries are imported and jax
is up.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import touch_memory

from peers import load
from peers.interface import BATCH, SEQ_LEN, Corpus, Peer, Setting
from peers.usage import Usage, forget_peak, usage

TOKENS = BATCH * SEQ_LEN
RESULT = "RESULT "
FLOOR_S = 0.15
WARM_S = 0.3
EPOCH_S = 3.0
"""What is timed begins after so long, and after an epoch if that takes no longer
than the second.
"""


def floor(corpus: Corpus, dtype: str) -> float:
    """Tokens a second of the floor, on mapped pages."""
    rows = corpus.rows(dtype)
    int(rows[:, ::1024].sum())  # touches every page
    order = np.random.default_rng(1).permutation(len(rows))
    out = np.empty((BATCH, SEQ_LEN), rows.dtype)
    batches = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < FLOOR_S or not batches:
        at = batches * BATCH % (len(order) - BATCH + 1)
        np.take(rows, order[at : at + BATCH], axis=0, out=out, mode="clip")
        batches += 1
    return batches * TOKENS / elapsed


def delivered(batch: Any) -> Any:
    """The batch, once it is on the devices."""
    return batch if isinstance(batch, np.ndarray) else batch.block_until_ready()


def summed(batch: Any) -> Any:
    """The sum of the batch's tokens: every one of them is looked at."""
    return sum_of_tokens()(batch).block_until_ready()


@functools.cache
def sum_of_tokens() -> Any:
    import jax

    return jax.jit(lambda tokens: tokens.astype(np.int32).sum())


def check(corpus: Corpus, batches: list[Any]) -> None:
    """Raises unless every row of the batches is a row of the corpus and no row of a batch comes
    twice.
    """
    rows = corpus.rows("int32")
    heads = _heads(rows)
    order = np.argsort(heads)
    for batch in batches:
        got = np.asarray(batch).astype(np.int32)
        if got.shape != (BATCH, SEQ_LEN):
            raise RuntimeError(f"a batch has shape {got.shape}")
        at = np.searchsorted(heads[order], _heads(got))
        found = order[np.minimum(at, len(order) - 1)]
        if not (
            np.array_equal(rows[np.sort(found)], got[np.argsort(found)])
            and np.unique(found).size == BATCH
        ):
            raise RuntimeError("a batch holds rows that are not the corpus's, or one twice")


def _heads(rows: np.ndarray) -> np.ndarray:
    """The first four tokens of each row as one number: no two rows begin alike."""
    return rows[:, :4].astype(np.uint16).view(np.uint64).ravel()


def time_setting(
    corpus: Corpus, peer: Peer, setting: Setting, job: dict[str, Any]
) -> dict[str, Any]:
    floor_before = floor(corpus, setting.dtype)
    touch_memory()
    forget_peak()
    seconds = job["seconds"]
    period = setting.period
    started = time.perf_counter()
    stream = peer.stream(corpus, setting, 0)
    first = delivered(next(stream))
    first_s = time.perf_counter() - started
    keep = [np.array(first)] + [
        np.array(delivered(next(stream))) for _ in range(min(period, 4) - 1)
    ]
    before_timing: list[float] = []
    left = corpus.steps - len(keep)
    started = last = time.perf_counter()
    while last - started < (WARM_S if len(before_timing) >= left else EPOCH_S):
        last = _period(stream, period, last, before_timing)
    summed(first)  # compiles
    gaps, cpu_s, after = _stretch(stream, period, seconds)
    summed_gaps, summed_cpu_s, _ = _stretch(stream, period, seconds, summed)
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    check(corpus, keep)
    return {
        "tokens_per_s": _speed(gaps),
        "first_pass": _speed(before_timing[:left]),
        "summed": _speed(summed_gaps),
        "floor": (floor_before + floor(corpus, setting.dtype)) / 2,
        "cpu_s_per_gtoken": cpu_s,
        "summed_cpu_s_per_gtoken": summed_cpu_s,
        "threads": after.threads,
        "processes": after.processes,
        "peak_bytes": after.peak_bytes,
        "first_s": first_s,
        "stall_s": max(gaps),
        "batches": len(gaps),
    }


def _speed(gaps: list[float]) -> float:
    return len(gaps) * TOKENS / sum(gaps)


def _stretch(
    stream: Iterator[Any], period: int, seconds: float, look: Callable[[Any], Any] = delivered
) -> tuple[list[float], float, Usage]:
    """The seconds of each batch, CPU seconds for 1e9 tokens, and what was in use at the end."""
    gaps: list[float] = []
    before = usage()
    started = last = time.perf_counter()
    while last - started < seconds:
        last = _period(stream, period, last, gaps, look)
    after = usage()
    return gaps, (after.cpu_s - before.cpu_s) / (len(gaps) * TOKENS) * 1e9, after


def _period(
    stream: Iterator[Any],
    period: int,
    last: float,
    gaps: list[float],
    look: Callable[[Any], Any] = delivered,
) -> float:
    for _ in range(period):
        look(next(stream))
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    return last


def far(corpus: Corpus, peer: Peer, setting: Setting, job: dict[str, Any]) -> dict[str, Any]:
    """Over a slow link: from opening on, for at most an epoch, so that nothing is read a second
    time.
    """
    started = last = time.perf_counter()
    stream = peer.stream(corpus, setting, 0)
    gaps: list[float] = []
    keep: list[np.ndarray] = []
    while len(gaps) < corpus.steps and last - started < job["seconds"]:
        batch = delivered(next(stream))
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
        if len(keep) < 2:
            keep.append(np.array(batch))
    used = usage()
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    check(corpus, keep)
    return {
        "tokens_per_s": len(gaps) * TOKENS / (last - started),
        "threads": used.threads,
        "processes": used.processes,
        "peak_bytes": used.peak_bytes,
        "first_s": gaps[0],
        "stall_s": max(gaps[1:], default=0.0),
        "batches": len(gaps),
    }


def restart(corpus: Corpus, peer: Peer, setting: Setting, job: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    stream = peer.stream(corpus, setting, job["step"])
    first = delivered(next(stream))
    seconds = time.perf_counter() - started
    check(corpus, [first])
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    return {"first_s": seconds}


def main() -> None:
    warnings.simplefilter("ignore")  # the peers' own
    job = json.loads(sys.argv[1])
    peer = load(job["peer"])
    corpus = Corpus(Path(job["folder"]), job["examples"])
    if job["task"] == "write":
        started = time.perf_counter()
        peer.write(corpus, job["format"])
        result = {"seconds": time.perf_counter() - started}
    else:
        from peers.interface import sharding

        sharding()  # jax is up, and libraries are imported, before any clock starts
        for module in peer.modules:
            importlib.import_module(module)
        setting = Setting(**job["setting"])
        result = {"time": time_setting, "far": far, "restart": restart}[job["task"]](
            corpus, peer, setting, job
        )
    print(RESULT + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
