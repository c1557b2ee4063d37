"""``MixtureDataset``: several sources in exact, scheduled proportions.

Step s has ``n_d(s)`` rows of source d; ``sum_d n_d(s)`` is the batch size, and cumulative counts
are always less than one example from the target share (mix/quota.py). The rows are source d's
examples in its own order, continuing from the previous step; a used-up source starts again in a new
order. Each row is thus a function of (config, seed, step).

1. :class:`MixtureDataset`: joins the orders of its components with a policy.
2. :class:`Braids`: maps ordinals of all components to rows, in one pass where they are braids.
3. :func:`require_steps`: whether the limits of its sources leave rows for all steps of a run.
"""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from headrace.data.async_dataset import AsyncDataset, check_dataset
from headrace.data.columns import run_columns
from headrace.data.component import share_strands
from headrace.data.dataset import PlannedDataset, WrappingDataset
from headrace.data.row_tokens import MixtureTokens, counted_plan
from headrace.data.rows import Explained, Rows, RowSource
from headrace.data.token_seq import stored_dataset
from headrace.errors import (
    ConfigError,
    IndexOutOfRangeError,
    check_at_least,
    check_choice,
    check_whole,
)
from headrace.metrics import ReadStats
from headrace.mix.blend import Blend
from headrace.mix.draws import NO_SKIPS, STOP_STRATEGIES, Draws, Skips
from headrace.mix.plan import Plan, plan_of
from headrace.mix.schedule import BatchSchedule, Weight, data_end, weight_from_config
from headrace.mix.shares import row_shares
from headrace.mix.stages import Stage, Stages, check_components
from headrace.order.braid import BraidShuffle, BraidTable
from headrace.order.order import MAX_LENGTH, OpenWindow, Order, Repeat


class MixtureDataset(WrappingDataset):
    """Mixes datasets by weights that may change with the step.

    Args:
        components: Datasets by name, each with its shuffle applied; those of ``braid_shuffle``
            without ``batch_size`` share one budget of strands, as in a config. Finite ones start
            over in a new order, as limits and ``stop_strategy`` allow.
        weights: A weight for each component: a number, ``{"step": {step: w}}`` or ``{"linear":
            {step: w}}``; or a nested :class:`~headrace.mix.blend.Blend` with the components as
            leaves (normalised at each step and node); or several
            :class:`~headrace.mix.stages.Stage`, each over any of the components.
        batch_size: Rows in a step, an int or a :class:`~headrace.mix.schedule.BatchSchedule`.
        max_epochs: Largest number of passes over the components, one number or by name, fractions
            allowed. The share of a used-up component goes to the others in proportion to their
            weights.
        max_examples: Largest number of rows of components in the whole run, by name.
        stop_strategy: ``restart`` (continue endlessly), ``first_exhausted`` or ``all_exhausted``.
        policy: The order in which sources are drawn; see :mod:`headrace.mix.plan`.
        num_steps: Steps of the run, after which the mixture ends, unless limits end it earlier;
            None: endless. Does not change any step.

    Raises:
        ConfigError: names differ, rows have different lengths, all weights are zero at some step, a
            component is not stored, or a limit or policy does not fit.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> a, b = (
        ...     TokenSeqDataset(headrace.testing.tiny_cache(seed=s), seq_len=8, name="ab"[s])
        ...     for s in (0, 1)
        ... )
        >>> mixture = MixtureDataset(
        ...     {"a": a, "b": b}, {"a": 3, "b": {"linear": {0: 0, 100: 3}}}, batch_size=4
        ... )
        >>> mixture.draws.counts_at(0).tolist(), mixture.draws.counts_at(200).tolist()
        ([4, 0], [2, 2])
    """

    def __init__(
        self,
        components: Mapping[str, AsyncDataset[Any]],
        weights: Mapping[str, object] | Blend | Sequence[Stage],
        batch_size: int | Mapping[int, int] | BatchSchedule,
        *,
        max_epochs: float | Mapping[str, float] | None = None,
        max_examples: Mapping[str, int] | None = None,
        stop_strategy: str = "restart",
        policy: str = "quota",
        num_steps: int | None = None,
    ) -> None:
        if not isinstance(components, Mapping) or not components:
            cure = "Give datasets by name: {'web': TokenSeqDataset(CACHE, seq_len=2048)}."
            raise ConfigError(
                "is not a mapping of names to datasets",
                field="components",
                value=components,
                cure=cure,
            )
        for name, dataset in components.items():
            check_dataset(f"components.{name}", dataset)
        check_whole("num_steps", num_steps)
        check_at_least("num_steps", num_steps, cure="Leave it out for a run without an end.")
        check_choice("stop_strategy", stop_strategy, STOP_STRATEGIES, "is no stop strategy")
        batch = batch_size if isinstance(batch_size, BatchSchedule) else BatchSchedule(batch_size)
        plan = plan_of(weights, policy, [*components], batch)
        self._draw(
            components,
            replace(
                plan,
                max_epochs=max_epochs,
                max_rows=max_examples or {},
                stop_strategy=stop_strategy,
                num_steps=num_steps,
            ),
        )

    @classmethod
    def of(cls, components: Mapping[str, AsyncDataset[Any]], plan: Plan) -> MixtureDataset:
        """The mixture of components that meets a plan; they are numbered as the plan has them.

        Raises:
            ConfigError: they are not those of the plan; and what the constructor raises.
        """
        if {*components} != {*plan.names}:
            raise ConfigError(
                "are not those of the plan",
                field="components",
                value=[*components],
                cure=f"Give {[*plan.names]}.",
            )
        mixture = cls.__new__(cls)
        mixture._draw({name: components[name] for name in plan.names}, plan)
        return mixture

    def _draw(self, components: Mapping[str, AsyncDataset[Any]], plan: Plan) -> None:
        """Completes the plan with what the rows of the components tell, and draws to meet it."""
        self.names = tuple(components)
        self.batch_schedule = plan.batch
        if plan.counted_tokens is not None:
            plan = counted_plan(plan, components)
        check_components(self.names, plan.stages)
        components = share_strands(components, plan)
        sizes = {name: dataset.length for name, dataset in components.items()}
        self.components = tuple(_repeated(name, dataset) for name, dataset in components.items())
        self.base = self.components[0]  # all have rows like this one
        self._check_rows()
        self.limits = plan.limits_of(sizes)
        self.stop_strategy = plan.stop_strategy
        self._tokens: MixtureTokens | None = None
        if plan.counted_tokens is not None:
            ordered = dict(zip(self.names, self.components, strict=True))
            self._tokens = MixtureTokens(plan, ordered)
            self.limits = self._tokens.bounded(self.limits, plan.max_tokens)
        plan = replace(
            plan, sizes=[*sizes.values()], limits=[*self.limits.values()], seq_len=self.seq_len
        )
        if self._tokens is not None:
            plan = self._tokens.timed(plan)
        self.stages = tuple(plan.stages)
        self.draws = Draws(plan.make(plan))
        self._length = self._end(plan.sizes, plan.num_steps)
        self._check_weights()
        self._braids = Braids(self.components)
        self._sources = tuple(
            source for component in self.components for source in component.sources
        )
        self._first_source = np.cumsum([0] + [len(c.sources) for c in self.components])
        self._stats = ReadStats()
        self._loss_weights: dict[str, Weight] = {}
        self._planned_batch = self.batch_schedule
        self.skips = NO_SKIPS

    def skipping(self, skips: Skips) -> MixtureDataset:
        """This mixture without the batches of some steps.

        Raises:
            ConfigError: it ends before one of them.
        """
        if not skips:
            return self
        other = copy.copy(self)
        other.skips = skips
        other.draws = Draws(self.draws.policy, skips=skips)
        other.batch_schedule = other.draws.batch
        other._length = skips.rows_left(self._length, self._planned_batch)
        return other

    def reweighed(
        self, step: int, weights: Mapping[str, float], name: str, path: str
    ) -> MixtureDataset | None:
        """This mixture with constant weights from a step on, for all sources of its last stage:
        only its draws are made anew. None if its end or its weights depend on more than that.
        """
        policy = self.draws.policy
        is_bound = self.stop_strategy != "restart" or any(
            limit is not None for limit in self.limits.values()
        )
        if is_bound or self._tokens is not None or not isinstance(policy, Stages):
            return None
        first = self.skips.planned_step(step)
        last = self.stages[-1]
        if first <= last.first_step or {*weights} != {*last.blend.names}:
            return None
        in_order = {source: weights[source] for source in last.blend.names}
        blend = Blend(in_order, path, first_step=first, may_end=True)
        other = copy.copy(self)
        policy = policy.followed_by(Stage(first, blend, name, last.max_share))
        other.stages = policy.stages
        other.draws = Draws(policy, skips=self.skips)
        return other

    @property
    def stage_steps(self) -> list[int]:
        """The first step of the run that each of :attr:`stages` serves."""
        return [self.skips.step_of(stage.first_step) for stage in self.stages]

    def stage_at(self, step: int) -> int:
        """The number of the stage that a step of the run belongs to, from 0."""
        return int(np.searchsorted(self.stage_steps, step, side="right")) - 1

    def drawn_between(
        self, first: int, stop: int
    ) -> tuple[Int64[np.ndarray, " d"], Int64[np.ndarray, " d"]]:
        """Rows and tokens of each component in the steps from ``first`` to ``stop``, which may be
        just after the last one.
        """
        rows = np.zeros(len(self.names), np.int64)
        tokens = np.zeros(len(self.names), np.int64)
        for begin, end in self.skips.stretches(first, stop):
            at_begin = self._drawn_before(begin)
            at_end = self._drawn_before(end)
            rows += at_end - at_begin
            tokens += self.tokens_of(at_end) - self.tokens_of(at_begin)
        return rows, tokens

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """The ordinal of each component that ``step`` begins with; ``step`` may be just after the
        last one.
        """
        return self._drawn_before(self.skips.planned_step(step))

    def _drawn_before(self, planned: int) -> Int64[np.ndarray, " d"]:
        policy = self.draws.policy
        try:
            return policy.starts_at(planned)
        except IndexOutOfRangeError:  # the last batch is not full
            return policy.starts_at(planned - 1) + policy.counts_at(planned - 1)

    def tokens_of_rows(self, name: str, rows: int) -> int:
        """Tokens of the first ``rows`` rows of a component: as the run's ``unit`` counts them, or
        with padding.
        """
        return (
            rows * self.seq_len
            if self._tokens is None
            else self._tokens.of_component[name].count_first(rows)
        )

    def tokens_of(self, drawn: Int64[np.ndarray, " d"]) -> Int64[np.ndarray, " d"]:
        """The same for all components, with a number of rows for each."""
        return np.array(
            [self.tokens_of_rows(n, d) for n, d in zip(self.names, drawn.tolist(), strict=True)],
            np.int64,
        )

    def tokens_of_pass(self, name: str) -> int | None:
        """Tokens of all rows of a component; None if it is endless."""
        rows = self.components[self.names.index(name)].rows_of_pass
        return None if rows is None else self.tokens_of_rows(name, rows)

    def _end(self, sizes: Sequence[int | None], num_steps: int | None) -> int | None:
        """Number of examples until limits, sources, the policy or the run's length
        end the mixture.
        """
        end = None if num_steps is None else self.batch_schedule.rows_at(num_steps)[0]
        last = self.draws.policy.ends_after
        if self.stop_strategy == "restart":
            if last is None and not any(limit is not None for limit in self.limits.values()):
                return end
            if num_steps is not None and end is not None and (last is None or end <= last):
                try:  # to the end of the run, which may be long before that of the limits
                    self.draws.policy.check_limits(num_steps)
                except IndexOutOfRangeError:
                    pass
                else:
                    # the last of these steps may hold fewer rows than a batch
                    return end if last is not None else int(self.draws.starts_at(num_steps).sum())
        self._check_reached()
        length = self.draws.count_examples(sizes, self.stop_strategy, [*self.limits.values()])
        return length if end is None or (length is not None and length < end) else end

    def _check_weights(self) -> None:
        """Raises ConfigError if no component has weight at some step before the end."""
        end = data_end(self.batch_schedule, self._length)
        self.stages[-1].blend.check_ends(None if end is None else end.num_steps)

    def _check_reached(self) -> None:
        """Raises ConfigError if limits end the mixture before a stage of it begins."""
        for number, stage in enumerate(self.stages[1:], start=1):
            try:
                self.draws.starts_at(stage.first_step)
            except IndexOutOfRangeError as error:
                path, _, last = stage.blend.path.rpartition(".")
                raise ConfigError(
                    "is never reached: the limits end the mixture before",
                    field=f"{path if path and last == 'weights' else f'stages[{number}]'}.step",
                    value=stage.first_step,
                    cure="Raise max_epochs, max_tokens or max_share, add a source before, or begin"
                    " the stage earlier.",
                ) from error

    @property
    def length(self) -> int | None:
        return self._length

    @property
    def own_schedule(self) -> BatchSchedule:
        return self.batch_schedule

    @property
    def mixture(self) -> MixtureDataset:
        return self

    def documents_digests(self) -> dict[str, str]:
        """The digest of the documents of each component, by name."""
        return {
            name: stored_dataset(component).documents_digest
            for name, component in zip(self.names, self.components, strict=True)
        }

    @property
    def in_shuffled_store(self) -> bool:
        return False  # its blocks are of several components

    def opening_requests(self, hosts: int) -> int:
        return sum(component.opening_requests(hosts) for component in self.components)

    def explain(self, example: Int64[np.ndarray, " n"]) -> Explained:
        component, ordinal = self.draws.route(example)
        epoch = np.empty_like(ordinal)
        for d in np.unique(component).tolist():
            rows = component == d
            epoch[rows] = self.components[d].passes(ordinal[rows])
        return Explained(self.names, component.astype(np.int64), ordinal, epoch)

    def open_windows(self, step: int | None = None) -> Mapping[str, tuple[OpenWindow, int]]:
        shares = (
            np.ones(len(self.names)) if step is None else self.weights_at(np.asarray([step]))[0]
        )
        return {
            name: (component.open_window(), component.row_bytes)
            for name, component, share in zip(self.names, self.components, shares, strict=True)
            if share > 0
        }

    @property
    def everywhere(self) -> Bool[np.ndarray, " sources"]:
        return np.concatenate([component.everywhere for component in self.components])

    def with_loss_weights(self, weights: Mapping[str, object]) -> MixtureDataset:
        """This mixture with loss weights for its components; its rows are the same.

        Args:
            weights: By component, with the syntax of a mixture's weights; the default is 1. Batches
                of a loader, which knows the step, have them; those of :meth:`read` do not.

        Raises:
            ConfigError: no such component; an invalid weight.

        Example:
            >>> import headrace.testing
            >>> from headrace import DataLoader, TokenSeqDataset
            >>> datasets = {
            ...     n: TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8, name=n)
            ...     for n in "ab"
            ... }
            >>> mixture = MixtureDataset(datasets, {"a": 1, "b": 1}, batch_size=8)
            >>> loader = DataLoader(mixture.with_loss_weights({"b": {"linear": {0: 0, 10: 1}}}))
            >>> float(
            ...     loader.batch_at(5).token_weights.min(
            ...         where=loader.batch_at(5).label_mask, initial=9
            ...     )
            ... )
            0.5
        """
        for name in weights:
            check_choice("loss_weight", name, self.names, "is not a component")
        weighed = copy.copy(self)
        weighed._loss_weights = {
            n: weight_from_config(w, f"components.{n}.loss_weight") for n, w in weights.items()
        }
        return weighed

    def with_sources(self, sources: Sequence[RowSource]) -> MixtureDataset:
        """This mixture with the same rows of other sources, which must have the same number."""
        other = copy.copy(self)
        other._sources = tuple(sources)
        vars(other).pop("joined_rows", None)  # of the earlier sources, if it was asked
        return other

    def loss_weights_at(
        self, steps: Int64[np.ndarray, " n"], source: Int64[np.ndarray, " n"]
    ) -> Float32[np.ndarray, " n"] | None:
        if not self._loss_weights:
            return None
        component = np.searchsorted(self._first_source, source, side="right") - 1
        weights = np.ones(source.size, np.float32)
        for name, weight in self._loss_weights.items():
            rows = np.flatnonzero(component == self.names.index(name))
            weights[rows] = weight.at(self.skips.planned(steps[rows]))
        return weights

    def describe(self) -> dict[str, Any]:
        weights = {name: weight.to_config() for name, weight in self._loss_weights.items()}
        snapshots = {
            name: [snapshot.number for cache in c.caches() for snapshot in cache.snapshots]
            for name, c in zip(self.names, self.components, strict=True)
        }
        later = {
            name: numbers for name, numbers in snapshots.items() if max(numbers, default=1) > 1
        }
        return {
            **({"loss_weights": weights} if weights else {}),
            **({"snapshots": later} if later else {}),
            "names": list(self.names),  # sources are numbered in this order
            "components": {
                n: c.describe() for n, c in zip(self.names, self.components, strict=True)
            },
            "stages": [stage.describe() for stage in self.stages],
            "batch_size": self._planned_batch.to_config(),
            **({"skipped": [[*pair] for pair in self.skips.ranges]} if self.skips else {}),
            "limits": {name: limit for name, limit in self.limits.items() if limit is not None},
            "stop_strategy": self.stop_strategy,
            **self.draws.policy.describe(),
        }

    def weights_at(self, steps: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n d"]:
        """Target shares of rows of the components at ``steps``, according to the stages, before
        limits.
        """
        shares = np.zeros((len(steps), len(self.names)))
        steps = self.skips.planned(steps)
        first = np.asarray([stage.first_step for stage in self.stages])
        stage_of = np.searchsorted(first, steps, side="right") - 1
        for number in np.unique(stage_of).tolist():
            stage = self.stages[number]
            of_stage = stage_of == number
            columns = [self.names.index(name) for name in stage.blend.names]
            weights = stage.blend.at(steps[of_stage])
            row_tokens = stage.tokens_of_rows
            shares[np.ix_(of_stage, columns)] = (
                weights if row_tokens is None else row_shares(weights, np.array(row_tokens))
            )
        return shares

    @property
    def sources(self) -> Sequence[RowSource]:
        return self._sources

    @property
    def read_stats(self) -> ReadStats:
        return self._stats

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        component, ordinal = self.draws.route(indices)
        located = Rows(np.empty_like(indices), np.empty_like(indices), np.empty(indices.size))
        part = self._braids.part_of(component, ordinal)
        braided = self._braids.held[component]
        if braided.size and braided.all():
            ordinal, located.locality[:] = self._braids.resolve(part, ordinal)
        elif braided.any():
            ordinal = ordinal.copy()  # a table that others share
            ordinal[braided], located.locality[braided] = self._braids.resolve(
                part[braided], ordinal[braided]
            )
        is_own_row = self._braids.own_rows[part]
        located.source[:] = self._first_source[component]
        located.row[:] = ordinal
        for number in np.flatnonzero(np.bincount(part[~is_own_row])).tolist():
            matches = np.flatnonzero(part == number)
            d = int(component[matches[0]])
            rows = self._braids.below[number].locate(ordinal[matches])
            located.source[matches] = rows.source + self._first_source[d]
            located.row[matches] = rows.row
            if not self._braids.held[d]:
                located.locality[matches] = rows.locality
        return located

    def _check_rows(self) -> None:
        sources = [source for component in self.components for source in component.sources]
        if any(source.columns for source in sources):
            run_columns(sources)
        first = self.base
        for name, component in zip(self.names, self.components, strict=True):
            if component.seq_len != first.seq_len:
                raise ConfigError(
                    f"has rows of {component.seq_len} tokens, and {self.names[0]!r} of"
                    f" {first.seq_len}",
                    field=f"components.{name}",
                    cure="All components of a mixture need the same seq_len.",
                )
            if component.splits_documents != first.splits_documents:
                which = name if component.splits_documents else self.names[0]
                other = self.names[0] if component.splits_documents else name
                raise ConfigError(
                    f"divides its rows into documents, and {other!r} does not",
                    field=f"components.{which}",
                    cure="All components of a mixture need the same split_documents, and none of"
                    " them packing.",
                )
            if component.pairs != first.pairs:
                which = name if component.pairs else self.names[0]
                raise ConfigError(
                    "has rows of preference pairs, and another component has not",
                    field=f"components.{which}",
                    cure="Mix pairs with pairs, or train on both in turn. Or train on the answers"
                    f" as on text: components.{which}.pairs: false.",
                )

    def reordered(self, order: Order) -> PlannedDataset:
        raise ConfigError(
            "cannot be reordered: its steps already hold exact quotas",
            field="mixture",
            cure="Shuffle the components before mixing them.",
        )


def mixture_of(dataset: PlannedDataset) -> MixtureDataset | None:
    """The mixture that a dataset draws from; None if there is none."""
    return cast(MixtureDataset | None, dataset.mixture)


def _repeated(name: str, dataset: AsyncDataset[Any]) -> PlannedDataset:
    planned = cast(PlannedDataset | None, dataset.planned)
    if planned is None or planned is not dataset:
        raise ConfigError(
            "does not lie in token stores",
            field=f"components.{name}",
            value=type(dataset).__name__,
            cure="Mix datasets over caches, and apply map() to the mixture.",
        )
    return planned if planned.length is None else planned.reordered(Repeat(planned.length))


class Braids:
    """Ordinals of a mixture's components to rows and localities, in one pass where their orders are
    braids.

    Such a component is one braid that repeats for ever, or the parts of an epoch that is finished
    and then the whole again and again (:class:`~headrace.data.phased.Continued`). Price: 0.5 us per
    row in batches of 1,024.

    Attributes:
        held: bool: which components are mapped together.
        below: The datasets of resolved rows, by part; for components that are mapped alone, the
            components themselves.
        own_rows: bool: parts whose resolved ordinals are rows of their only source.
    """

    def __init__(self, components: Sequence[PlannedDataset]) -> None:
        # 1. The parts of each component; none where its orders are no braids
        runs = [component.ordered_runs() for component in components]
        runs = [parts if all(part.order.in_table for part in parts) else () for parts in runs]
        self.held = np.asarray([bool(parts) for parts in runs])
        # 2. Parts are numbered through all components; one without parts has one number
        counts = np.asarray([max(len(parts), 1) for parts in runs])
        self._first_part = np.cumsum(counts) - counts
        self.below: list[PlannedDataset] = []
        for component, parts in zip(components, runs, strict=True):
            self.below += [part.dataset for part in parts] or [component]
        self.own_rows = np.repeat(self.held, counts) & np.array(
            [dataset.are_own_rows for dataset in self.below]
        )
        # 3. By component, the ordinals at which its second part begins, its third, and so on
        self._begins = np.full((int(counts.max(initial=1)) - 1, len(runs)), MAX_LENGTH, np.int64)
        # 4. Of each part: its first ordinal and first epoch, and its order's place in the table
        self._first = np.zeros(len(self.below), np.int64)
        self._epoch = np.zeros(len(self.below), np.int64)
        self._entry = np.zeros(len(self.below), np.int64)
        orders: list[Order] = []
        for component, parts in enumerate(runs):
            for nth, part in enumerate(parts):
                if nth:
                    self._begins[nth - 1, component] = part.first
                number = self._first_part[component] + nth
                self._first[number] = part.first
                self._epoch[number] = part.epoch
                self._entry[number] = len(orders)
                orders.append(part.order)
        self._table = BraidTable.of(cast("list[BraidShuffle]", orders)) if orders else None

    def part_of(self, component: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
        """The part that serves each ordinal."""
        part = self._first_part[component]
        for begins in self._begins:
            part = part + (ordinal >= begins[component])
        return part

    def resolve(
        self, part: np.ndarray, ordinal: np.ndarray
    ) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Rows and localities of ordinals, all belonging to parts that are mapped together."""
        assert self._table is not None  # there are such parts
        return self._table(self._entry[part], ordinal - self._first[part], self._epoch[part])


_CHUNK = 4096
_BoundOf: TypeAlias = Callable[[MixtureDataset, str], tuple[str, float]]
"""The field of the limit that applies to a component of a mixture, and its value."""


def require_steps(
    dataset: PlannedDataset, num_steps: int, plan: Plan | None = None, own: Collection[str] = ()
) -> None:
    """Checks that a mixture, phased or not, can fill this many steps.

    Other sources take the share that limits free (mix/shares.py), so a run is too short only if all
    sources with weight are used up, or at their largest share. Finding that takes one pass to the
    end of the run: 2 us per step.

    Args:
        dataset: The mixture.
        num_steps: Steps.
        plan: The plan of a config that it meets, for the error; None: its limits were given as
            ``max_examples``.
        own: Components whose ``max_epochs`` are set under their own name, not for all.

    Raises:
        ConfigError: it cannot; names the component, what it has, what is needed, and the cure.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> mixture = MixtureDataset({"a": dataset}, {"a": 1}, batch_size=4, max_examples={"a": 10})
        >>> require_steps(mixture, 2)
        >>> try:
        ...     require_steps(mixture, 5)
        ... except ConfigError as error:
        ...     print(error.field, error.cure)
        max_examples.a Raise it to 20 or more, or lower num_steps to 3.
    """

    def bound_of(mixture: MixtureDataset, name: str) -> tuple[str, float]:
        epochs = None if plan is None else plan.epochs_of(name)
        tokens = None if plan is None else plan.max_tokens.get(name)
        size = mixture.tokens_of_pass(name) or 0
        if tokens is not None and (epochs is None or tokens < epochs * size):
            return f"components.{name}.max_tokens", tokens
        if epochs is not None:
            return f"components.{name}.max_epochs" if name in own else "max_epochs", epochs
        return f"max_examples.{name}", mixture.limits[name] or 0

    for step, phase in dataset.phases:
        until = dataset.at_step(step)[1]
        if (mixture := mixture_of(phase)) is not None:
            _require(mixture, num_steps if until is None else min(until, num_steps), bound_of)


def _require(mixture: MixtureDataset, steps: int, bound_of: _BoundOf) -> None:
    bounded = any(limit is not None for limit in mixture.limits.values())
    if not bounded and not any(stage.max_share for stage in mixture.stages):
        return
    drops = mixture.batch_schedule.last_batch == "drop"
    is_short = _falls_short if drops else _ends_before
    if is_short(mixture, steps):
        most = _steps_until(mixture, steps, is_short)
        full = _steps_until(mixture, steps, _falls_short)
        raise _too_small(mixture, full, steps) or _short(mixture, full, most, steps, bound_of)


def _steps_until(
    mixture: MixtureDataset, steps: int, is_short: Callable[[MixtureDataset, int], bool]
) -> int:
    """The most steps, below ``steps``, for which a mixture is not short."""
    return bisect.bisect_left(range(1, steps + 1), True, key=lambda step: is_short(mixture, step))


def _too_small(mixture: MixtureDataset, whole: int, steps: int) -> ConfigError | None:
    """What to say of largest shares that leave a rest of step ``whole`` though no source with
    weight is used up.
    """
    shares = _shares_at(mixture, whole)
    if not shares or _used_up(mixture, whole):
        return None
    return ConfigError(
        f"cannot be met: at step {whole} all sources with weight are at their largest share and"
        f" leave a rest, and the run has {steps} steps",
        field="components.*.max_share",
        value=shares,
        cure="Raise one of these shares, or give another source weight.",
    )


def _used_up(mixture: MixtureDataset, step: int) -> list[str]:
    """The sources that end a mixture at ``step``: those with weight there whose limit lies within a
    batch.
    """
    drawn = mixture.draws.starts_at(step).tolist()
    size = mixture.batch_schedule.rows_at(step)[1]
    weights = mixture.weights_at(np.asarray([step]))[0].tolist()
    return [
        name
        for name, n, weight in zip(mixture.names, drawn, weights, strict=True)
        if weight > 0 and (limit := mixture.limits[name]) is not None and n + size >= limit
    ]


def _shares_at(mixture: MixtureDataset, step: int) -> dict[str, float]:
    return dict(mixture.stages[mixture.stage_at(step)].max_share)


def _short(
    mixture: MixtureDataset, whole: int, most: int, steps: int, bound_of: _BoundOf
) -> ConfigError:
    """What to say of limits that fill ``whole`` of ``steps`` steps, and leave rows for ``most``."""
    drawn = mixture.draws.starts_at(most)
    have = int(drawn.sum())
    needed = mixture.batch_schedule.rows_at(steps)[0]
    # Of the sources that end it, the one that could take most of what is missing. Others may have
    # been too small before, but what they lacked was there: more of them would not help.
    still_due = _target_rows(mixture, whole, steps)
    name = max(_used_up(mixture, whole), key=lambda n: still_due[n])
    limit = mixture.limits[name] or 0
    due = math.ceil(_target_rows(mixture, 0, steps)[name])
    has = f"has {limit} of the {due} that its weight asks for"
    if due <= limit:
        has = f"is used up after {limit}, and its weight asks for {due}"
    field, value = bound_of(mixture, name)
    rows = int(drawn[mixture.names.index(name)]) + needed - have
    enough = str(mixture.tokens_of_rows(name, rows) if field.endswith("max_tokens") else rows)
    if field.endswith("max_epochs"):
        enough = f"{math.ceil(value * (rows + 1) / max(limit, 1) * 1000) / 1000:g}"
    shares = _shares_at(mixture, whole)
    bounded = f", and the largest shares of a batch are {shares}" if shares else ""
    return ConfigError(
        f"cannot be met: {steps} steps need {needed} rows, and the limits leave {have};"
        f" component {name!r} {has}{bounded}",
        field=field,
        value=value,
        cure=f"Raise it to {enough} or more, or lower num_steps to {most}.",
    )


def _ends_before(mixture: MixtureDataset, step: int) -> bool:
    """Whether limits leave nothing for some step before ``step``."""
    try:
        mixture.draws.policy.check_limits(step)
    except IndexOutOfRangeError:
        return True
    return False


def _falls_short(mixture: MixtureDataset, step: int) -> bool:
    """Whether limits leave some step before ``step`` without a full batch."""
    if _ends_before(mixture, step):
        return True
    if mixture.draws.policy.ends_after is not None:
        return False
    return int(mixture.draws.starts_at(step).sum()) < mixture.batch_schedule.rows_at(step)[0]


def _target_rows(mixture: MixtureDataset, first_step: int, stop: int) -> dict[str, float]:
    """Rows that each component would have in these steps without limits."""
    total = np.zeros(len(mixture.names))
    for first in range(first_step, stop, _CHUNK):
        at = np.arange(first, min(first + _CHUNK, stop))
        total += (mixture.weights_at(at) * mixture.batch_schedule.size_at(at)[:, None]).sum(axis=0)
    return dict(zip(mixture.names, total.tolist(), strict=True))
