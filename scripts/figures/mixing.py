"""The picture of docs/mixing.md: rows of each component in each batch, while weights change.

python scripts/figures/mixing.py docs/images/mixing.png
"""

import sys

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from headrace import MixtureDataset, TokenSeqDataset
from headrace.testing import tiny_cache

STEPS = 150
BATCH = 16
WEIGHTS = {
    "code": 3.0,
    "docs": {"linear": {0: 1.0, 100: 3.0}},
    "maths": {"step": {0: 0.0, 120: 2.0}},
}
COLOURS = {"code": "#1f5fa8", "docs": "#e0a030", "maths": "#3a9a5f"}


def main(path: str) -> None:
    """Draws rows as stacked bars, and the weights' shares as lines."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        parts = {
            name: TokenSeqDataset(tiny_cache(f"{folder}/{name}"), 8).repeat() for name in WEIGHTS
        }
        mixture = MixtureDataset(parts, WEIGHTS, batch_size=BATCH)
        counts = np.stack([mixture.draws.counts_at(step) for step in range(STEPS)])
    steps = np.arange(STEPS)
    weights = np.stack(
        [np.full(STEPS, 3.0), np.interp(steps, [0, 100], [1, 3]), np.where(steps < 120, 0, 2)],
        axis=1,
    )
    shares = BATCH * weights / weights.sum(axis=1, keepdims=True)
    figure, axis = plt.subplots(figsize=(11, 3), layout="constrained")
    bottom = np.zeros(STEPS)
    for k, name in enumerate(WEIGHTS):
        axis.bar(steps, counts[:, k], width=1, bottom=bottom, color=COLOURS[name], label=name)
        bottom += counts[:, k]
    axis.plot(steps, np.cumsum(shares, axis=1)[:, :-1], color="black", linewidth=0.9)
    axis.set(
        xlim=(-0.5, STEPS - 0.5),
        ylim=(0, BATCH),
        xlabel="step",
        ylabel=f"rows of the batch of {BATCH}",
    )
    axis.legend(loc="lower left", framealpha=0.9)
    axis.set_title(
        "Bars: rows in the batch. Lines: the share that the weights ask for.", fontsize=9
    )
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1])
