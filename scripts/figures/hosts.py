"""The picture of docs/order.md: which of four hosts reads which stored block, for a block shuffle
and a braid.

python scripts/figures/hosts.py docs/images/hosts.png
"""

import sys

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from headrace import TokenSeqDataset
from headrace.data import PlannedDataset
from headrace.store import CacheLayout
from headrace.testing import write_cache

BLOCKS = 96
BLOCK_ROWS = 16
SEQ_LEN = 4
BATCH = 32
HOSTS = 4
COLOURS = ("#1f5fa8", "#e0a030", "#3a9a5f", "#b04a7a")


def reads(dataset: PlannedDataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, block and host of every row of an epoch, with rows sorted by locality within each
    batch, as loaders do.
    """
    rows = dataset.locate(np.arange(BLOCKS * BLOCK_ROWS))
    step = np.arange(rows.row.size) // BATCH
    order = np.lexsort((rows.locality, step))
    return step, rows.row[order] // BLOCK_ROWS, np.arange(rows.row.size) % BATCH * HOSTS // BATCH


def main(path: str) -> None:
    """Draws both, one beside the other."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tokens = np.zeros(BLOCKS * BLOCK_ROWS * SEQ_LEN, np.uint8)
        layout = CacheLayout("uint8", chunk_elements=BLOCK_ROWS * SEQ_LEN)
        dataset = TokenSeqDataset(write_cache(f"{folder}/c", [[tokens]], layout=layout), SEQ_LEN)
        orders = {
            "block: windows of 8 blocks": dataset.block_shuffle(
                io_block_size=BLOCK_ROWS, window_blocks=8, seed=0
            ),
            "braid: 32 strands": dataset.braid_shuffle(strands=32, seed=0),
        }
        figure, axes = plt.subplots(1, 2, figsize=(11, 3.2), sharey=True, layout="constrained")
        for axis, (title, order) in zip(axes, orders.items(), strict=True):
            assert isinstance(order, PlannedDataset)
            step, block, host = reads(order)
            for number, colour in enumerate(COLOURS):
                axis.scatter(
                    step[host == number], block[host == number], s=3, linewidths=0, color=colour
                )
            readers = np.mean([np.unique(host[block == one]).size for one in range(BLOCKS)])
            axis.set_title(
                f"{title}\na block is read by {readers:.1f} of {HOSTS} hosts", fontsize=9
            )
            axis.set_xlabel("step", fontsize=8)
            axis.tick_params(labelsize=7)
        axes[0].set_ylabel("stored block", fontsize=8)
        dots = [
            plt.Line2D([], [], marker="o", linestyle="", markersize=4, color=colour)
            for colour in COLOURS
        ]
        figure.legend(
            dots,
            [f"host {number}" for number in range(HOSTS)],
            loc="outside right center",
            fontsize=8,
        )
        figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1])
