"""Levanter: its ``DataLoader`` over ``LmDataConfig.train_set`` with the default block shuffle, from
a cache of its own writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.interface import BATCH, SEQ_LEN, VOCABULARY, Corpus, Peer, Setting, sharding

WRITE_ROWS = (
    65_536  # its writer rewrites a shard of 65,536 such rows for each batch that it is given
)


def write(corpus: Corpus, layout: str) -> None:
    from levanter.store.cache import SerialCacheWriter

    exemplar = {"input_ids": np.zeros(0, np.int32)}
    rows = corpus.rows("int32")
    with SerialCacheWriter(str(corpus.folder / "levanter" / "train"), exemplar) as writer:
        for at in range(0, corpus.examples, WRITE_ROWS):
            writer.write_batch(
                [{"input_ids": np.asarray(row)} for row in rows[at : at + WRITE_ROWS]]
            )


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    import haliax as hax
    import jax
    from levanter.data.loader import DataLoader
    from levanter.data.text.datasets import (
        CausalLmDataset,
        DirectDatasetComponent,
        LmDataConfig,
        TokenSeqDataset,
    )
    from levanter.schedule import BatchSchedule
    from levanter.store.cache import TreeCache

    cache = TreeCache.load(
        str(corpus.folder / "levanter" / "train"), {"input_ids": np.zeros(0, np.int32)}
    )
    position = hax.Axis("position", SEQ_LEN)
    dataset = CausalLmDataset(TokenSeqDataset(cache, SEQ_LEN), position)
    config = LmDataConfig(
        components={"corpus": DirectDatasetComponent(datasets={"train": dataset})},
        tokenizer="passthrough",
        vocab_size=VOCABULARY,
    )
    examples = config.train_set(position, BatchSchedule(BATCH), key=jax.random.PRNGKey(0))
    mesh = sharding().mesh
    with hax.partitioning.set_mesh(mesh):
        loader = DataLoader(examples, BATCH, mesh=mesh, axis_resources={"batch": "data"})
        batches = loader.iter_from_step(step)
        try:
            for batch in batches:
                yield batch.tokens.array
        finally:
            del batches


PEER = Peer(
    title="Levanter",
    packages=("marin-levanter",),
    install="uv sync  (Python 3.11 only)",
    settings=(
        Setting("4-byte, block shuffle", "default", "streams", "int32", period=32, quick=True),
    ),
    write=write,
    stream=stream,
    modules=("levanter.data.text.datasets", "levanter.data.loader"),
    resumes="iter_from_step(step)",
    note="Levanter stores 4 bytes a token, and fetches 32 batches at a time that wait for each"
    " other; it is timed over whole windows.",
)
