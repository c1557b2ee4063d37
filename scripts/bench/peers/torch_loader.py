"""torch's ``DataLoader`` over rows of a memory map: row by row as its documentation begins, and
with the batch gathered at once by the dataset's ``__getitems__``.
"""

# pyright: reportMissingImports=false
# (the library is optional)

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.interface import BATCH, Corpus, Peer, Setting, both_dtypes, place


class Rows:
    """A map-style dataset: one row at a time."""

    def __init__(self, corpus: Corpus, dtype: str) -> None:
        self.rows = corpus.rows(dtype)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(self.rows[index])  # default_collate stacks, which copies


class RowBatches(Rows):
    """The same with the whole batch gathered at once."""

    def __getitems__(self, indices: list[int]) -> np.ndarray:
        return np.take(self.rows, indices, axis=0)


def as_tensor(batch: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(batch)


def write(corpus: Corpus, layout: str) -> None:
    """The flat file is the format."""


class _Skipping:
    """The batches of an epoch from some step on, without reading what is skipped."""

    def __init__(self, corpus: Corpus, seed: int, first: int) -> None:
        import torch

        self.order = torch.randperm(corpus.examples, generator=torch.Generator().manual_seed(seed))
        self.first = first
        self.steps = corpus.steps

    def __iter__(self) -> Iterator[list[int]]:
        for k in range(self.first, self.steps):
            yield self.order[k * BATCH : (k + 1) * BATCH].tolist()


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    batched = setting.options["batched"]
    workers = setting.options["workers"]
    dataset: Any = (RowBatches if batched else Rows)(corpus, setting.dtype)
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if batched:
        options["collate_fn"] = as_tensor
    if step == 0:
        loader: Any = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True, **options)
        epochs = itertools.repeat(loader)
    else:
        epoch, first = divmod(step, corpus.steps)
        loader = DataLoader(dataset, batch_sampler=_Skipping(corpus, epoch, first), **options)
        epochs = iter([loader])
    for batches in epochs:
        for batch in batches:
            yield place(batch.numpy())


def _settings(name: str, kind: str, workers: int, *, batched: bool = False) -> list[Setting]:
    return both_dtypes(name, kind, "maps all", {"workers": workers, "batched": batched})


PEER = Peer(
    title="torch",
    packages=("torch",),
    install="uv pip install --torch-backend=cpu torch",
    settings=(
        *_settings("rows, 0 workers", "default", 0),
        *_settings("rows, 2 workers", "documented", 2),
        *_settings("__getitems__, 0 workers", "documented", 0, batched=True),
        *_settings("__getitems__, 2 workers", "documented", 2, batched=True),
    ),
    write=write,
    stream=stream,
    modules=("torch.utils.data",),
    resumes="a batch sampler of our own that leaves out what is done (the library has none)",
    note="torch, `__getitems__`: the dataset gathers the whole batch, with the floor's own"
    " np.take.",
)
