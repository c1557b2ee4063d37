"""What tests of losses share, as the fixture ``losses``: sequences laid out as batches, what was
computed elsewhere.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from headrace.batch import Example, pack_examples

GOLDEN = json.loads((Path(__file__).parents[0] / "golden" / "losses.json").read_text())
LAYOUTS = {"packed": (20, 4), "one a row": (8, 8)}  # tokens of a row, and rows


def largest_float32(jaxpr):
    """Elements of the largest float32 array anywhere in a traced function."""
    most = 0
    for equation in jaxpr.eqns:
        shapes = [v.aval for v in equation.outvars if getattr(v.aval, "dtype", None) == jnp.float32]
        most = max([most, *(int(np.prod(a.shape)) for a in shapes)])
        for value in equation.params.values():
            inner = value if isinstance(value, (list, tuple)) else [value]
            for sub in inner:
                sub = getattr(sub, "jaxpr", sub)
                if hasattr(sub, "eqns"):
                    most = max(most, largest_float32(sub))
    return most


class Layout:
    """N sequences of up to T labels in a batch of one of the LAYOUTS.

    ``lay`` puts [N, T] where the labels are, and NaN elsewhere; ``take`` gets them back.
    """

    def __init__(
        self,
        mask,
        name,
        *,
        order=None,
        groups=None,
        rewards=None,
        pairs=False,
        log_probs=None,
        advantages=None,
    ):
        self.mask = np.asarray(mask, int)
        n, t = self.mask.shape
        ends = [int(np.flatnonzero(row).max(initial=0)) + 1 for row in self.mask]
        number = np.arange(1, n * t + 1).reshape(n, t)
        examples = [
            Example(
                np.arange(1, end + 2),
                loss_mask=[0, *self.mask[i, :end]],
                log_probs=[0, *-number[i, :end]],
                weights=None
                if advantages is None
                else [0, *np.broadcast_to(np.asarray(advantages)[i], t)[:end]],
                group=i // 2 if groups is None else int(groups[i]),
                reward=0.0 if rewards is None else float(rewards[i]),
            )
            for i, end in enumerate(ends)
        ]
        seq_len, rows = LAYOUTS[name]
        batch = pack_examples(
            [examples[i] for i in (order or range(n))], seq_len, rows=rows, unit=2 if pairs else 1
        )
        self.number = -batch.log_probs.astype(int)
        fields = {"log_probs": None if log_probs is None else self.lay(log_probs), "pairs": pairs}
        if pairs:
            fields["weights"] = None
        self.batch = type(batch)(**{**batch.__dict__, **fields})

    def lay(self, values):
        flat = np.concatenate([[np.nan], np.asarray(values, np.float32).reshape(-1)])
        return flat[self.number].astype(np.float32)

    def take(self, laid):
        flat = np.zeros(self.mask.size + 1)
        flat[self.number.reshape(-1)] = np.asarray(laid, np.float64).reshape(-1)
        return flat[1:].reshape(self.mask.shape)
