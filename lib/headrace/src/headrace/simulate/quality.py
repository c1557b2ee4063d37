"""How well the rows of the steps looked at are mixed, and how many blocks' worth of data they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headrace.feed.plan import BlockSpace

WINDOWS = (1, 8, 64)


@dataclass(frozen=True)
class Quality:
    """Figures of some steps with batches of one size and rows of one length.

    Attributes:
        steps: Full batches looked at.
        blocks_per_step: Blocks' worth of data in a step: what is read if each block is read once.
        read_bytes: Bytes of a block, mean over what is used.
        requests: Requests that it takes, likewise.
        distinct_blocks: Blocks in a batch, mean.
        variance: ``VR_w`` by w, as far as there are steps.
    """

    steps: int
    blocks_per_step: float
    read_bytes: float
    requests: float
    distinct_blocks: float
    variance: dict[int, float]

    @classmethod
    def of(cls, blocks: Int64[np.ndarray, "steps uses"], size: int, seq_len: int, space: BlockSpace) -> Quality:
        """Of batches of ``size`` rows; rows that lie in several blocks have several uses, side by side."""
        array = space.array_of(blocks.ravel())
        block_bytes = space.block_bytes()
        worth = seq_len / space.chunk[array]  # of caches with other chunks: the mean over what is used
        return cls(
            steps=blocks.shape[0],
            blocks_per_step=size * float(worth.mean()),
            read_bytes=float((block_bytes[array] * worth).sum() / worth.sum()),
            requests=float((space.block_requests()[array] * worth).sum() / worth.sum()),
            distinct_blocks=float(np.mean((np.diff(np.sort(blocks, axis=1), axis=1, prepend=-1) != 0).sum(axis=1))),
            variance={
                w: variance_ratio(blocks[:, :: blocks.shape[1] // size], w) for w in WINDOWS if blocks.shape[0] >= 2 * w
            },
        )


def variance_ratio(blocks: Int64[np.ndarray, "steps batch"], window: int) -> float:
    """Mean over windows of ``window`` steps of ``sum_b c_b**2 / rows``, where block b gives c_b of the window's rows.

    For a value that is the same within a block and independent between blocks this is the variance of a window's mean
    over that of as many independent rows.

    Example:
        >>> variance_ratio(np.array([[0, 0, 1, 1], [2, 3, 4, 5]]), 1)
        1.5
    """
    steps, batch = blocks.shape
    count = steps // window
    flat = np.sort(blocks[: count * window].reshape(count, window * batch), axis=1)
    run = np.cumsum(np.diff(flat, axis=1, prepend=-1) != 0, axis=1) + np.arange(count)[:, None] * (window * batch + 1)
    sizes = np.bincount(run.ravel())
    return float((sizes.astype(float) ** 2).sum() / (count * window * batch))
