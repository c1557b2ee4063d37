"""What a config resolves to: sizes, shares, strands, epochs, and the reads of its first steps.

All of it follows from ledgers, or from declared sizes, without reading a token: the order is a pure function. Epochs
are counted, not divided out: the quotas are walked to the last step.

Price: a second of imports; then 2 us for each row of the steps that are looked at and 2 us for each step of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np

from headrace.check.sizes import planned_caches
from headrace.config import LmDataConfig
from headrace.data.batch_order import RowOrder
from headrace.data.dataset import PlannedDataset, ReorderedDataset
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import Continued, PhasedDataset
from headrace.data.shuffle import open_bytes
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.feed.plan import BlockSpace, global_rows, stored_blocks
from headrace.index.block_shuffle import BlockShuffle
from headrace.index.braid import BraidShuffle
from headrace.index.shuffle_config import BlockShuffleConfig, BraidShuffleConfig, ShuffleConfig
from headrace.index.size_weights import is_size_rule
from headrace.simulate import Forecast, simulate
from headrace.store.cache import TokenCache

LOOKED_ROWS = 1 << 17
"""Rows whose reads are forecast, but four batches at least, and four times the strands: a braid opens all its strands
once before its reads are those of the long run."""
MOST_ROWS = 1 << 20
HOSTS = (1, 8, 64)


@dataclass(frozen=True)
class ComponentPlan:
    """One component of a run.

    Attributes:
        name: Its name.
        cache: Path of its cache.
        leaves: What the cache holds beside the tokens.
        exists: Whether the cache does; if not, sizes are as declared.
        declared_tokens: Tokens that the config declares; None: it declares none.
        tokens: Tokens of the cache.
        rows: Rows that are trained on, in an epoch of the first phase.
        row_tokens: Tokens of these rows, one by one.
        chunk_tokens: Tokens of a stored chunk, the unit of reading.
        shuffle: Its order: ``braid``, ``block``, ``full``, ``era`` or ``none``.
        strands: Blocks open at a time, of a braid.
        block_rows: Rows of a block; 0 if the order has none.
        open_bytes: Bytes of blocks that its order keeps open at a time, over all hosts.
        held_windows: So many times ``open_bytes`` the loader must be able to hold.
        first_share: Share of a batch that it is to have at step 0.
        last_share: The same at the last step of the run, or of the last stage.
        largest_share: The largest that was seen at stage borders and between.
        drawn_rows: Rows of the whole run; None if its length is not known.
        epochs: Passes over it in the run; None likewise.
    """

    name: str
    cache: str
    leaves: tuple[str, ...]
    exists: bool
    declared_tokens: int | None
    tokens: int
    rows: int
    row_tokens: int
    chunk_tokens: int
    shuffle: str
    strands: int
    block_rows: int
    open_bytes: int
    held_windows: int
    first_share: float
    last_share: float
    largest_share: float
    drawn_rows: int | None
    epochs: float | None


@dataclass(frozen=True)
class RunPlan:
    """A whole run.

    Attributes:
        components: Its sources.
        stages: First step, name and weights of each mixture.
        phases: First step and tokens of a row of each phase.
        batch_size: Rows of a batch at step 0.
        largest_batch: Rows of the largest.
        steps: Steps of the run; None: no end is known.
        tokens: Tokens of the run; None likewise.
        ends_early: The step at which limits end it, if that is before the steps that were asked for.
        first_batch_chunks: Stored chunks that the first batch touches.
        first_batch_bytes: Bytes of these.
        forecast: Reads for some numbers of hosts with the config's memory; None: they hold not one batch.
        unlimited: The same with all the memory that hosts want.
        settled: Whether the steps that were looked at show the long run, and not just how it begins.
        refused: Why ``forecast`` is None.
        row_bytes: Bytes of a row as it is stored.
        prefetch_bytes: Memory for blocks on a host.
        unpacked: Components that are to be packed, and are planned as streams since their documents are not there yet.
        config: The config.
    """

    components: tuple[ComponentPlan, ...]
    stages: tuple[dict[str, Any], ...]
    phases: tuple[tuple[int, int], ...]
    batch_size: int
    largest_batch: int
    steps: int | None
    tokens: int | None
    ends_early: int | None
    first_batch_chunks: int
    first_batch_bytes: int
    forecast: Forecast | None
    unlimited: Forecast
    settled: bool
    refused: str | None
    row_bytes: int
    prefetch_bytes: int
    unpacked: tuple[str, ...]
    config: LmDataConfig = field(repr=False)

    def held_bytes(self, hosts: int) -> int:
        """Bytes of blocks that the loader of one of so many hosts must be able to hold."""
        return sum(c.open_bytes * c.held_windows for c in self.components) // hosts

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON values."""
        plain = {k: v for k, v in vars(self).items() if k not in ("config", "components", "forecast", "unlimited")}
        return {
            **plain,
            "components": [asdict(c) for c in self.components],
            "forecast": None if self.forecast is None else self.forecast.to_json(),
            "unlimited": self.unlimited.to_json(),
        }


def plan_run(
    config: LmDataConfig,
    *,
    sizes: Mapping[str, float] | None = None,
    layout: str = "headrace",
    look: bool = True,
    hosts: Sequence[int] | None = None,
    num_steps: int | None = None,
    max_rows: int = LOOKED_ROWS,
) -> RunPlan:
    """Resolves a config.

    Args:
        config: The config.
        sizes: Tokens of components, in place of what the config or a cache says.
        layout: Whose chunks the caches to come will have; see :func:`~headrace.check.sizes.planned_caches`.
        look: Whether to look for the caches whose sizes are declared.
        hosts: Numbers of hosts to forecast for; None: of 1, 8 and 64 those that a batch can be split over.
        num_steps: Steps of the run, in place of the config's.
        max_rows: Rows whose reads are forecast, at most.

    Raises:
        ConfigError: the config cannot be resolved: what a loader would say, without a loader.
        CacheError: a cache is missing, and its size is not declared.

    Example:
        >>> from headrace.component_config import ComponentConfig
        >>> config = LmDataConfig({"web": ComponentConfig("caches/web", expected_tokens=2e8)}, num_steps=1000)
        >>> plan = plan_run(config)
        >>> plan.tokens, round(plan.components[0].epochs, 3), plan.first_batch_chunks
        (65536000, 0.328, 32)
    """
    if num_steps is not None:
        config = replace(config, num_steps=num_steps)
    _check_mixture(config)
    given, planned = config, planned_caches(config, sizes, layout=layout, look=look)
    config = planned.config
    opened = config.open_caches(planned.caches)
    dataset = config.dataset(opened)
    steps, ends_early = _steps(dataset, config.run_steps)
    first = cast("MixtureDataset", dataset.phase_at(0)[0])
    trained = config.train_datasets(opened)
    rows_drawn = None if steps is None else _drawn(dataset, steps)
    shares = _shares(first, steps)
    order: RowOrder = "locality" if config.row_order == "locality" else "stream"
    size = dataset.batch_schedule.rows_at(0)[1]
    strands = sum(_blocks_of(component)[0] for component in first.components)
    rows = max(4 * size, min(max(max_rows, 5 * strands), max(MOST_ROWS, max_rows)))
    forecast, unlimited, refused = _forecasts(
        dataset, order, hosts or [n for n in HOSTS if n == 1 or size % n == 0], config, steps, rows
    )
    chunks, chunk_bytes = _first_batch(dataset, order)
    tokens = None if rows_drawn is None else sum(int(rows.sum()) * length for _, length, rows in rows_drawn)
    components = tuple(
        _component(
            name,
            config,
            opened[name],
            name not in planned.caches,
            planned.declared.get(name),
            trained[name],
            component,
            shares[:, d],
            None if rows_drawn is None else [(length, int(rows[d])) for _, length, rows in rows_drawn],
        )
        for d, (name, component) in enumerate(zip(first.names, first.components, strict=True))
    )
    return RunPlan(
        components=components,
        stages=tuple({k: s[k] for k in ("step", "name", "weights")} for s in first.describe()["stages"]),
        phases=tuple((step, length) for step, length in config.phases),
        batch_size=size,
        largest_batch=dataset.batch_schedule.max_size,
        steps=steps,
        tokens=tokens,
        ends_early=ends_early,
        first_batch_chunks=chunks,
        first_batch_bytes=chunk_bytes,
        forecast=forecast,
        unlimited=unlimited,
        settled=unlimited.steps * size >= 4 * strands,
        refused=refused,
        row_bytes=first.row_bytes,
        prefetch_bytes=config.prefetch_bytes,
        unpacked=planned.unpacked,
        config=given,
    )


def _check_mixture(config: LmDataConfig) -> None:
    """Says what is wrong with weights and stages before it is said that a cache is missing."""
    blends = [config.weights, *(stage.weights for stage in config.stages)]
    if not any(blend is not None and is_size_rule(blend, config.components) for blend in blends):
        config.resolved_stages()


def _steps(dataset: MixtureDataset | PhasedDataset, wanted: int | None) -> tuple[int | None, int | None]:
    """Steps of the run, and the step at which limits end it, if that is before."""
    if dataset.length is None:
        return wanted, None
    if not dataset.length:
        raise ConfigError("has no row to train on", field="components", cure="Raise max_epochs or max_tokens.")
    end = int(dataset.batch_schedule.step_of(np.asarray([dataset.length - 1]))[0]) + 1
    if wanted is None or end < wanted:
        return end, None if wanted is None else end
    return wanted, None


def _drawn(dataset: MixtureDataset | PhasedDataset, steps: int) -> list[tuple[int, int, np.ndarray]]:
    """First step and row length of each phase, and the rows of each component in it."""
    found: list[tuple[int, int, np.ndarray]] = []
    step = 0
    while step < steps:
        phase, until = dataset.phase_at(step)
        draws = cast("MixtureDataset", phase).draws
        stop = steps if until is None else min(until, steps)
        try:
            end = draws.starts_at(stop)
        except IndexOutOfRangeError:  # the last batch is not full
            end = draws.starts_at(stop - 1)
        found.append((step, phase.seq_len, end - draws.starts_at(step)))
        step = stop
    return found


def _shares(mixture: MixtureDataset, steps: int | None) -> np.ndarray:
    """Wanted shares, ``[looks, d]``: of the first step, of some between, of the last."""
    bends = [stage.first_step for stage in mixture.stages]
    bends += [b for stage in mixture.stages for b in stage.blend.breaks]
    end = max(bends) + 1 if steps is None else steps
    looks = np.unique(np.clip([0, *bends, *(b - 1 for b in bends), *np.linspace(0, end - 1, 65)], 0, end - 1))
    return mixture.weights_at(looks.astype(np.int64))


def _forecasts(
    dataset: PlannedDataset,
    order: RowOrder,
    hosts: Sequence[int],
    config: LmDataConfig,
    steps: int | None,
    max_rows: int,
) -> tuple[Forecast | None, Forecast, str | None]:
    schedule = cast("MixtureDataset", dataset).batch_schedule

    def forecast(cache_bytes: int | None) -> Forecast:
        return simulate(
            dataset,
            schedule,
            hosts=hosts,
            cache_bytes=cache_bytes,
            num_steps=steps,
            row_order=order,
            max_rows=max_rows,
        )

    unlimited = forecast(None)
    try:
        return forecast(config.prefetch_bytes), unlimited, None
    except ConfigError as error:
        return None, unlimited, f"{error.problem}. {error.cure or ''}".strip()


def _first_batch(dataset: PlannedDataset, order: RowOrder) -> tuple[int, int]:
    """Stored chunks that the first batch touches, and their bytes."""
    schedule = cast("MixtureDataset", dataset).batch_schedule
    served, _, _, _, rows = global_rows(dataset, schedule, 0, 1, order)
    space = BlockSpace(served.sources)
    blocks = np.unique(stored_blocks(served.sources, space, rows)[1])
    array = space.array_of(blocks)
    return blocks.size, int(space.block_bytes()[array].sum())


def _component(
    name: str,
    config: LmDataConfig,
    cache: TokenCache,
    exists: bool,
    declared: int | None,
    trained: PlannedDataset,
    component: PlannedDataset,
    shares: np.ndarray,
    drawn: list[tuple[int, int]] | None,
) -> ComponentPlan:
    shuffle = config.components[name].shuffle
    shuffle = config.shuffle if shuffle is None else shuffle
    strands, block_rows = _blocks_of(component)
    row_tokens = len(trained) * trained.seq_len
    tokens = None if drawn is None else sum(length * rows for length, rows in drawn)
    return ComponentPlan(
        name=name,
        cache=config.components[name].cache,
        leaves=tuple(cache.leaves),
        exists=exists,
        declared_tokens=declared,
        tokens=cache.num_tokens,
        rows=len(trained),
        row_tokens=row_tokens,
        chunk_tokens=cache.layout.chunk_elements,
        shuffle=_kind_of(shuffle),
        strands=strands,
        block_rows=block_rows,
        open_bytes=open_bytes(component),
        held_windows=shuffle.cache_windows if isinstance(shuffle, BlockShuffleConfig) else 1,
        first_share=float(shares[0]),
        last_share=float(shares[-1]),
        largest_share=float(shares.max()),
        drawn_rows=None if drawn is None else sum(rows for _, rows in drawn),
        epochs=None if tokens is None or not row_tokens else tokens / row_tokens,
    )


def _kind_of(shuffle: ShuffleConfig) -> str:
    if isinstance(shuffle, BraidShuffleConfig | BlockShuffleConfig):
        return shuffle.kind
    return "full" if shuffle is True else "era" if shuffle else "none"


def _blocks_of(component: PlannedDataset) -> tuple[int, int]:
    """Strands and block of the order of a mixture's component; 0 where it has none."""
    if isinstance(component, Continued):
        return _blocks_of(component.whole)
    if not isinstance(component, ReorderedDataset):
        return 0, 0
    order = component.order
    if isinstance(order, BraidShuffle):
        return order.strands, order.io_block_size
    if isinstance(order, BlockShuffle):
        return 0, order.io_block_size
    return _blocks_of(component.base)
