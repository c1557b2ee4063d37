"""A Grain pipeline over headrace's mixture: its batches, in its order, resumed by Grain's own
iterator state.

python examples/grain_pipeline.py run.yaml --steps 20
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from headrace import LmDataConfig, load_config
from headrace.adapters import GrainBatches


def with_lengths(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A transformation of your own: how many tokens of each row are trained on."""
    return {**batch, "trained": (batch["token_weights"] != 0).sum(axis=1)}


def run(
    config: LmDataConfig, steps: int, state: dict[str, Any] | None = None
) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
    """The next ``steps`` batches, from the beginning or from a state, and the state after them."""
    batches = iter(GrainBatches(config.dataset(), row_order=config.row_order).map(with_lengths))
    if state is not None:
        batches.set_state(state)  # a state of another run is refused
    taken = [next(batches) for _ in range(steps)]
    return taken, batches.get_state()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    taken, state = run(load_config(args.config), args.steps)
    for step, batch in enumerate(taken):
        print(step, batch["tokens"].shape, batch["trained"].tolist())
    print(state)
