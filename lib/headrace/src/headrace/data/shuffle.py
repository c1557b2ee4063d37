"""From shuffle configs to the orders of a mixture's components.

The strands of a braid follow from all components together: from the memory budget of the job, the largest batch, and
the largest share that each component ever gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
from jaxtyping import Float64

from headrace.data.batch import PackedBatch
from headrace.data.dataset import AsyncDataset, PlannedDataset, ReorderedDataset
from headrace.data.phased import Continued
from headrace.errors import ConfigError
from headrace.index.blend import Blend
from headrace.index.block_shuffle import BlockShuffle
from headrace.index.braid import BraidShuffle
from headrace.index.schedule import BatchSchedule
from headrace.index.seeds import derive
from headrace.index.shuffle_config import BlockShuffleConfig, BraidShuffleConfig, ShuffleConfig
from headrace.index.stages import Stage
from headrace.index.strands import resolve_strands

_SAMPLES = 33  # a normalised share bends between two break points only in nested blends; this many looks are plenty


def shuffle_components(
    components: Mapping[str, PlannedDataset],
    shuffles: Mapping[str, ShuffleConfig],
    stages: Sequence[Stage],
    batch: BatchSchedule,
    seed: int,
) -> dict[str, AsyncDataset[PackedBatch]]:
    """Each component in its own order, keyed by the seed and its name.

    Args:
        components: Datasets as they are stored.
        shuffles: How each is shuffled. Braids without ``strands`` share one budget; with it they get what they ask for.
        stages: Weights; a component's strands follow its largest share in the first stage that uses it, so that a later
            stage, or an amendment, does not change its order.
        batch: Batch sizes; the largest counts.
        seed: Integer seed.

    Raises:
        ConfigError: more strands than examples, a budget that does not hold one block of each component.
    """
    orders: dict[str, tuple[int, float]] = {}
    for stage in stages:
        new = [n for n in stage.blend.names if n not in orders and isinstance(shuffles.get(n), BraidShuffleConfig)]
        orders |= dict(zip(new, _strands(new, components, shuffles, stage.blend, batch), strict=True))
    strands_before = accumulate((strands for strands, _ in orders.values()), initial=0)
    first_strands = dict(zip(orders, strands_before, strict=False))
    result: dict[str, AsyncDataset[PackedBatch]] = {}
    for name, dataset in components.items():
        key, shuffle = derive(seed, "component", name), shuffles[name]
        if isinstance(shuffle, BraidShuffleConfig):
            if name not in orders:
                raise ConfigError("has no weight in any stage", field=f"components.{name}.weight", cure="Give it one.")
            strands, lap = orders[name]
            result[name] = dataset.braid_shuffle(
                seed=key,
                strands=strands,
                lap=lap,
                first_strand=first_strands[name],
                io_block_size=shuffle.io_block_size,
            )
        elif isinstance(shuffle, BlockShuffleConfig):
            result[name] = dataset.block_shuffle(
                io_block_size=shuffle.io_block_size,
                window_blocks=shuffle.window_blocks,
                seed=key,
                perm_type=shuffle.perm_type,
            )
        elif shuffle is True:
            result[name] = dataset.shuffle(key)
        else:
            result[name] = dataset.era_shuffle(shuffle, seed=key) if shuffle else dataset
    return result


def largest_shares(blend: Blend, num_steps: int | None = None) -> Float64[np.ndarray, " d"]:
    """The largest share of a batch that each component ever gets.

    Args:
        blend: Weights.
        num_steps: Steps of the run, if known.

    Example:
        >>> largest_shares(Blend({"a": 1, "b": {"linear": {0: 0, 100: 3}}})).tolist()
        [1.0, 0.75]
    """
    knots = sorted({0, *blend.breaks, *(max(b - 1, 0) for b in blend.breaks)})
    between = [np.linspace(a, b, _SAMPLES).astype(np.int64) for a, b in pairwise(knots)]
    steps = np.unique(np.concatenate([np.asarray(knots, np.int64), *between]))
    return blend.at(steps if num_steps is None else steps[steps < max(num_steps, 1)]).max(axis=0)


def open_bytes(dataset: PlannedDataset) -> int:
    """Bytes of stored blocks that a dataset's shuffle keeps open at a time, over all hosts; 0 if it has no window."""
    if isinstance(dataset, Continued):
        return max(open_bytes(dataset.whole), 0 if dataset.rest is None else open_bytes(dataset.rest))
    if not isinstance(dataset, ReorderedDataset):
        return 0
    order = dataset.order
    rows = 0
    if isinstance(order, BraidShuffle):
        rows = order.strands * order.io_block_size
    elif isinstance(order, BlockShuffle):
        rows = order.window_blocks * order.io_block_size
    return min(rows, len(order)) * dataset.row_bytes if rows else open_bytes(dataset.base)


def _strands(
    names: list[str],
    components: Mapping[str, PlannedDataset],
    shuffles: Mapping[str, ShuffleConfig],
    blend: Blend,
    batch: BatchSchedule,
) -> list[tuple[int, float]]:
    """Strands and lap of each braided component."""
    if not names:
        return []
    configs = [c for c in (shuffles[n] for n in names) if isinstance(c, BraidShuffleConfig)]
    share_of = dict(zip(blend.names, largest_shares(blend).tolist(), strict=True))
    lengths = np.asarray([len(components[n]) for n in names], np.int64)
    shares = np.asarray([share_of[n] for n in names])
    sizes = [c.io_block_size or components[n].default_io_block_size() for n, c in zip(names, configs, strict=True)]
    block_bytes = np.asarray([size * components[n].row_bytes for n, size in zip(names, sizes, strict=True)], np.int64)
    wanted = {(c.strands, c.budget_bytes) for c in configs}
    if len(wanted) == 1:
        strands, budget = next(iter(wanted))
        plan = resolve_strands(
            lengths,
            shares,
            batch_size=batch.max_size,
            strands=strands,
            budget_bytes=budget,
            block_bytes=block_bytes if budget is not None else None,
        )
        return [(int(s), float(lap)) for s, lap in zip(plan.strands, plan.laps, strict=True)]
    resolved: list[tuple[int, float]] = []
    for at, config in enumerate(configs):  # configs of their own: each as if it were alone, at its share of the batch
        one = slice(at, at + 1)
        plan = resolve_strands(
            lengths[one],
            shares[one],
            batch_size=batch.max_size,
            strands=config.strands,
            budget_bytes=config.budget_bytes,
            block_bytes=block_bytes[one] if config.budget_bytes is not None else None,
        )
        resolved.append((int(plan.strands[0]), float(plan.laps[0])))
    return resolved
