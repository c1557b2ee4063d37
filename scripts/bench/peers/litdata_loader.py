"""LitData: ``StreamingDataset`` with its ``TokensLoader``, which its documentation gives for
language models.
"""

# pyright: reportMissingImports=false
# (the library is optional)

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers.interface import BATCH, SEQ_LEN, Corpus, Peer, Setting, both_dtypes, place

CHUNK_ROWS = 4096


def _rows(span: tuple[str, str, int, int]) -> Iterator[Any]:
    """What ``optimize`` calls: the tokens of a span of rows."""
    import numpy as np
    import torch

    path, dtype, first, last = span
    rows = np.memmap(path, dtype, "r").reshape(-1, SEQ_LEN)
    for row in rows[first:last]:
        yield torch.from_numpy(np.array(row))


def write(corpus: Corpus, layout: str) -> None:
    from litdata import TokensLoader, optimize

    dtype = layout.split("-")[1]
    starts = range(0, corpus.examples, CHUNK_ROWS)
    path = str(corpus.path(dtype))
    spans = [(path, dtype, at, min(at + CHUNK_ROWS, corpus.examples)) for at in starts]
    optimize(
        fn=_rows,
        inputs=spans,
        output_dir=str(corpus.folder / layout),
        chunk_size=CHUNK_ROWS * SEQ_LEN,
        item_loader=TokensLoader(block_size=SEQ_LEN),
        num_workers=1,
        verbose=False,
    )


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    workers = setting.options["workers"]
    folder = str(corpus.folder / setting.formats[0])
    tokens = TokensLoader(block_size=SEQ_LEN)
    dataset = StreamingDataset(folder, item_loader=tokens, shuffle=True, drop_last=True)
    loader = StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    if step:
        epoch, first = divmod(step, corpus.steps)
        done = first * BATCH
        state = dataset.state_dict(done, workers, BATCH) | {"current_epoch": epoch + 1}
        loader.load_state_dict(
            {
                "dataset": state,
                "current_epoch": epoch + 1,
                "num_samples_yielded": done,
                "latest_worker_idx": 0,
            }
        )
    while True:
        for batch in loader:
            yield place(batch.numpy())


PEER = Peer(
    title="LitData",
    packages=("litdata", "torch"),
    install="uv pip install --torch-backend=cpu torch litdata",
    settings=(
        *both_dtypes(
            "TokensLoader, 0 workers",
            "default",
            "streams",
            {"workers": 0},
            layout="litdata-{dtype}",
        ),
        *both_dtypes(
            "TokensLoader, 2 workers",
            "documented",
            "streams",
            {"workers": 2},
            layout="litdata-{dtype}",
        ),
    ),
    write=write,
    stream=stream,
    modules=("litdata",),
    resumes="load_state_dict",
)
