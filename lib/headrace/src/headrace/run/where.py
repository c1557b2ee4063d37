"""Where a run is at a step: its stage and, for each source, the weight, the rows and tokens so far, and the epoch.

A pure function of (config, step) that reads only the ledgers of the caches. It works for any step of a run that is
running, has ended, or was never started.

Price: 2 us for each step before it if weights change with the step, otherwise a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import BatchOrder
from headrace.data.mixture import MixtureDataset, mixture_of
from headrace.errors import ConfigError, IndexOutOfRangeError, as_whole
from headrace.run.manifest import RunManifest
from headrace.store.cache import TokenCache

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig


@dataclass(frozen=True)
class SourceAt:
    """One source of a run at a step.

    Attributes:
        weight: Its target share at the step, before budgets, in what the run counts, as ``share``.
        share: Its share of all tokens so far.
        rows_in_step: Its rows in the step's batch; 0 when the run is over.
        rows: Its rows in all earlier steps.
        tokens: Tokens of these.
        epoch: The pass over the source that its next row belongs to, from 0.
        epochs: ``tokens`` over the tokens of one pass; None if the source is never repeated.
    """

    weight: float
    share: float
    rows_in_step: int
    rows: int
    tokens: int
    epoch: int
    epochs: float | None


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
        fingerprint: Fingerprint of the run's manifest, as in a checkpoint's ``LoaderState``.
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

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def where(
    config: LmDataConfig, step: int, instead: Mapping[str, TokenCache] | None = None
) -> Whereabouts:
    """Where a run is after ``step`` steps.

    Args:
        config: The run's config.
        step: Number of completed steps, from 0 to the length of the run.
        instead: Caches by name, which replace those at the components' paths.

    Raises:
        IndexOutOfRangeError: the run has fewer steps.

    Example:
        >>> import headrace.testing
        >>> from headrace import load_config
        >>> caches = {name: headrace.testing.tiny_cache(seed=s) for s, name in enumerate("ab")}
        >>> plan = ["seq_len=8", "batch_size=4", "components.a={cache: x, weight: 3}", "components.b={cache: x}"]
        >>> here = where(load_config(overrides=plan), 100, caches)
        >>> here.tokens, here.sources["a"].rows, here.sources["b"].weight
        (3200, 300, 0.25)
    """
    step = as_whole("step", step)
    if not hasattr(config, "components"):
        raise ConfigError(
            "is not a config", field="config", value=config, cure="Give load_config(FILE)."
        )
    dataset = config.dataset(instead)
    order = BatchOrder(dataset, row_order=config.row_order)
    last = order.num_steps
    if step < 0 or (last is not None and step > last):
        end = "Steps count from 0." if last is None else f"Give 0 to {last}, the end of the run."
        raise IndexOutOfRangeError("is not a step of this run", field="step", value=step, cure=end)
    over = step == last
    served, _ = dataset.at_step(step - 1 if over and step else step)
    if (mixture := mixture_of(served)) is None:
        raise ConfigError("is not a mixture", field="dataset", value=type(served).__name__)
    names = mixture.names
    rows = np.zeros(len(names), np.int64)
    tokens = np.zeros(len(names), np.int64)
    ends = [*(first for first, _ in dataset.phases[1:]), step]
    for (first, phase), until in zip(dataset.phases, ends, strict=True):
        end = min(step, until)
        if end > first and (phase_mixture := mixture_of(phase)) is not None:
            at_begin = _starts(phase_mixture, first)
            at_end = _starts(phase_mixture, end)
            rows += at_end - at_begin
            tokens += phase_mixture.tokens_of(at_end) - phase_mixture.tokens_of(at_begin)
    counts = np.zeros(len(names), np.int64) if over else mixture.draws.counts_at(step)
    first_steps = np.asarray([stage.first_step for stage in mixture.stages])
    stage = int(np.searchsorted(first_steps, step, side="right")) - 1
    blend = mixture.stages[stage].blend
    weights = dict(zip(blend.names, blend.at(np.asarray([step]))[0].tolist(), strict=True))
    sources = {
        name: SourceAt(
            weight=weights.get(name, 0.0),
            share=float(tokens[d] / max(int(tokens.sum()), 1)),
            rows_in_step=int(counts[d]),
            rows=int(rows[d]),
            tokens=int(tokens[d]),
            epoch=int(part.passes(rows[d : d + 1])[0]),
            epochs=None
            if (of_pass := mixture.tokens_of_pass(name)) is None
            else int(tokens[d]) / of_pass,
        )
        for d, (name, part) in enumerate(zip(names, mixture.components, strict=True))
    }
    return Whereabouts(
        step=step,
        num_steps=last,
        stage=stage,
        stage_name=mixture.stages[stage].name,
        stage_step=int(first_steps[stage]),
        batch_size=int(mixture.batch_schedule.size_at(np.asarray([step]))[0]),
        seq_len=mixture.seq_len,
        rows=int(rows.sum()),
        tokens=int(tokens.sum()),
        fingerprint=RunManifest.of(order).fingerprint,
        sources=sources,
    )


def _starts(mixture: MixtureDataset, step: int) -> Int64[np.ndarray, " d"]:
    """Rows of each component before ``step``; ``step`` may be just after the last one."""
    try:
        return mixture.draws.starts_at(step)
    except IndexOutOfRangeError:
        return mixture.draws.starts_at(step - 1) + mixture.draws.counts_at(step - 1)
