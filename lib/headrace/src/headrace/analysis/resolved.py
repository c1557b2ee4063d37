"""A config resolved for questions about its run.

``config check``, ``config simulate``, ``run tree`` and the report all ask this object, so that no
two of them can answer differently: it opens the caches, or makes stand-ins of the declared sizes,
builds the dataset as a loader does, and says where the run ends and what is forecast of its reads.
``run where`` and ``run cat`` ask the same dataset; they need no stand-ins and no forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

from headrace.analysis.check.sizes import PlannedCaches, planned_caches
from headrace.analysis.simulate.forecast import (
    DEFAULT_ROWS,
    Examination,
    RunSteps,
    examine,
)
from headrace.config.lm_data import LmDataConfig
from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import RunDataset
from headrace.data.sources_at import sources_at
from headrace.errors import ConfigError
from headrace.feed.micro_steps import MicroForecast
from headrace.feed.plan import RunRows
from headrace.metrics import SourceAt
from headrace.mix.blend import is_size_rule, repeats_somewhere
from headrace.mix.policy import Watch
from headrace.mix.schedule import DataEnd, check_some_batch, data_end
from headrace.order.order import Identity
from headrace.store.cache import TokenCache


class OrderFacts(NamedTuple):
    """The order of a component.

    Attributes:
        kind: Its name in configs: ``braid``, ``block``, ``full``, ``era``, ..., or ``none``.
        strands: Blocks open at a time, for a braid.
        block_rows: Rows of a block; 0 if the order has none.
        open_blocks: Blocks that it keeps open at a time by design; 0 if it has no blocks.
        open_bytes: Bytes of rows that it draws from at a time, summed over hosts.
        mixes_all: Whether each epoch is a shuffle of all its rows, however they lie in blocks.
        held_windows: Multiple of ``open_bytes`` that the loader must be able to hold.
        block_reads: How often a pass reads a block.
    """

    kind: str
    strands: int
    block_rows: int
    open_blocks: int
    open_bytes: int
    mixes_all: bool
    held_windows: int
    block_reads: float

    @property
    def reads_rows(self) -> bool:
        """Whether it keeps no rows of a block together: each row is a read."""
        return self.kind != "none" and not self.open_blocks

    @classmethod
    def of(cls, component: PlannedDataset) -> OrderFacts:
        """That of a component of a mixture."""
        order = component.shuffle_order() or Identity(component.rows_of_pass or 1)
        window = component.open_window()
        return cls(
            kind=order.kind,
            strands=order.strands,
            block_rows=order.io_block_size,
            open_blocks=window.blocks,
            open_bytes=window.rows * component.row_bytes,
            mixes_all=window.everywhere or order.kind == "full",
            held_windows=window.windows,
            block_reads=order.block_reads,
        )


@dataclass(frozen=True)
class ResolvedRun:
    """A config with its caches and its dataset.

    Attributes:
        original: The config as it is written.
        planned: Stand-ins for caches that do not exist, and the config to plan with.
        caches: The cache of each component, open or a stand-in.
        dataset: The dataset of the run.
    """

    original: LmDataConfig
    planned: PlannedCaches
    caches: Mapping[str, TokenCache]
    dataset: RunDataset

    @classmethod
    def of(cls, config: LmDataConfig, *, look: bool = True, **questions: Any) -> Self:
        """Resolves a config.

        Args:
            config: The config.
            look: Whether to look for the caches whose sizes are declared.
            questions: Further fields, of a class with more of them.

        Raises:
            ConfigError: the config cannot be resolved; the same error as from a loader.
            CacheError: a cache is missing and its size is not declared.

        Example:
            >>> from headrace import ComponentConfig
            >>> sources = {"web": ComponentConfig("caches/web", expected_tokens=2e8)}
            >>> run = ResolvedRun.of(LmDataConfig(sources, num_steps=1000))
            >>> run.steps, run.drawn["web"].tokens
            (1000, 65536000)
        """
        _check_mixture(config)
        planned = planned_caches(config, look=look)
        resolved = planned.config.with_caches(planned.caches).at_snapshots()
        caches = resolved.open_caches()
        planned = replace(planned, config=resolved.with_caches(caches))
        return cls(config, planned, caches, planned.config.dataset(), **questions)

    @property
    def config(self) -> LmDataConfig:
        """The config to plan with: without packing of documents that do not exist yet."""
        return self.planned.config

    @cached_property
    def written(self) -> LmDataConfig:
        """The config as it is written, with the components that amendments bring in."""
        return self.original.with_caches(self.planned.caches).at_snapshots()

    @property
    def first(self) -> MixtureDataset:
        """The mixture at step 0."""
        return cast("MixtureDataset", self.dataset.at_step(0)[0])

    @cached_property
    def trained(self) -> Mapping[str, PlannedDataset]:
        """The rows of each component that are trained on, in stored order."""
        return self.config.train_datasets()

    @cached_property
    def orders(self) -> Mapping[str, OrderFacts]:
        """The order of each component at step 0."""
        return {
            name: OrderFacts.of(component)
            for name, component in zip(self.first.names, self.first.components, strict=True)
        }

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The first step, name and weights of each mixture."""
        stages = zip(self.first.stage_steps, self.first.describe()["stages"], strict=True)
        return [
            {"step": step, "name": stage["name"], "weights": stage["weights"]}
            for step, stage in stages
        ]

    @property
    def rows(self) -> RunRows:
        """The rows of all its batches."""
        return RunRows(self.dataset, self.dataset.batch_schedule, self.config.row_order)

    @property
    def micro_batches(self) -> MicroForecast | None:
        """How batches are split, and how full the micro-batches are; None: they are not split."""
        cut = self.config.micro_batches
        return cut and MicroForecast.of(cut, self.rows)

    @property
    def data_end(self) -> DataEnd | None:
        """How the data end, if the run goes on to there."""
        end = data_end(self.dataset.batch_schedule, self.dataset.length)
        return end if end is not None and end.num_steps == self.steps else None

    @cached_property
    def steps(self) -> int | None:
        """Steps of the run; None: no known end."""
        end = data_end(self.dataset.batch_schedule, self.dataset.length)
        limit = self.config.run_steps
        if end is None:
            return limit
        if not end.rows:
            raise ConfigError(
                "has no row to train on", field="components", cure="Raise max_epochs or max_tokens."
            )
        check_some_batch(self.dataset.batch_schedule, end.rows)
        return end.num_steps if limit is None else min(end.num_steps, limit)

    @property
    def ends_early(self) -> int | None:
        """The step at which limits end it, if before the steps that were asked for."""
        limit = self.config.run_steps
        return self.steps if self.steps is not None and self.steps != limit is not None else None

    @cached_property
    def drawn(self) -> dict[str, SourceAt]:
        """The sources at the end of the run; empty if it has no known end."""
        if self.steps is None:
            return {}
        return sources_at(self.dataset, self.steps, is_over=True)

    @property
    def tokens(self) -> int | None:
        """Tokens of the run; None: no known end."""
        return None if self.steps is None else sum(one.tokens for one in self.drawn.values())

    def examine(
        self,
        hosts: Sequence[int],
        *,
        first_step: int = 0,
        max_rows: int = DEFAULT_ROWS,
        watch: Watch | None = None,
    ) -> Examination:
        """Examines steps, from which reads are forecast for any memory; arguments as for
        :func:`~headrace.analysis.simulate.forecast.simulate`.
        """
        return examine(
            self.dataset,
            self.dataset.batch_schedule,
            hosts=hosts,
            steps=RunSteps(first_step, self.steps, max_rows),
            row_order=self.config.row_order,
            row_exchange=self.config.exchange_setting,
            watch=watch,
        )


def _check_mixture(config: LmDataConfig) -> None:
    """Reports errors of weights and stages before a missing cache is reported."""
    blends = [config.weights, *(stage.weights for stage in config.stages)]
    blends.append({name: component.weight for name, component in config.components.items()})
    moves = any(amendment.caches for amendment in config.amendments)  # needs caches, too
    if not moves and not any(
        b is not None and (is_size_rule(b, config.components) or repeats_somewhere(b))
        for b in blends
    ):
        config.plan()
