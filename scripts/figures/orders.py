"""The picture of docs/order.md: which stored blocks each step touches, order by order.

python scripts/figures/orders.py docs/images/orders.png
"""

import sys

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from headrace import TokenSeqDataset
from headrace.store import CacheLayout
from headrace.testing import write_cache

BLOCKS = 96
BLOCK_ROWS = 16
SEQ_LEN = 4
BATCH = 16
ORDERS = {
    "none: sorted as stored": lambda d: d,
    "full: any row at any step": lambda d: d.shuffle(0),
    "block: windows of 8 blocks": lambda d: d.block_shuffle(
        io_block_size=BLOCK_ROWS, window_blocks=8, seed=0
    ),
    "braid: 16 strands": lambda d: d.braid_shuffle(strands=16, seed=0),
}


def touched(dataset: TokenSeqDataset, order: object) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the blocks that they touch."""
    ordered = order(dataset)  # pyright: ignore[reportCallIssue]
    rows = ordered.locate(np.arange(BLOCKS * BLOCK_ROWS)).row
    return np.arange(rows.size) // BATCH, rows // BLOCK_ROWS


def main(path: str) -> None:
    """Draws all of them, one after the other."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tokens = np.zeros(BLOCKS * BLOCK_ROWS * SEQ_LEN, np.uint8)
        layout = CacheLayout("uint8", chunk_elements=BLOCK_ROWS * SEQ_LEN)
        dataset = TokenSeqDataset(write_cache(f"{folder}/c", [[tokens]], layout=layout), SEQ_LEN)
        figure, axes = plt.subplots(1, 4, figsize=(11, 3), sharey=True, layout="constrained")
        for axis, (title, order) in zip(axes, ORDERS.items(), strict=True):
            steps, blocks = touched(dataset, order)
            axis.scatter(steps, blocks, s=1.2, linewidths=0, color="#1f5fa8")
            held = [
                np.unique(blocks[(steps >= s) & (steps < s + 8)]).size
                for s in range(0, BLOCKS - 8, 8)
            ]
            axis.set_title(f"{title}\n{np.mean(held):.0f} blocks in 8 steps", fontsize=9)
            axis.set_xlabel("step", fontsize=8)
            axis.tick_params(labelsize=7)
        axes[0].set_ylabel("stored block", fontsize=8)
        figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1])
