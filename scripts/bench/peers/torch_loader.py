"""torch's ``DataLoader`` over rows of a memory map: row by row as its documentation begins, and
with the batch gathered at once by the dataset's ``__getitems__``, by numpy or by torch.
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

    def __getitems__(self, indices: list[int]) -> Any:
        import torch

        return torch.from_numpy(np.take(self.rows, indices, axis=0))


class TensorBatches(Rows):
    """The same gathered by torch, in as many threads as it likes."""

    def __init__(self, corpus: Corpus, dtype: str) -> None:
        import torch

        super().__init__(corpus, dtype)
        self.tensor = torch.from_numpy(self.rows)

    def __getitems__(self, indices: list[int]) -> Any:
        import torch

        return self.tensor.index_select(0, torch.tensor(indices))


GATHERS = {"rows": Rows, "__getitems__": RowBatches, "index_select": TensorBatches}


def as_it_is(batch: Any) -> Any:
    return batch


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

    gather = setting.options["gather"]
    workers = setting.options["workers"]
    dataset: Any = GATHERS[gather](corpus, setting.dtype)
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if gather != "rows":
        options["collate_fn"] = as_it_is
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


def _settings(gather: str, kind: str, workers: int) -> list[Setting]:
    options = {"workers": workers, "gather": gather}
    return both_dtypes(f"{gather}, {workers} workers", kind, "maps all", options)


PEER = Peer(
    title="torch",
    packages=("torch",),
    install="uv pip install --torch-backend=cpu torch",
    settings=(
        *_settings("rows", "default", 0),
        *_settings("rows", "documented", 2),
        *_settings("__getitems__", "documented", 0),
        *_settings("__getitems__", "documented", 2),
        *_settings("index_select", "documented", 0),
    ),
    write=write,
    stream=stream,
    modules=("torch.utils.data",),
    resumes="a batch sampler of our own that leaves out what is done (the library has none)",
    note="torch, `__getitems__`: the dataset gathers the whole batch, with the floor's own"
    " np.take; `index_select`: the same with torch's.",
)
