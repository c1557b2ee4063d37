"""headrace's batches as a ``torch.utils.data.IterableDataset``.

::

    batches = TorchBatches(config.dataset(), rank=rank, world=world)
    for batch in torch.utils.data.DataLoader(batches, batch_size=None):  # they are batches already
        ...

headrace reads ahead in threads, so torch's workers would gain nothing: leave ``num_workers`` at 0.

Every pass has all batches. ``state_dict`` and ``load_state_dict``, of the dataset and of each pass,
follow torchdata's protocol: with ``torchdata.stateful_dataloader.StatefulDataLoader``, its own
state is the one to save, with or without a worker. torch's own ``DataLoader`` with a worker has no
access to the worker's position, so save states without workers.
"""

# torch is not a dependency of headrace, so its types may be missing
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from headrace.adapters.host_batches import HostBatches, HostOptions, HostPass
from headrace.data.async_dataset import AsyncDataset
from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.run.state import LoaderState

_INDICES = ("tokens", "labels")


class TorchBatches(IterableDataset[dict[str, torch.Tensor]]):
    """Batches as dicts of tensors: ``tokens`` and ``labels`` as int64, ``token_weights`` as
    float32.

    Args:
        dataset: What to load.
        batch_size: As for :class:`headrace.DataLoader`.
        options: ``rank``, ``world``, ``row_order``, ``prefetch_bytes`` and ``last_batch``, as for
            :class:`~headrace.adapters.host_batches.HostBatches`.

    Raises:
        ConfigError: as for :class:`~headrace.adapters.host_batches.HostBatches`; when a pass
            begins: there are several workers, each of which would deliver all batches.
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        **options: Unpack[HostOptions],
    ) -> None:
        super().__init__()
        self.batches = HostBatches(dataset, batch_size, **options)
        self._first_step = 0
        self._pass: _Pass | None = None

    def __iter__(self) -> _Pass:
        """A pass over the run: from its first step, or once from the step of a loaded state.

        Raises:
            ConfigError: there are several workers.
        """
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ConfigError(
                "would each give every batch",
                field="num_workers",
                value=worker.num_workers,
                cure="Use num_workers=0: headrace reads ahead in threads of its own.",
            )
        # A loaded state is used up here, not at the first batch: a loader that finds that the saved
        # pass was over asks for another one, without taking anything from the first.
        self._pass = _Pass(self.batches, self._first_step)
        self._first_step = 0
        return self._pass

    def state_dict(self) -> dict[str, Any]:
        """The position of the latest pass: its next step, and the run's fingerprint."""
        if self._pass is not None:
            return self._pass.state_dict()
        return LoaderState(self._first_step, self.batches.lock.fingerprint).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass starts at the saved step; those after it start at the first.

        Raises:
            PlanMismatchError: the state belongs to another run.
        """
        self._first_step = self.batches.resume(state)
        self._pass = None


class _Pass(Iterator[dict[str, torch.Tensor]]):
    """One pass over the batches, with a position of its own; a stateful iterator in torchdata's
    sense.
    """

    def __init__(self, batches: HostBatches, step: int) -> None:
        self._pass = HostPass(batches, step)

    def __next__(self) -> dict[str, torch.Tensor]:
        return {
            name: torch.from_numpy(
                values.astype(np.int64) if name in _INDICES else np.ascontiguousarray(values)
            )
            for name, values in next(self._pass).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The next step, and the run's fingerprint."""
        return self._pass.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state.

        Raises:
            PlanMismatchError: the state belongs to another run.
        """
        self._pass.state = state
