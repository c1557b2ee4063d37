"""headrace's batches as a ``torch.utils.data.IterableDataset``.

::

    batches = TorchBatches(config.dataset(), rank=rank, world=world)
    for batch in torch.utils.data.DataLoader(batches, batch_size=None):  # they are batches already
        ...

headrace reads ahead in threads, so torch's workers would gain nothing: leave ``num_workers`` at 0. ``state_dict`` and
``load_state_dict`` follow torchdata's protocol for stateful loaders.
"""

# torch is not a dependency of headrace, so its types may be missing
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportAttributeAccessIssue=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from headrace.adapters.host_batches import HostBatches, HostOptions, arrays_of
from headrace.data.async_dataset import AsyncDataset
from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.run.manifest import LoaderState

_INDICES = ("tokens", "labels")


class TorchBatches(IterableDataset[dict[str, torch.Tensor]]):
    """Batches as dicts of tensors: ``tokens`` and ``labels`` as int64, ``token_weights`` as float32.

    Args:
        dataset: What to load.
        batch_size: As for :class:`headrace.DataLoader`.
        options: ``rank``, ``world``, ``row_order``, ``prefetch_bytes`` and ``last_batch``, as for
            :class:`~headrace.adapters.host_batches.HostBatches`.

    Raises:
        ConfigError: as for :class:`~headrace.adapters.host_batches.HostBatches`; during iteration: there are several
            workers, each of which would deliver all batches.
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        **options: Unpack[HostOptions],
    ) -> None:
        super().__init__()
        self.batches = HostBatches(dataset, batch_size, **options)
        self._step = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ConfigError(
                "would each give every batch",
                field="num_workers",
                value=worker.num_workers,
                cure="Use num_workers=0: headrace reads ahead in threads of its own.",
            )
        for step, batch in self.batches.from_step(self._step):
            self._step = step + 1
            yield {
                name: torch.from_numpy(
                    values.astype(np.int64) if name in _INDICES else np.ascontiguousarray(values)
                )
                for name, values in arrays_of(batch).items()
            }

    def state_dict(self) -> dict[str, Any]:
        """The current position: a step and the run's fingerprint."""
        return LoaderState(self._step, self.batches.manifest.fingerprint).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration starts at the saved state.

        Raises:
            PlanMismatchError: the state belongs to another run.
        """
        self._step = self.batches.resume(state)
