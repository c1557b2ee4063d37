"""A headrace dataset as a Levanter ``AsyncDataset``, for Levanter's ``DataLoader`` and
``train_lm``.

Levanter requests examples by number and stacks them itself, so each example is a separate object;
all work that can be shared (locating rows, reading, weights, segments) is done once per request.
Examples are numbered through the run: example ``offset(step) + k`` is row k of that step's batch,
in the same order as in headrace's own loader. A run resumes with Levanter's ``iter_from_step``:
nothing is stored.

Price: scripts/bench/bench_levanter.py. Nothing is kept between requests, so each request (32
batches) reads again every stored block that it needs; :class:`~headrace_levanter.loader.LmLoader`
reads it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from draccus import encode
from haliax import Axis
from jaxtyping import Int64
from levanter.data.dataset import AsyncDataset as LevanterAsyncDataset
from levanter.data.text.datasets import DirectDatasetComponent
from levanter.data.text.examples import named_lm_example_from_grug

from headrace.batch.packed_batch import PackedBatch
from headrace.config.lm_data import LmDataConfig
from headrace.data.async_dataset import AsyncDataset
from headrace.data.dataset import BatchOrder, PlannedDataset
from headrace.data.rows import Rows
from headrace.errors import ConfigError
from headrace.feed.loader import DEFAULT_PREFETCH_BYTES
from headrace.feed.plan import RunRows
from headrace.metrics import ReadStats
from headrace.mix.schedule import BatchSchedule, ExchangeSetting, LastBatch, RowOrder, repeated_from
from headrace.order.order import check_indices
from headrace.run.run import Run
from headrace_levanter.conversions import to_grug_example
from headrace_levanter.leaving import stop_loaders_at_exit


def check_whole_batches(config: LmDataConfig) -> None:
    """Raises ConfigError if a config splits batches, which Levanter's trainer does by itself."""
    if config.micro_batches is not None:
        cure = "Leave it out, and set trainer.per_device_parallelism."
        raise ConfigError(
            "are Levanter's own to cut",
            field="micro_batches",
            value=config.micro_batches,
            cure=cure,
        )


class HeadraceDataset(LevanterAsyncDataset[Any]):
    """Examples for Levanter's ``DataLoader``: ``LmExample`` with named axes, or ``GrugLmExample``.

    Args:
        dataset: The dataset to load: a mixture, or any dataset that yields a PackedBatch.
        batch_size: Rows of the global batch, as for headrace's loader; not needed for a mixture,
            which has its own.
        named: Whether examples are ``LmExample`` (what ``train_lm`` takes) or ``GrugLmExample``
            (what goes into a ``DirectDatasetComponent``).
        position_axis: Name of the axis of positions.
        row_order: As for headrace's loader; datasets that do not locate their rows are read in
            stream order.
        prefetch_bytes: Budget of headrace's own loader, if
            :func:`~headrace_levanter.loader.own_loader` uses it in place of Levanter's.
        row_exchange: As for that loader.
        last_batch: As for that loader. Levanter's own loader sees the rows of whole batches, or of
            all with ``pad``.

    Attributes:
        run: The run beside the trainer's checkpoints; None: the trainer has no such folder.

    Raises:
        ConfigError: the row length changes during the run, but Levanter's position axis is fixed;
            the batch size is missing.
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        *,
        named: bool = True,
        position_axis: str = "position",
        row_order: RowOrder = "locality",
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        row_exchange: ExchangeSetting = "auto",
        last_batch: LastBatch | None = None,
    ) -> None:
        self._order = BatchOrder(dataset, batch_size, row_order, last_batch)
        planned = self._order.planned
        if planned is not None and len(planned.phases) > 1:
            raise ConfigError(
                "changes during the run, but Levanter's position axis is fixed",
                field="seq_len",
                value=list(planned.seq_lens),
                cure="Train each phase as a separate run, or load with headrace.DataLoader.",
            )
        self.dataset = self._order.dataset
        self.schedule = self._order.schedule
        self.row_order: RowOrder = self._order.row_order
        self.prefetch_bytes = prefetch_bytes
        self.row_exchange: ExchangeSetting = row_exchange
        self.read_stats = ReadStats()
        self.run: Run | None = None
        self._named = named
        self.position_axis = position_axis
        stop_loaders_at_exit()

    def describe(self) -> dict[str, Any]:
        """Describes all that determines the batches, exactly as headrace's own loader of the same
        dataset.
        """
        return self._order.describe()

    def is_finite(self) -> bool:
        return self.dataset.length is not None

    async def async_len(self) -> int:
        rows = self._delivered_rows
        return len(self.dataset) if rows is None else rows

    @property
    def _delivered_rows(self) -> int | None:
        """Rows of all batches, repeated ones included and without padding; None if
        there is no end.
        """
        end = self._order.data_end
        return None if end is None else end.rows + end.filled_rows - end.dropped_rows

    async def get_batch(self, indices: Sequence[int]) -> list[Any]:
        """The examples at ``indices``, in that order.

        Raises:
            IndexOutOfRangeError: an index is negative, or past the end of the dataset.
            ReadError: the store cannot be read.
        """
        if len(indices) == 0:
            return []
        numbers = check_indices(np.asarray(indices, np.int64), self._delivered_rows)
        planned = self._order.planned
        steps = self.schedule.step_of(numbers)
        if planned is None:
            numbers = repeated_from(numbers, self.dataset.length)
            return self._examples(await self.dataset.get_batch(numbers))
        examples: dict[int, Any] = {}
        remaining = np.arange(numbers.size)
        while remaining.size:  # one dataset at a time: from some step on, documents may be removed
            served, until = planned.at_step(int(steps[remaining].min()))
            now = remaining if until is None else remaining[steps[remaining] < until]
            examples |= zip(
                now.tolist(), self._examples(await self._read(served, numbers[now])), strict=True
            )
            remaining = np.setdiff1d(remaining, now)
        return [examples[position] for position in range(numbers.size)]

    async def _read(self, planned: PlannedDataset, wanted: Int64[np.ndarray, " n"]) -> PackedBatch:
        batch = await planned.read_located(self._rows(planned, wanted), self.read_stats)
        for function in self._order.functions:
            batch = function(batch)
        return batch

    def _rows(self, dataset: PlannedDataset, wanted: Int64[np.ndarray, " n"]) -> Rows:
        """Locates the rows of examples; a batch is ordered as a whole."""
        if self.row_order == "stream":
            return dataset.locate(repeated_from(wanted, self.dataset.length))
        steps = np.unique(self.schedule.step_of(wanted))
        runs = np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1)
        first = np.asarray([self.schedule.rows_at(int(run[0]))[0] for run in runs])
        planned = RunRows(dataset, self.schedule, self.row_order)
        tables: list[Rows] = [planned.of_steps(int(r[0]), r.size).rows for r in runs]
        start = np.cumsum([0] + [rows.row.size for rows in tables[:-1]], dtype=np.int64)
        run = np.searchsorted(first, wanted, side="right") - 1
        at: np.ndarray = wanted - first[run] + start[run]
        joined = (np.concatenate(field) for field in zip(*tables, strict=True))
        return Rows(*(field[at] for field in joined))

    def _examples(self, batch: PackedBatch) -> list[Any]:
        example = to_grug_example(batch)  # in numpy, like the batch
        one = jax.tree.map(lambda leaf: leaf[0], example)
        if self._named:
            one = named_lm_example_from_grug(one, Axis(self.position_axis, batch.seq_len))
        structure = jax.tree.structure(one)
        leaves = jax.tree.leaves(example)
        return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]

    def __deepcopy__(self, memo: dict[int, Any]) -> HeadraceDataset:
        """Returns itself: Levanter copies its configs to log them, but open files
        cannot be copied.
        """
        return self


def direct_component(
    train: AsyncDataset[Any],
    validation: AsyncDataset[Any] | None = None,
    *,
    batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
    tags: Sequence[str] | None = None,
) -> DirectDatasetComponent:
    """A component for Levanter's own ``LmDataConfig``, beside components of other kinds.

    Levanter then mixes by its own rules and shuffles within blocks of ``mixture_block_size``
    examples: each block holds the same examples of a headrace mixture, in a different order. If
    ``mixture_block_size`` equals the batch size, each batch holds the same examples as in headrace.

    Args:
        train: Dataset to train on.
        validation: Dataset to evaluate on.
        batch_size: As for :class:`HeadraceDataset`.
        tags: Tags for Levanter's evaluation.
    """
    datasets: dict[str, Any] = {"train": HeadraceDataset(train, batch_size, named=False)}
    if validation is not None:
        datasets["validation"] = HeadraceDataset(
            validation, batch_size or 1, named=False, row_order="stream"
        )
    return DirectDatasetComponent(datasets=datasets, tags=None if tags is None else list(tags))


def _encoded(dataset: HeadraceDataset, declared_type: Any = None) -> dict[str, Any]:
    return dataset.describe()


encode.register(HeadraceDataset, _encoded)  # pyright: ignore[reportFunctionMemberAccess]
