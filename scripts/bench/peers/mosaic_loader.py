"""MosaicML Streaming: ``StreamingDataset`` over MDS shards, read through torch's ``DataLoader``."""

# pyright: reportMissingImports=false
# (the library is optional)

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.interface import BATCH, SEQ_LEN, Corpus, Peer, Setting, both_dtypes, place


def write(corpus: Corpus, layout: str) -> None:
    importlib.import_module("peers.torchvision_stand_in")  # before streaming
    from streaming import MDSWriter

    dtype = layout.split("-")[1]
    with MDSWriter(
        out=str(corpus.folder / layout),
        columns={"tokens": f"ndarray:{dtype}:{SEQ_LEN}"},
        compression=None,
    ) as writer:
        for rows in corpus.chunks(dtype):
            for row in rows:
                writer.write({"tokens": row})


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    importlib.import_module("peers.torchvision_stand_in")  # before streaming
    from streaming import StreamingDataLoader, StreamingDataset

    workers = setting.options["workers"]
    dataset = StreamingDataset(
        local=str(corpus.folder / setting.formats[0]), shuffle=True, batch_size=BATCH
    )
    loader = StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    if step:
        epoch, first = divmod(step, corpus.steps)
        state = {
            "epoch": epoch,
            "sample_in_epoch": first * BATCH,
            "shuffle_seed": dataset.shuffle_seed,
        }
        loader.load_state_dict(state | {"num_canonical_nodes": 1, "initial_physical_nodes": 1})
    while True:
        for batch in loader:
            yield place(np.asarray(batch["tokens"]))


PEER = Peer(
    title="MosaicML",
    packages=("mosaicml-streaming", "torch"),
    install="uv sync --group peers && uv pip install --torch-backend=cpu torch",
    settings=(
        *both_dtypes(
            "Streaming, MDS, 0 workers", "default", "streams", {"workers": 0}, layout="mds-{dtype}"
        ),
        *both_dtypes(
            "Streaming, MDS, 2 workers",
            "documented",
            "streams",
            {"workers": 2},
            layout="mds-{dtype}",
        ),
    ),
    write=write,
    stream=stream,
    modules=("peers.torchvision_stand_in", "streaming"),
    resumes="load_state_dict",
    note="mosaicml-streaming imports torchvision; where that does not load (its builds need"
    " torch's accelerator build) "
    "empty stand-ins take the place of the three names, which serve pictures.",
)
