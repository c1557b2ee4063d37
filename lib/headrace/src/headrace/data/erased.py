"""What is erased from the rows of a run (:mod:`headrace.data.erased_rows`), and from which step on:
documents that were removed from its caches when it began, or while it goes on.

Plans, orders, quotas and splits of a run are not affected; steps before a removal are
bit-identical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from headrace.data.dataset import PlannedDataset, stored_dataset
from headrace.data.erased_rows import ErasedRows, Erasure
from headrace.data.mixture import MixtureDataset, mixture_of
from headrace.data.rows import RowSource
from headrace.errors import ConfigError
from headrace.order.intervals import Intervals

if TYPE_CHECKING:
    from headrace.data.token_seq import CacheDataset


def _check_left(mixture: MixtureDataset, past: Mapping[str, Erasure], step: int) -> None:
    """Raises ConfigError if a component from which rows are drawn, at this step or later, has
    nothing left.
    """
    later = mixture.stage_steps[1:]
    drawn = {
        name
        for stage, end in zip(mixture.stages, [*later, None], strict=True)
        if end is None or end > step
        for name in stage.blend.names
    }
    for name, erasure in past.items():
        dataset = mixture.components[mixture.names.index(name)]
        cache = dataset.caches()[0]
        removal = cast("CacheDataset[Any]", stored_dataset(dataset)).removal
        if name not in drawn or erasure.tokens.total < cache.num_tokens - removal.num_tokens:
            continue
        if Intervals.union([erasure.tokens, removal.tokens]).total == cache.num_tokens:
            cure = f"Drop the source in the same amendment: drop: [{name}]."
            if not erasure.field.startswith("amendments"):
                cure = (
                    "Leave the source out, or train on what was removed:"
                    f" components.{name}.snapshot: 1."
                )
            problem = f"leaves nothing of {cache.path}: all documents of {name!r} are removed"
            raise ConfigError(
                problem, field=erasure.field, value=erasure.record["snapshot"], cure=cure
            )


class Erasures:
    """What is erased from the components of a mixture, from which step on.

    Args:
        of_components: By component: what is erased from which step on, in the order of steps, each
            including the previous.
        drawn_from: First step of components that amendments add. Nothing of them is erased before,
            so that the amendment adds no mask to earlier batches.

    Attributes:
        of_components: As given.

    Example:
        >>> import headrace.testing
        >>> import numpy as np
        >>> from headrace import TokenSeqDataset
        >>> from headrace.data.phased import PhasedDataset
        >>> tokens = TokenSeqDataset(headrace.testing.tiny_cache(documents=40), seq_len=8)
        >>> mixture = MixtureDataset({"web": tokens}, {"web": 1}, batch_size=2)
        >>> gone = Erasure(Intervals(np.array([18]), np.array([20])), 1, {"snapshot": [2]})
        >>> erasures = Erasures({"web": [(1, gone)]})
        >>> erased = PhasedDataset([(0, mixture)], mixture.batch_schedule, erasures=erasures)
        >>> (
        ...     erased.at_step(0)[0].read([0]).token_mask,
        ...     erased.at_step(1)[0].read([2]).token_mask.tolist(),
        ... )
        (None, [[1, 1, 0, 0, 1, 1, 1, 1]])
    """

    def __init__(
        self,
        of_components: Mapping[str, Sequence[tuple[int, Erasure]]],
        drawn_from: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.of_components = of_components
        from_step = {
            name: [(max(step, drawn_from.get(name, 0)), one) for step, one in of_component]
            for name, of_component in of_components.items()
        }
        steps = {0, *(step for ones in from_step.values() for step, _ in ones)}
        self._past = {step: _erased_by(step, from_step) for step in sorted(steps)}
        # By identity of the mixture, which is kept with it, and step of an erasure
        self._applied: dict[tuple[int, int], tuple[PlannedDataset, PlannedDataset]] = {}
        self._checked: set[tuple[int, int]] = set()

    def next_after(self, step: int) -> int | None:
        """The first step after this one at which more is erased."""
        return next((later for later in self._past if later > step), None)

    def applied(self, dataset: PlannedDataset, step: int | None = None) -> PlannedDataset:
        """A mixture without what is erased at a step, or at the end; itself if nothing is.

        Raises:
            ConfigError: nothing is left of a component from which rows are drawn at the step or
                later.
        """
        first = max(began for began in self._past if step is None or began <= step)
        past = self._past[first]
        mixture = mixture_of(dataset)
        if not past or mixture is None:
            return dataset
        key = id(dataset), first
        # Not before a step is asked for: a run may have begun with less
        if step is not None and key not in self._checked:
            _check_left(mixture, past, first)
            self._checked.add(key)
        if key not in self._applied:
            self._applied[key] = (dataset, _erased(mixture, past))
        return self._applied[key][1]

    def describe(self) -> dict[str, Any]:
        """As JSON values, for plans of runs; empty if nothing is erased."""
        recorded = {
            name: {str(step): one.record for step, one in ones}
            for name, ones in self.of_components.items()
        }
        return {"removed": recorded} if recorded else {}


def _erased_by(
    step: int, from_step: Mapping[str, Sequence[tuple[int, Erasure]]]
) -> dict[str, Erasure]:
    """What is erased from each component at a step."""
    past = {
        name: [one for first, one in of_component if first <= step]
        for name, of_component in from_step.items()
    }
    return {name: ones[-1] for name, ones in past.items() if ones and ones[-1].tokens.total}


def _erased(mixture: MixtureDataset, past: Mapping[str, Erasure]) -> PlannedDataset:
    sources: list[RowSource] = []
    for name, component in zip(mixture.names, mixture.components, strict=True):
        erasure = past.get(name)
        sources += [
            rows if erasure is None else ErasedRows(rows, erasure) for rows in component.sources
        ]
    return mixture.with_sources(sources)


NOTHING_ERASED = Erasures({})
