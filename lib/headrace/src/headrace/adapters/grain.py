"""headrace's rows as a ``grain.MapDataset``, and its batches as a ``grain.IterDataset``.

With ``GrainRows``, each element is one row, and Grain shuffles, maps and batches. With
``GrainBatches``, each element is one batch, with headrace's mixture and order. Its state is a step
and a fingerprint, and ``DatasetIterator.set_state`` refuses the state of a run that has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import grain
import numpy as np

from headrace.adapters.host_batches import HostBatches, HostOptions, HostPass, arrays_of
from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import AsyncDataset
from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule

Element = dict[str, np.ndarray]


class GrainRows(grain.MapDataset[Element]):
    """Each element is one row: ``{"tokens": [S], "labels": [S], ...}``.

    Indices past the end wrap around, as in Grain's own datasets; ``.repeat()``, ``.shuffle()``,
    ``.batch()`` and ``.to_iter_dataset()`` work as usual. Rows that Grain requests together are
    read together.

    Args:
        dataset: What to load. It must be finite: a component, or a mixture with ``num_steps``.

    Raises:
        ConfigError: the dataset has no end.
    """

    def __init__(self, dataset: AsyncDataset[PackedBatch]) -> None:
        super().__init__()
        if dataset.length is None:
            raise ConfigError(
                "has no end, and a MapDataset must have a length",
                field="dataset",
                cure="Use GrainBatches, or take().",
            )
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Element]:
        numbers = np.asarray(indices, np.int64) % len(self)
        arrays = arrays_of(self._dataset.read(numbers))
        return [{name: values[k] for name, values in arrays.items()} for k in range(numbers.size)]

    def __str__(self) -> str:
        return f"GrainRows(len={len(self)})"


class GrainBatches(grain.IterDataset[Element]):
    """Each element is this process's share of a batch: ``{"tokens": [B, S], "labels": [B, S],
    ...}``.

    Args:
        dataset: What to load.
        batch_size: As for :class:`headrace.DataLoader`.
        options: ``rank``, ``world``, ``row_order``, ``prefetch_bytes`` and ``last_batch``, as for
            :class:`~headrace.adapters.host_batches.HostBatches`.

    Raises:
        ConfigError: as for :class:`~headrace.adapters.host_batches.HostBatches`.
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        **options: Unpack[HostOptions],
    ) -> None:
        super().__init__()
        self.batches = HostBatches(dataset, batch_size, **options)

    def __iter__(self) -> _BatchesIterator:
        return _BatchesIterator(self.batches)

    def __str__(self) -> str:
        return "GrainBatches"


class _BatchesIterator(grain.DatasetIterator[Element]):
    """Batches from a step on. Its state is the step and the run's fingerprint."""

    def __init__(self, batches: HostBatches) -> None:
        super().__init__()
        self._pass = HostPass(batches)

    def __next__(self) -> Element:
        return next(self._pass)

    def get_state(self) -> dict[str, Any]:
        return self._pass.state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a saved state.

        Raises:
            PlanMismatchError: the state belongs to another run.
        """
        self._pass.state = state

    def __str__(self) -> str:
        return f"GrainBatches at step {self._pass.step}"
