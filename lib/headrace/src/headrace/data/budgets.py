"""The budgets of a run: memory for open blocks, and rows until limits.

- :class:`OpenBytes`: an order draws from a window of rows before it moves on, and a block is read
  once if memory holds it that long: for a braid its strands, for a block shuffle its windows, for
  an era shuffle an era, for a full shuffle everything, for stored order a chunk. Orders that by
  design keep a number of blocks open are refused if memory cannot hold them. Others read blocks
  again, which is reported and may be intended. Loaders, ``config check``, ``config simulate`` and
  reports use it.
- :func:`require_steps`: other sources take the share that limits free (mix/shares.py), so a run is
  too short only if all sources with weight are used up, or at their largest share. Finding that
  takes one pass to the end of the run: 2 us per step.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import MixtureDataset, mixture_of
from headrace.errors import ConfigError, IndexOutOfRangeError, format_count
from headrace.mix.plan import Plan
from headrace.mix.schedule import ExchangeSetting


class OpenBytes(NamedTuple):
    """Bytes of rows that the orders draw from at a time, over all hosts, by component.

    Attributes:
        windows: Orders that keep blocks open by design.
        others: All other orders.
        everywhere: Sources of few blocks that are shuffled as a whole: every host draws from all of
            such a source, unless hosts pass each other its rows.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> rows = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> braid = OpenBytes.of(rows.braid_shuffle(seed=0, strands=4, io_block_size=2))
        >>> (
        ...     braid.needed() == 4 * 2 * rows.row_bytes,
        ...     braid.refused(60),
        ...     braid.refused(60, share=0.5),
        ... )
        (True, True, False)
        >>> full = OpenBytes.of(rows.shuffle(0))
        >>> full.needed() == len(rows) * rows.row_bytes, full.refused(100)
        (True, False)
    """

    windows: Mapping[str, int]
    others: Mapping[str, int]
    everywhere: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(cls, dataset: PlannedDataset, row_exchange: ExchangeSetting = "auto") -> OpenBytes:
        """The bytes of a dataset, with the weights of all steps; of its phases, the one that needs
        most.
        """
        return max(
            (cls._of_phase(phase, row_exchange) for _, phase in dataset.phases),
            key=lambda o: (o.window_bytes(), o.needed()),
        )

    @classmethod
    def _of_phase(cls, dataset: PlannedDataset, row_exchange: ExchangeSetting) -> OpenBytes:
        open_ = dataset.open_windows()
        sizes = {
            name: window.rows * window.windows * row_bytes
            for name, (window, row_bytes) in open_.items()
        }
        kinds: tuple[dict[str, int], ...] = ({}, {}, {})
        for name, (window, _) in open_.items():
            everywhere = window.everywhere and row_exchange != "on"
            kinds[2 if everywhere else not window.blocks][name] = sizes[name]
        return cls(*kinds)

    def needed(self, share: float = 1.0) -> int:
        """Bytes that a host with this share of each batch's rows needs to read each block once."""
        return int((sum(self.windows.values()) + sum(self.others.values())) * share) + sum(
            self.everywhere.values()
        )

    def window_bytes(self, share: float = 1.0) -> int:
        """The part of these bytes that a loader requires."""
        return int(sum(self.windows.values()) * share) + sum(self.everywhere.values())

    @property
    def largest(self) -> str:
        """The component that needs most of the required bytes, or else of all."""
        sizes = {**self.windows, **self.everywhere} or self.others
        return max(sizes, key=lambda name: sizes[name])

    def exchange_cure(self, prefetch_bytes: int, share: float) -> str:
        """The end of a cure, if enough memory is saved by hosts that pass rows to each other."""
        shared = int((sum(self.windows.values()) + sum(self.everywhere.values())) * share)
        helps = self.everywhere and shared <= prefetch_bytes
        return ", or set row_exchange: on" if helps else ""

    def refused(self, prefetch_bytes: int, share: float = 1.0) -> bool:
        """Whether a loader with this much memory refuses to start, because it would read each block
        many times.
        """
        return self.window_bytes(share) > prefetch_bytes

    def shortage(self, prefetch_bytes: int | None, hosts: int) -> str | None:
        """A sentence about the memory that equal hosts lack; None if there is
        enough, or no limit.
        """
        if prefetch_bytes is None or self.needed(1 / hosts) <= prefetch_bytes:
            return None
        refused = self.refused(prefetch_bytes, 1 / hosts)
        needed = self.window_bytes(1 / hosts) if refused else self.needed(1 / hosts)
        verdict = "the loader refuses to start" if refused else "blocks are read again"
        return (
            f"{prefetch_bytes:,} bytes do not hold the {needed:,} bytes that the shuffle keeps"
            f" open on {format_count(hosts, 'host')} (most of them for component {self.largest!r}):"
            f" {verdict}."
        )

    def check(self, prefetch_bytes: int, share: float = 1.0) -> None:
        """Raises ConfigError if a loader has to refuse to start."""
        if self.refused(prefetch_bytes, share):
            needed = self.window_bytes(share)
            raise ConfigError(
                f"is less than the {needed:,} bytes of blocks that the shuffle keeps open on this"
                " host"
                f" (most of them for component {self.largest!r}), so blocks would be read again"
                " and again",
                field="prefetch_bytes",
                value=prefetch_bytes,
                cure=f"Raise it to {needed + needed // 4} or more, or lower shuffle.strands (or"
                f" window_blocks){self.exchange_cure(prefetch_bytes, share)}.",
            )


_CHUNK = 4096
_BoundOf: TypeAlias = Callable[[MixtureDataset, str], tuple[str, float]]
"""The field of the limit that applies to a component of a mixture, and its value."""


def require_steps(
    dataset: PlannedDataset, num_steps: int, plan: Plan | None = None, own: Collection[str] = ()
) -> None:
    """Checks that a mixture, phased or not, can fill this many steps.

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
        return f"max_examples.{name}", float(mixture.limits[name] or 0)

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
        has = f"is used up after {limit}, as it stood in for others"
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
    if mixture.draws.policy.length is not None:
        return False
    return int(mixture.draws.starts_at(step).sum()) < mixture.batch_schedule.rows_at(step)[0]


def _target_rows(mixture: MixtureDataset, first_step: int, stop: int) -> dict[str, float]:
    """Rows that each component would have in these steps without limits."""
    total = np.zeros(len(mixture.names))
    for first in range(first_step, stop, _CHUNK):
        at = np.arange(first, min(first + _CHUNK, stop))
        total += (mixture.weights_at(at) * mixture.batch_schedule.size_at(at)[:, None]).sum(axis=0)
    return dict(zip(mixture.names, total.tolist(), strict=True))
