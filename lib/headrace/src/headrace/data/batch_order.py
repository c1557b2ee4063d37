"""Which examples each batch of a run holds, and in which order: all that a run's manifest describes.

Whoever delivers batches (``DataLoader``, ``HostBatches``, Levanter's loader), and whoever asks about them, describes
a run by this one class, so that a checkpoint of one is a checkpoint of all. It needs no device and reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.data.dataset import AsyncDataset, unmapped
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import PhasedDataset
from headrace.errors import ConfigError
from headrace.index.schedule import BatchSchedule
from headrace.index.seeds import ORDER_VERSION

RowOrder: TypeAlias = Literal["locality", "stream"]


class BatchOrder:
    """A dataset cut into batches.

    Args:
        dataset: What to load. A mixture brings its batch schedule with it.
        batch_size: Rows of the global batch: an int, ``{step: size}`` or a BatchSchedule. May be left out for a
            mixture.
        row_order: Order of the rows within a batch, ``"locality"`` or ``"stream"``; see ``DataLoader``.

    Raises:
        ConfigError: no batch size, one that differs from the mixture's, or no such order.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> order = BatchOrder(TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), 8)
        >>> order.describe()["batch_size"], order.schedule.size_at(0).tolist()
        (8, 8)
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        row_order: str = "locality",
    ) -> None:
        if row_order not in ("locality", "stream"):
            raise ConfigError("is not an order", field="row_order", value=row_order, cure="Use 'locality' or 'stream'.")
        self.dataset = dataset
        self.base, self.functions = unmapped(dataset)
        self.schedule = _schedule(self.base, batch_size)
        self.row_order: RowOrder = "locality" if row_order == "locality" else "stream"

    def describe(self) -> dict[str, Any]:
        """All that determines the batches, as JSON values. Devices, hosts, budgets and paths are not among them."""
        return {
            "order_version": ORDER_VERSION,
            "dataset": self.dataset.describe(),
            "batch_size": self.schedule.to_config(),
            "row_order": self.row_order,
        }

    @property
    def num_steps(self) -> int | None:
        """Steps until the dataset ends, the last, padded one included; None if it does not end."""
        n = self.dataset.length
        if n is None:
            return None
        return int(self.schedule.step_of(np.asarray([n - 1]))[0]) + 1 if n else 0


def _schedule(dataset: AsyncDataset[Any], batch_size: int | Mapping[int, int] | BatchSchedule | None) -> BatchSchedule:
    own = dataset.batch_schedule if isinstance(dataset, MixtureDataset | PhasedDataset) else None
    given = batch_size if isinstance(batch_size, BatchSchedule | None) else BatchSchedule(batch_size)
    if own is not None and given is not None and given != own:
        raise ConfigError(
            f"differs from the mixture's {own}", field="batch_size", value=batch_size, cure="Leave it out here."
        )
    schedule = given or own
    if schedule is None:
        raise ConfigError("is missing", field="batch_size", cure="Give the number of rows of the global batch.")
    return schedule
