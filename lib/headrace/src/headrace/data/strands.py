"""Distributes strands over the components of a mixture: those of a config, and datasets whose order
is still pending.

The strands of a braid depend on all components together: on the memory budget of the job, the
largest batch, and the largest share that each component ever has in a planned stage
(:func:`plan_shares`); in shuffled stores, on the most hosts of the run instead of the budget. A
component keeps its strands from stage to stage. Components that an amendment adds get their share
of the budget in addition, because the strands of the others are part of the past.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from jaxtyping import Float64

from headrace.data.async_dataset import AsyncDataset
from headrace.data.dataset import PlannedDataset
from headrace.data.token_seq import stored_dataset
from headrace.errors import ConfigError
from headrace.mix.plan import Plan
from headrace.mix.shares import bound_shares, row_shares
from headrace.mix.stages import Stage
from headrace.order.braid import FEW_BLOCKS
from headrace.order.holdout import ValidationConfig
from headrace.order.order import Order
from headrace.order.seeds import derive
from headrace.order.shuffle_config import (
    MAX_HOSTS,
    BraidShuffleConfig,
    RowsToOrder,
    Scores,
    Shuffle,
    ShuffleConfig,
    Strands,
    resolve_strands,
    shuffle_of,
)

RowScores: TypeAlias = Callable[[PlannedDataset], Scores]
"""Computes a score for each row of a component."""


@dataclass(frozen=True)
class Orders:
    """How the rows of each component of a run are split and ordered.

    Attributes:
        seed: Seed of all shuffles, which the name of a component makes its own.
        shuffles: How each component is shuffled. Braids without ``strands`` share one budget;
            others keep their number. If rows change their length, a block has the same tokens in
            all phases, and ``io_block_size`` counts rows of the first phase.
        own_shuffles: Components whose shuffle is set under their own name, for errors.
        validation: What is held out of components, by name, with its path in the config; several
            phases only.
        max_hosts: The most hosts of the run, from which strands of components in shuffled stores
            follow; None: these have strands like others.
        scores: What computes the scores of rows, for components whose shuffle is by a number; one
            phase only.
    """

    seed: int
    shuffles: Mapping[str, ShuffleConfig | Shuffle]
    own_shuffles: Collection[str] = ()
    validation: Mapping[str, tuple[ValidationConfig, str]] = field(
        default_factory=dict[str, tuple[ValidationConfig, str]]
    )
    max_hosts: int | None = MAX_HOSTS
    scores: Mapping[str, RowScores] = field(default_factory=dict[str, RowScores])


def shuffle_components(
    components: Mapping[str, PlannedDataset], plan: Plan, orders: Orders
) -> dict[str, PlannedDataset]:
    """Each component in its own order, keyed by the seed and its name.

    Args:
        components: Datasets in stored order.
        plan: A component's strands depend on its largest share in the planned stages, or in the
            first amendment that uses it, so later amendments do not change its order; and on the
            largest batch.
        orders: How each is shuffled.

    Raises:
        ConfigError: more strands than examples, or a budget that is less than one block of each
            component.
    """
    resolved = {name: shuffle_of(orders.shuffles[name]) for name in components}
    braided = {name: shuffle for name, shuffle in resolved.items() if shuffle.in_strands}
    hosts = {
        name: orders.max_hosts
        if components[name].in_shuffled_store and shuffle.chooses_strands
        else None
        for name, shuffle in braided.items()
    }
    strands = _resolve_braids(components, braided, hosts, plan, orders.own_shuffles)
    result: dict[str, PlannedDataset] = {}
    for name, dataset in components.items():
        shuffle = resolved[name]
        if shuffle.in_strands and name not in strands:
            raise ConfigError(
                "has no weight in any stage", field=f"components.{name}.weight", cure="Give it one."
            )
        with placed([name], orders.own_shuffles, shuffle):
            key = derive(orders.seed, "component", name)
            if hosts.get(name) is not None and stored_dataset(dataset).run_blocks > 1:
                # Few runs would be in nearly the same order in each epoch
                blocks = _length(dataset) // _block_rows(dataset, shuffle)
                most = blocks // max(strands[name].number, FEW_BLOCKS)
                shuffle = shuffle.in_runs(max(min(stored_dataset(dataset).run_blocks, most), 1))
            result[name] = _shuffled(
                dataset, shuffle, key, strands.get(name), orders.scores.get(name)
            )
    return result


def _shuffled(
    dataset: PlannedDataset,
    shuffle: Shuffle,
    seed: int,
    strands: Strands | None,
    scores: RowScores | None,
) -> PlannedDataset:
    block = 0
    if shuffle.in_blocks:
        block = (
            dataset.default_io_block_size()
            if shuffle.io_block_size is None
            else shuffle.io_block_size
        )
        dataset = dataset.block_aligned(block)
    of_rows = None if scores is None else scores(dataset)
    order = shuffle.order(RowsToOrder(_length(dataset), seed, block, strands, of_rows))
    return dataset.reordered(order) if order.reorders else dataset


@contextmanager
def placed(names: Sequence[str], own_shuffles: Collection[str], shuffle: Shuffle) -> Iterator[None]:
    """Renames errors about shuffle fields of these components to their paths in the config."""
    try:
        yield
    except ConfigError as error:
        if error.field not in shuffle.fields:
            raise
        field = f"components.{names[0]}.shuffle" if set(names) <= set(own_shuffles) else "shuffle"
        raise error.but(field=f"{field}.{error.field}") from error


def _resolve_braids(
    components: Mapping[str, PlannedDataset] | Mapping[str, Order],
    braided: Mapping[str, Shuffle],
    hosts: Mapping[str, int | None],
    plan: Plan,
    own_shuffles: Collection[str],
) -> dict[str, Strands]:
    """Strands of each braided component that some stage uses, those of planned stages first:
    strands are numbered through in this order. Orders suffice where no config has a budget of
    bytes.
    """
    orders: dict[str, tuple[int, float]] = {}
    planned = len(plan.stages) if plan.planned is None else plan.planned
    for stages in (plan.stages[:planned], *([stage] for stage in plan.stages[planned:])):
        shares = plan_shares(stages)
        new = [name for name in shares.largest if name in braided and name not in orders]
        by_config: dict[tuple[int | None, int | None, int | None], list[str]] = {}
        for name in new:  # each kind as if it were alone, at its share of the batch
            kind = (braided[name].strands, braided[name].budget_bytes, hosts[name])
            by_config.setdefault(kind, []).append(name)
        resolved: dict[str, tuple[int, float]] = {}
        for (strands, budget, most_hosts), names in by_config.items():
            with placed(names, own_shuffles, braided[names[0]]):
                block_bytes = None
                if budget is not None:
                    block_bytes = np.asarray(
                        [_block_bytes(components[n], braided[n]) for n in names]
                    )
                    # an amendment: its share of the budget, but a block for each component at least
                    if orders:
                        share = sum(shares.largest[n] for n in names)
                        budget = max(int(budget * min(share, 1.0)), int(block_bytes.sum()))
                strand_plan = resolve_strands(
                    np.asarray([_length(components[n]) for n in names], np.int64),
                    np.asarray([shares.largest[n] for n in names]),
                    batch_size=plan.batch.max_size,
                    strands=strands,
                    budget_bytes=budget,
                    block_bytes=block_bytes,
                    usual_shares=None
                    if shares.usual is None
                    else np.asarray([shares.usual[n] for n in names]),
                    hosts=most_hosts,
                    block_rows=1
                    if most_hosts is None
                    else np.asarray([_block_rows(components[n], braided[n]) for n in names]),
                    sources=len(new),
                )
            counts = strand_plan.strands.tolist()
            laps = strand_plan.laps.tolist()
            resolved |= dict(zip(names, zip(counts, laps, strict=True), strict=True))
        orders |= {name: resolved[name] for name in new}
    first = accumulate((count for count, _ in orders.values()), initial=0)
    return {
        name: Strands(count, lap, begin)
        for (name, (count, lap)), begin in zip(orders.items(), first, strict=False)
    }


def _length(dataset: PlannedDataset | Order) -> int:
    assert dataset.length is not None  # a component is repeated after it is shuffled
    return dataset.length


def _block_bytes(dataset: PlannedDataset | Order, shuffle: Shuffle) -> int:
    planned = cast(PlannedDataset, dataset)  # budgets are of configs
    return _block_rows(planned, shuffle) * planned.row_bytes


def _block_rows(dataset: PlannedDataset | Order, shuffle: Shuffle) -> int:
    """Rows of a block; those of an order are known."""
    return shuffle.io_block_size or cast(PlannedDataset, dataset).default_io_block_size()


def too_many_hosts(
    components: Mapping[str, PlannedDataset], max_hosts: int | None, hosts: int
) -> str | None:
    """What more hosts than ``max_hosts`` do to a run; None if they do nothing, as there are no more
    or no component in a shuffled store.
    """
    shuffled = [name for name, dataset in components.items() if dataset.in_shuffled_store]
    if max_hosts is None or hosts <= max_hosts or not shuffled:
        return None
    return (
        f"is less than the {hosts:,} hosts: strands of components in shuffled stores"
        f" ({', '.join(shuffled[:4])}) are for {max_hosts:,}, and hosts share their blocks"
    )


def share_strands(
    components: Mapping[str, AsyncDataset[Any]], plan: Plan
) -> dict[str, AsyncDataset[Any]]:
    """The components of a mixture, with pending orders resolved as in :func:`shuffle_components`.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> from headrace.mix.plan import plan_of
        >>> from headrace.mix.schedule import BatchSchedule
        >>> rows = TokenSeqDataset(
        ...     headrace.testing.tiny_cache(documents=1000), seq_len=8
        ... ).braid_shuffle(seed=0)
        >>> plan = plan_of({"a": 3, "b": 1}, "quota", ["a", "b"], BatchSchedule(16))
        >>> shared = share_strands({"a": rows, "b": rows}, plan)
        >>> [dataset.shuffle_order().strands for dataset in shared.values()]
        [96, 32]
    """
    pending = {
        name: order for name, d in components.items() if (order := d.pending_order) is not None
    }
    if not pending:
        return dict(components)
    braided = {
        n: BraidShuffleConfig(io_block_size=o.io_block_size, run_blocks=o.run_blocks)
        for n, o in pending.items()
    }
    hosts = {n: o.hosts for n, o in pending.items()}
    shared = _resolve_braids(pending, braided, hosts, plan, ())

    def shuffle(name: str, order: Order) -> Order:
        key = derive(pending[name].seed, "component", name)
        return braided[name].order(RowsToOrder(len(order), key, order.io_block_size, shared[name]))

    return {n: d.settled(partial(shuffle, n)) if n in pending else d for n, d in components.items()}


# a normalised share bends between two break points only in nested blends; this many looks are
# plenty
_SAMPLES = 33
_FITTING_SHARE = 0.5  # laps fit the usual share where it is at least this part of the largest


@dataclass(frozen=True)
class PlanShares:
    """Shares of the components of a plan, by name, in the order in which stages first use them."""

    largest: dict[str, float]
    """The largest share of a batch that each ever gets."""
    usual: dict[str, float] | None
    """The share for which its laps should fit, at most the largest; None if no stretch is without
    change.
    """


@dataclass(frozen=True)
class _Stretch:
    """Shares at some steps of ``[first, stop)``, between two break points."""

    first: int
    stop: int | None
    names: tuple[str, ...]
    rows: Float64[np.ndarray, "n d"]

    def constant(self) -> dict[str, float] | None:
        same = bool((np.abs(self.rows - self.rows[0]) < 1e-9).all())
        return dict(zip(self.names, self.rows[0].tolist(), strict=True)) if same else None


def plan_shares(stages: Sequence[Stage]) -> PlanShares:
    """Shares over consecutive stages, of which the last is endless.

    Strands are sized once for all stages, by the largest share; otherwise a component that grows in
    a later stage would mix within too small a window. Laps fit the usual share: that of the longest
    stretch without changes. The end of a run is deliberately not used: extending a run must not
    change its order. An endless last stretch counts as long as everything before it. Price: some 33
    evaluations between two break points.

    Raises:
        ConfigError: the largest shares leave a part of some batch unfilled.

    Example:
        >>> from headrace.mix.blend import Blend
        >>> plan = plan_shares(
        ...     [Stage(0, Blend({"web": 3, "code": 1})), Stage(50, Blend({"code": 1, "math": 1}))]
        ... )
        >>> plan.largest
        {'web': 0.75, 'code': 0.5, 'math': 0.5}
        >>> plan.usual  # of the first stage, and of the last for what the first does not use
        {'web': 0.75, 'code': 0.25, 'math': 0.5}
    """
    last = stages[-1]
    endless = last.blend.used(last.first_step, None)
    stages = [*stages[:-1], dataclasses.replace(last, blend=endless)]
    stops = [*(stage.first_step for stage in stages[1:]), None]
    stretches = [
        s for stage, stop in zip(stages, stops, strict=True) for s in _stretches(stage, stop)
    ]
    largest: dict[str, float] = {}
    for stretch in stretches:
        for name, share in zip(stretch.names, stretch.rows.max(axis=0).tolist(), strict=True):
            largest[name] = max(largest.get(name, 0.0), share)
    usual = _longest(stretches)
    if usual is None:
        return PlanShares(largest, None)
    near = {name: usual.get(name, 0.0) for name in largest}
    fitting = {
        name: share if share >= _FITTING_SHARE * largest[name] else largest[name]
        for name, share in near.items()
    }
    return PlanShares(largest, fitting)


def _stretches(stage: Stage, stop: int | None) -> list[_Stretch]:
    first = stage.first_step
    inside = [b for b in stage.blend.breaks if first < b and (stop is None or b < stop)]
    names = stage.blend.names
    bound = np.array([stage.max_share.get(name, 1.0) for name in stage.blend.names])
    row_tokens = stage.tokens_of_rows
    stretches: list[_Stretch] = []
    for begin, end in pairwise([first, *inside, stop]):
        assert begin is not None  # only the last bound may be missing
        last = begin if end is None else end - 1
        steps = np.unique(np.linspace(begin, last, _SAMPLES).astype(np.int64))
        try:
            rows = stage.blend.at(steps)
        except (
            ConfigError
        ):  # no weight there: the blend was checked for the steps that are run, and this is behind
            continue
        rows = _bounded(rows, bound, steps, names)
        rows = rows if row_tokens is None else row_shares(rows, np.array(row_tokens))
        stretches.append(_Stretch(begin, end, names, rows))
    return stretches


def _bounded(
    rows: np.ndarray, bound: np.ndarray, steps: np.ndarray, names: tuple[str, ...]
) -> np.ndarray:
    if not (bound < 1).any():
        return rows
    try:
        return bound_shares(rows, bound, steps)
    except ConfigError as error:
        bounds = {n: b for n, b in zip(names, bound.tolist(), strict=True) if b < 1}
        raise error.but(field="max_share", value=bounds) from error


def _longest(stretches: Sequence[_Stretch]) -> dict[str, float] | None:
    """Shares of the longest stretch without change; the first of equals."""
    best = None
    longest = 0
    begin = 0
    previous = None
    for stretch in stretches:
        shares = stretch.constant()
        if shares is not None and shares != previous:  # neighbours that are alike are one
            begin = stretch.first
        previous = shares
        stop = max(2 * begin, begin + 1) if stretch.stop is None else stretch.stop
        if shares is not None and stop - begin > longest:
            best = shares
            longest = stop - begin
    return best
