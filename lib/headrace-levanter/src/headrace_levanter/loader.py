"""headrace's own loader as an iterable of ``LmExample`` batches, for Levanter's ``Trainer.train``.

The loader's background work shards batches over the trainer's mesh; then one small compiled
function per batch computes weights and segments and names the axes. No example is handled
separately, so the loader keeps its speed: scripts/bench/bench_levanter.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack

import haliax as hax
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from levanter.trainer import Trainer

from headrace.config.lm_data import LmDataConfig
from headrace.data.async_dataset import AsyncDataset
from headrace.errors import ConfigError
from headrace.feed.loader import DataLoader, LoaderOptions
from headrace.feed.prefetch import Prefetched
from headrace.metrics import LoaderStats
from headrace.mix.schedule import BatchSchedule, RowOrder
from headrace_levanter.conversions import to_lm_example
from headrace_levanter.dataset import HeadraceDataset, check_whole_batches
from headrace_levanter.recording import RunRecord


class LmBatches(Iterator[Any]):
    """Batches from a step on, from :meth:`LmLoader.iter_from_step`. Closing or deleting it stops
    the loading.
    """

    def __init__(self, batches: Prefetched[Any], convert: Any) -> None:
        self._batches = batches
        self._convert = convert

    def __next__(self) -> Any:
        return self._convert(next(self._batches))

    def __iter__(self) -> LmBatches:
        return self

    def close(self) -> None:
        """Stops the loading."""
        self._batches.close()

    def __enter__(self) -> LmBatches:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class LmLoaderOptions(LoaderOptions, total=False):
    """Options that :class:`LmLoader` passes to its :class:`headrace.DataLoader`."""

    prefetch_bytes: int
    row_order: RowOrder


class LmLoader:
    """Batches of ``LmExample`` for ``Trainer.train``, with the interface of Levanter's
    ``DataLoader``.

    ::

        with Trainer(config, optimizer, loss_function) as trainer:
            state = trainer.initial_state(key, model_init=...)
            loader = LmLoader.of(trainer, data.dataset())
            trainer.train(state, loader.iter_from_step(state.step))

    Args:
        dataset: The dataset to load.
        batch_size: As for :class:`headrace.DataLoader`.
        mesh: The trainer's mesh.
        axis_resources: Mesh axes over which each named axis is sharded:
            ``trainer.compute_axis_mapping``.
        batch_axis: Name of the axis of rows.
        position_axis: Name of the axis of positions.
        options: ``prefetch_bytes``, ``row_order`` and others, as for :class:`headrace.DataLoader`.

    Raises:
        ConfigError: as for :class:`headrace.DataLoader`.
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        *,
        mesh: Mesh,
        axis_resources: Mapping[str, str | Sequence[str]] | None = None,
        batch_axis: str = "batch",
        position_axis: str = "position",
        **options: Unpack[LmLoaderOptions],
    ) -> None:
        sharding = _sharding(mesh, axis_resources or {}, batch_axis, position_axis)
        self.loader = DataLoader(dataset, batch_size, sharding=sharding, **options)
        self._convert = jax.jit(
            partial(to_lm_example, batch_axis=batch_axis, position_axis=position_axis),
            out_shardings=sharding,
        )

    @classmethod
    def of(
        cls,
        trainer: Trainer,
        dataset: AsyncDataset[Any] | LmDataConfig,
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        *,
        position_axis: str = "position",
        **options: Unpack[LmLoaderOptions],
    ) -> LmLoader:
        """The loader for a trainer, with its mesh, axes and batch sizes, which must equal the
        dataset's.

        ``prefetch_bytes``, ``row_order`` and ``row_exchange`` come from the config, if there is
        one.

        Raises:
            ConfigError: the batch size differs from ``trainer.train_batch_size``.
        """
        if isinstance(dataset, LmDataConfig):
            check_whole_batches(dataset)
            options["prefetch_bytes"] = dataset.prefetch_bytes
            options["row_order"] = "stream" if dataset.row_order == "stream" else "locality"
            options["row_exchange"] = dataset.exchange_setting
            dataset = dataset.dataset()
        schedule = headrace_schedule(trainer.config.batch_schedule)
        check_schedule(dataset, batch_size, schedule)
        return cls(
            dataset,
            schedule,
            mesh=trainer.device_mesh,
            axis_resources=trainer.compute_axis_mapping,
            batch_axis=trainer.config.batch_axis_name or "batch",
            position_axis=position_axis,
            **options,
        )

    def describe(self) -> dict[str, Any]:
        """All that determines the batches, for :func:`headrace.open_run`."""
        return self.loader.describe()

    def iter_from_step(self, step: Any = None) -> LmBatches:
        """Batches from ``step`` on: a number, an array of one number (as in the trainer's state),
        or None for 0.
        """
        return LmBatches(
            self.loader.iter_from_step(0 if step is None else int(step)), self._convert
        )

    def batch_at(self, step: int) -> Any:
        """Reads the batch of a step at once."""
        return self._convert(self.loader.batch_at(int(step)))

    def __iter__(self) -> LmBatches:
        return self.iter_from_step(0)

    def stats(self) -> LoaderStats:
        """Counters so far; see :mod:`headrace.metrics`."""
        return self.loader.stats()

    def close(self) -> None:
        """Stops all background work."""
        self.loader.close()


def headrace_schedule(schedule: Any) -> BatchSchedule:
    """Converts Levanter's ``BatchSchedule`` to headrace's."""
    return BatchSchedule({segment.start: segment.value for segment in schedule.segments})


def check_schedule(
    dataset: AsyncDataset[Any],
    batch_size: int | Mapping[int, int] | BatchSchedule | None,
    theirs: BatchSchedule,
) -> None:
    """Raises ConfigError unless headrace's batch sizes equal those of Levanter's trainer."""
    schedule = (
        getattr(dataset, "batch_schedule", None)
        if batch_size is None
        else BatchSchedule(batch_size)
    )
    if schedule is not None and schedule != theirs:
        raise ConfigError(
            f"is {schedule.to_config()} for headrace and {theirs.to_config()} for Levanter's"
            " trainer",
            field="batch_size",
            cure="Write the same in batch_size and in trainer.train_batch_size.",
        )


def own_loader() -> contextlib.AbstractContextManager[None]:
    """Within this context, ``Trainer.data_loader`` returns headrace's loader for headrace's
    datasets.

    So an unchanged ``levanter.main.train_lm`` trains with headrace's own loader. Levanter's
    datasets, and all datasets for evaluation, still get Levanter's loader. What the trainer does is
    recorded in the folder of the run: :class:`~headrace_levanter.recording.RunRecord`.

    Example:
        >>> with own_loader():  # doctest: +SKIP
        ...     levanter.main.train_lm.main(config)
    """
    return recorded_loader("headrace")


@contextlib.contextmanager
def recorded_loader(kind: Literal["headrace", "levanter"]) -> Iterator[None]:
    """Within this context, ``Trainer.data_loader`` returns headrace's or Levanter's loader for the
    training set, and the trainer records its run.
    """
    levanter_loader = Trainer.data_loader

    def data_loader(self: Trainer, dataset: Any, batch: Any = None) -> Any:
        if batch is not None or not isinstance(dataset, HeadraceDataset):
            return levanter_loader(self, dataset, batch)
        headrace_loader = _loader_of(self, dataset) if kind == "headrace" else None
        if dataset.run is not None:
            self.add_hook(RunRecord(dataset.run, self, headrace_loader))
        return levanter_loader(self, dataset) if headrace_loader is None else headrace_loader

    Trainer.data_loader = data_loader
    try:
        yield
    finally:
        Trainer.data_loader = levanter_loader


def _loader_of(trainer: Trainer, dataset: HeadraceDataset) -> LmLoader:
    return LmLoader.of(
        trainer,
        dataset.dataset,
        dataset.schedule,
        position_axis=dataset.position_axis,
        prefetch_bytes=dataset.prefetch_bytes,
        row_order=dataset.row_order,
        row_exchange=dataset.row_exchange,
        last_batch=dataset.schedule.last_batch,
    )


def _sharding(
    mesh: Mesh, resources: Mapping[str, Any], batch_axis: str, position_axis: str
) -> NamedSharding:
    """Sharding of ``[batch, position]`` arrays according to Levanter's mapping of names to mesh
    axes.
    """
    spec = [
        hax.partitioning.physical_axis_name(name, resources) for name in (batch_axis, position_axis)
    ]
    if spec[0] is None:
        raise ConfigError(
            f"is not mapped to an axis of the mesh {dict(mesh.shape)}",
            field="batch_axis",
            value=batch_axis,
            cure="Map it, as trainer.compute_axis_mapping does.",
        )
    return NamedSharding(
        mesh, PartitionSpec(*spec) if spec[1] is not None else PartitionSpec(spec[0])
    )
