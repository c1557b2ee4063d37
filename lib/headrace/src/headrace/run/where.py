"""Where a run is at a step: its stage and, for each source, the weight, the rows and tokens so far,
and the epoch.

A pure function of (config, step) that reads only the ledgers of the caches. It works for any step
of a run that is running, has ended, or was never started.

Price: 2 us for each step before it if weights change with the step, otherwise a few milliseconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from headrace.data.dataset import BatchOrder
from headrace.data.mixture import mixture_of
from headrace.data.sources_at import sources_at
from headrace.errors import ConfigError, IndexOutOfRangeError, as_whole
from headrace.metrics import SourceAt
from headrace.run.lock import RunLock

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig
    from headrace.data.phased import RunDataset


@dataclass(frozen=True)
class Whereabouts:
    """A run after ``step`` steps.

    Attributes:
        step: Steps that are done; the next one to load.
        num_steps: Steps of the run; None if it has no end.
        stage: Number of the stage that the step belongs to, from 0.
        stage_name: Its name; None if it has none.
        stage_step: Its first step.
        batch_size: Rows of the step's batch.
        seq_len: Tokens of its rows.
        rows: Rows in all earlier steps.
        tokens: Tokens of these.
        fingerprint: Fingerprint of the run's lock, as in a checkpoint's ``LoaderState``.
        sources: Sources by name.
    """

    step: int
    num_steps: int | None
    stage: int
    stage_name: str | None
    stage_step: int
    batch_size: int
    seq_len: int
    rows: int
    tokens: int
    fingerprint: str
    sources: dict[str, SourceAt]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def where(config: LmDataConfig, step: int) -> Whereabouts:
    """Where a run is after ``step`` steps.

    Args:
        config: The run's config.
        step: Number of completed steps, from 0 to the length of the run.

    Raises:
        IndexOutOfRangeError: the run has fewer steps.

    Example:
        >>> import headrace.testing
        >>> from headrace import load_config
        >>> caches = {name: headrace.testing.tiny_cache(seed=s) for s, name in enumerate("ab")}
        >>> plan = [
        ...     "seq_len=8",
        ...     "batch_size=4",
        ...     "components.a={cache: x, weight: 3}",
        ...     "components.b={cache: x}",
        ... ]
        >>> here = where(load_config(overrides=plan).with_caches(caches), 100)
        >>> here.tokens, here.sources["a"].rows, here.sources["b"].weight
        (3200, 300, 0.25)
    """
    if not hasattr(config, "components"):
        raise ConfigError(
            "is not a config", field="config", value=config, cure="Give load_config(FILE)."
        )
    return whereabouts(BatchOrder(config.dataset(), row_order=config.row_order), step)


def whereabouts(order: BatchOrder, step: int) -> Whereabouts:
    """Where the run of an order is after ``step`` steps; raises what :func:`where` does."""
    step = as_whole("step", step)
    dataset = cast("RunDataset", order.dataset)
    last = order.num_steps
    if step < 0 or (last is not None and step > last):
        end = "Steps count from 0." if last is None else f"Give 0 to {last}, the end of the run."
        raise IndexOutOfRangeError("is not a step of this run", field="step", value=step, cure=end)
    over = step == last
    served, _ = dataset.at_step(step - 1 if over and step else step)
    if (mixture := mixture_of(served)) is None:
        raise ConfigError("is not a mixture", field="dataset", value=type(served).__name__)
    sources = sources_at(dataset, step, is_over=over)
    stage = mixture.stage_at(step)
    return Whereabouts(
        step=step,
        num_steps=last,
        stage=stage,
        stage_name=mixture.stages[stage].name,
        stage_step=mixture.stage_steps[stage],
        batch_size=mixture.batch_schedule.rows_at(step)[1],
        seq_len=mixture.seq_len,
        rows=sum(source.rows for source in sources.values()),
        tokens=sum(source.tokens for source in sources.values()),
        fingerprint=RunLock.of(order).fingerprint,
        sources=sources,
    )
