"""From shuffle configs to the orders of a mixture's components.

The strands of a braid follow from all components together: from the memory budget of the job, the largest batch, and
the largest share that each component ever gets in a planned stage (index/plan_shares.py). One budget holds for all
planned stages together, since a component keeps its strands from stage to stage. What an amendment brings in later gets
its share of the budget on top: the strands of the others are part of the past.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate

import numpy as np

from headrace.data.batch import PackedBatch
from headrace.data.dataset import AsyncDataset, PlannedDataset, ReorderedDataset
from headrace.data.phased import Continued
from headrace.errors import ConfigError
from headrace.index.block_shuffle import BlockShuffle
from headrace.index.braid import BraidShuffle
from headrace.index.plan_shares import PlanShares, plan_shares
from headrace.index.schedule import BatchSchedule
from headrace.index.seeds import derive
from headrace.index.shuffle_config import BlockShuffleConfig, BraidShuffleConfig, ShuffleConfig
from headrace.index.stages import Stage
from headrace.index.strands import resolve_strands

_FIELDS = {f.name for config in (BraidShuffleConfig, BlockShuffleConfig) for f in dataclasses.fields(config)}


def shuffle_components(
    components: Mapping[str, PlannedDataset],
    shuffles: Mapping[str, ShuffleConfig],
    stages: Sequence[Stage],
    batch: BatchSchedule,
    seed: int,
    *,
    planned: int | None = None,
    own: Collection[str] = (),
) -> dict[str, AsyncDataset[PackedBatch]]:
    """Each component in its own order, keyed by the seed and its name.

    Args:
        components: Datasets as they are stored.
        shuffles: How each is shuffled. Braids without ``strands`` share one budget; with it they get what they ask for.
        stages: Weights; a component's strands follow its largest share in the planned stages, or in the first
            amendment that uses it, so that later amendments do not change its order.
        batch: Batch sizes; the largest counts.
        seed: Integer seed.
        planned: How many of the stages were planned, those after them being amendments; None: all.
        own: Components whose shuffle is written under their own name in the config, for errors.

    Raises:
        ConfigError: more strands than examples, a budget that does not hold one block of each component.
    """
    braided = {n: s for n, s in shuffles.items() if n in components and isinstance(s, BraidShuffleConfig)}
    orders = resolve_braids(components, braided, stages, batch, planned=planned, own=own)
    first_strands = dict(zip(orders, accumulate((s for s, _ in orders.values()), initial=0), strict=False))
    result: dict[str, AsyncDataset[PackedBatch]] = {}
    for name, dataset in components.items():
        key, shuffle = derive(seed, "component", name), shuffles[name]
        if isinstance(shuffle, BraidShuffleConfig):
            if name not in orders:
                raise ConfigError("has no weight in any stage", field=f"components.{name}.weight", cure="Give it one.")
            strands, lap = orders[name]
            with placed([name], own):
                result[name] = dataset.braid_shuffle(
                    seed=key,
                    strands=strands,
                    lap=lap,
                    first_strand=first_strands[name],
                    io_block_size=shuffle.io_block_size,
                )
        elif isinstance(shuffle, BlockShuffleConfig):
            with placed([name], own):
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


@contextmanager
def placed(names: Sequence[str], own: Collection[str]) -> Iterator[None]:
    """Errors about fields of the shuffle of these components, under the names that those have in the config."""
    try:
        yield
    except ConfigError as error:
        if error.field not in _FIELDS:
            raise
        place = f"components.{names[0]}.shuffle" if set(names) <= set(own) else "shuffle"
        given = {} if error.value is None else {"value": error.value}
        raise ConfigError(error.problem, field=f"{place}.{error.field}", cure=error.cure, **given) from error


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


def check_open_bytes(
    names: Sequence[str],
    components: Sequence[PlannedDataset],
    windows: Mapping[str, int],
    local_share: float,
    prefetch_bytes: int,
) -> None:
    """Refuses a run whose shuffle keeps more blocks open than the host may hold: it would read each many times.

    Args:
        names: Of the components.
        components: Shuffled.
        windows: How many windows each keeps.
        local_share: Share of each batch's rows that this host holds.
        prefetch_bytes: What it may hold.

    Raises:
        ConfigError: it is too little.
    """
    held = {n: open_bytes(c) * windows[n] for n, c in zip(names, components, strict=True)}
    needed = int(sum(held.values()) * local_share)
    if needed > prefetch_bytes:
        largest = max(held, key=lambda name: held[name])
        raise ConfigError(
            f"is less than the {needed:,} bytes of blocks that the shuffle keeps open on this host"
            f" (most of them for component {largest!r}), so blocks would be read again and again",
            field="prefetch_bytes",
            value=prefetch_bytes,
            cure=f"Raise it to {needed + needed // 4} or more, or lower shuffle.strands (or window_blocks).",
        )


def resolve_braids(
    components: Mapping[str, PlannedDataset],
    braided: Mapping[str, BraidShuffleConfig],
    stages: Sequence[Stage],
    batch: BatchSchedule,
    *,
    planned: int | None = None,
    own: Collection[str] = (),
) -> dict[str, tuple[int, float]]:
    """Strands and lap of each braided component that some stage uses; arguments as in :func:`shuffle_components`.

    Components of planned stages come first: strands are numbered through in this order.
    """
    planned = len(stages) if planned is None else planned
    orders: dict[str, tuple[int, float]] = {}
    for plan in (stages[:planned], *([stage] for stage in stages[planned:])):
        shares = plan_shares(plan)
        new = [name for name in shares.largest if name in braided and name not in orders]
        by_config: dict[tuple[int | None, int | None], list[str]] = {}
        for name in new:  # configs of their own: each kind as if it were alone, at its share of the batch
            by_config.setdefault((braided[name].strands, braided[name].budget_bytes), []).append(name)
        found: dict[str, tuple[int, float]] = {}
        for (strands, budget), names in by_config.items():
            if orders and budget is not None:  # an amendment: its share of the budget
                budget = _part_of(budget, sum(shares.largest[n] for n in names), names, components, braided)
            with placed(names, own):
                found |= _resolve(names, components, braided, shares, batch, strands, budget)
        orders |= {name: found[name] for name in new}
    return orders


def _block_bytes(name: str, components: Mapping[str, PlannedDataset], braided: Mapping[str, BraidShuffleConfig]) -> int:
    dataset = components[name]
    return (braided[name].io_block_size or dataset.default_io_block_size()) * dataset.row_bytes


def _part_of(
    budget: int,
    share: float,
    names: Sequence[str],
    components: Mapping[str, PlannedDataset],
    braided: Mapping[str, BraidShuffleConfig],
) -> int:
    """The share of a byte budget, but a block for each component at least."""
    return max(int(budget * min(share, 1.0)), sum(_block_bytes(n, components, braided) for n in names))


def _resolve(
    names: Sequence[str],
    components: Mapping[str, PlannedDataset],
    braided: Mapping[str, BraidShuffleConfig],
    shares: PlanShares,
    batch: BatchSchedule,
    strands: int | None,
    budget: int | None,
) -> dict[str, tuple[int, float]]:
    """Strands and lap of components that share one budget."""
    usual = None if shares.usual is None else np.asarray([shares.usual[n] for n in names])
    plan = resolve_strands(
        np.asarray([len(components[n]) for n in names], np.int64),
        np.asarray([shares.largest[n] for n in names]),
        batch_size=batch.max_size,
        strands=strands,
        budget_bytes=budget,
        block_bytes=None if budget is None else np.asarray([_block_bytes(n, components, braided) for n in names]),
        usual_shares=usual,
    )
    return {n: (int(s), float(lap)) for n, s, lap in zip(names, plan.strands, plan.laps, strict=True)}
