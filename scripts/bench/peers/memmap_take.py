"""``np.memmap`` + ``np.take``: the floor, and the floor with its rows handed to the devices.

The floor gathers shuffled rows into one buffer that it uses again and again: nothing that gives its
caller a batch to keep can do less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.interface import BATCH, Corpus, Peer, Setting, both_dtypes, place


def write(corpus: Corpus, layout: str) -> None:
    """The flat file is the format."""


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    rows = corpus.rows(setting.dtype)
    buffer = None
    if not setting.options["deliver"]:
        buffer = np.empty((BATCH, rows.shape[1]), rows.dtype)
    while True:
        epoch, first = divmod(step, corpus.steps)
        order = np.random.default_rng(epoch).permutation(corpus.examples)
        for at in range(first * BATCH, corpus.steps * BATCH, BATCH):
            batch = np.take(rows, order[at : at + BATCH], axis=0, out=buffer, mode="clip")
            yield batch if buffer is not None else place(batch)
        step = (epoch + 1) * corpus.steps


PEER = Peer(
    title="memmap",
    packages=("numpy",),
    install="pip install numpy",
    settings=(
        *both_dtypes("np.take, not delivered", "floor", "maps all", {"deliver": False}),
        *both_dtypes("np.take + device_put", "reference", "maps all", {"deliver": True}),
    ),
    write=write,
    stream=stream,
)
