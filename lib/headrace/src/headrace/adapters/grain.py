"""headrace's rows as a ``grain.MapDataset``, and its batches as a ``grain.IterDataset``.

``GrainRows`` is for those who go on shuffling, mapping and batching with Grain: one row an element.
``GrainBatches`` keeps headrace's mixture, order and resuming: one batch an element, and a state of a step and a
fingerprint that ``DatasetIterator.set_state`` refuses if the run has become another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import grain
import numpy as np

from headrace.adapters.host_batches import HostBatches, HostOptions, arrays_of
from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import AsyncDataset
from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.run.manifest import LoaderState

Element = dict[str, np.ndarray]


class GrainRows(grain.MapDataset[Element]):
    """One row an element: ``{"tokens": [S], "labels": [S], ...}``.

    Indices behind the end begin again, as in Grain's own datasets; ``.repeat()``, ``.shuffle()``, ``.batch()`` and
    ``.to_iter_dataset()`` work as there. Rows that Grain asks for together are read together.

    Args:
        dataset: What to load; it must have an end, so give components, or a mixture with ``num_steps``.

    Raises:
        ConfigError: the dataset has no end.
    """

    def __init__(self, dataset: AsyncDataset[PackedBatch]) -> None:
        super().__init__()
        if dataset.length is None:
            raise ConfigError(
                "has no end, and a MapDataset must have a length", field="dataset", cure="Use GrainBatches, or take()."
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
    """One batch an element: ``{"tokens": [B, S], "labels": [B, S], ...}``, this process's share of it.

    Args:
        dataset: What to load.
        batch_size: As for :class:`headrace.DataLoader`.
        options: ``rank``, ``world``, ``row_order`` and ``prefetch_bytes``, as for
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
    """Batches from a step on. Its state is the step, and of which run."""

    def __init__(self, batches: HostBatches) -> None:
        super().__init__()
        self._batches, self._step = batches, 0
        self._found = batches.from_step(0)

    def __next__(self) -> Element:
        step, batch = next(self._found)
        self._step = step + 1
        return arrays_of(batch)

    def get_state(self) -> dict[str, Any]:
        return LoaderState(self._step, self._batches.manifest.fingerprint).to_json()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where the state says.

        Raises:
            PlanMismatchError: it is the state of another run.
        """
        self._step = self._batches.resume(state)
        self._found = self._batches.from_step(self._step)

    def __str__(self) -> str:
        return f"GrainBatches at step {self._step}"
