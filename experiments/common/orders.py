"""The orders that 001 trains with and 003 looks at: one pass over the sorted corpus, in several
ways.

All of seed 004's sizes at an eighth: there the batch is 128, a block 128 rows, a window 8 or 32
blocks, an era 1,024. Rows of 64 tokens and batches of 16 are small, so that 001's 22 runs fit into
seven minutes of one core; what an order does to a batch depends on the ratios of batch, block and
window, and these are kept (the corpus is much smaller).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from experiments.common.corpus import SORTED, Corpus, CorpusSpec
from experiments.common.training import Evaluation, ModelSpec, read_rows

from headrace import ComponentConfig, LmDataConfig
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.order import BlockShuffleConfig, BraidShuffleConfig, ValidationConfig
from headrace.order.shuffle_config import ShuffleConfig

REFERENCE = "full"
ROWS_PER_BLOCK = 16


@dataclass(frozen=True)
class Sizes:
    """What the price depends on.

    Attributes:
        corpus: The text.
        model: The model.
        seeds: Of most arms; an experiment may give some more or fewer.
        steps: Most steps; fewer where the rows are used up.
        seq_len: Tokens in a row.
        batch_size: Rows of a batch.
    """

    corpus: CorpusSpec
    model: ModelSpec
    seeds: int
    steps: int = 10_000
    seq_len: int = 64
    batch_size: int = 16

    def describe(self) -> dict[str, Any]:
        """All that determines a run of one seed."""
        return {name: value for name, value in asdict(self).items() if name != "seeds"}


FULL = Sizes(CorpusSpec(260_000, 512, ROWS_PER_BLOCK * 64), ModelSpec(512, 48, 2, 2, 1e-2), seeds=3)
QUICK = Sizes(
    CorpusSpec(16_000, 300, ROWS_PER_BLOCK * 32),
    ModelSpec(300, 16, 1, 2, 1e-2),
    2,
    steps=12,
    seq_len=32,
)


def arms() -> dict[str, ShuffleConfig]:
    """The orders, by name.

    ``braid`` is the default of headrace: 8 x the batch in open blocks. ``braid_k32`` may hold no
    more than ``block_k32``: 32 blocks.
    """

    def block(window: int) -> BlockShuffleConfig:
        return BlockShuffleConfig(io_block_size=ROWS_PER_BLOCK, window_blocks=window)

    return {
        REFERENCE: True,
        "era": 8 * ROWS_PER_BLOCK,
        "block_k8": block(8),
        "block_k32": block(32),
        "braid": BraidShuffleConfig(),
        "braid_k32": BraidShuffleConfig(strands=32),
        "none": False,
    }


def described_arms() -> dict[str, Any]:
    """The orders as JSON values."""
    return {
        arm: shuffle if isinstance(shuffle, int) else asdict(shuffle)
        for arm, shuffle in arms().items()
    }


def data_config(corpus: Corpus, sizes: Sizes, shuffle: ShuffleConfig, seed: int) -> LmDataConfig:
    """One pass over the sorted corpus. The budget holds the default braid's open blocks and a
    quarter more.
    """
    open_bytes = 8 * sizes.batch_size * ROWS_PER_BLOCK * sizes.seq_len * 2
    config = LmDataConfig(
        components={SORTED: ComponentConfig(corpus.path())},
        seq_len=sizes.seq_len,
        batch_size=sizes.batch_size,
        seed=seed,
        shuffle=shuffle,
        max_epochs=1,
        validation=ValidationConfig(one_in=20, io_block_size=ROWS_PER_BLOCK),
        prefetch_bytes=open_bytes * 5 // 4,
    )
    rows = len(config.train_datasets()[SORTED])
    return replace(config, num_steps=min(sizes.steps, rows // sizes.batch_size))


def on_shuffled_store(
    config: LmDataConfig, corpus: Corpus, split: int | None = None
) -> LmDataConfig:
    """The config over a copy of the store whose documents are shuffled, cut at multiples of
    ``split`` tokens before.
    """
    copy = str(corpus.root / "caches" / ("shuffled" if split is None else f"split{split}"))
    how = ReshuffleConfig(seed=0, split=split)
    reshuffle(corpus.path(), copy, how, engine="inline", progress=False)
    components = {
        name: replace(component, cache=copy) for name, component in config.components.items()
    }
    return replace(config, components=components)


def evaluation_rows(corpus: Corpus, config: LmDataConfig, seq_len: int) -> Evaluation:
    """All rows that are held out: one block in twenty, the same in all arms."""
    held = config.validation_datasets()[SORTED]
    numbers = np.arange(len(held))
    begins = held.locate(numbers).row * seq_len
    return Evaluation(
        read_rows(held, numbers), corpus.source_of_tokens(begins + seq_len // 2), corpus.names
    )
