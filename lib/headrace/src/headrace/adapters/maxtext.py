"""headrace's batches in the form of MaxText's training step, from an iterator that Orbax saves like
one of Grain's.

::

    iterator = MaxTextIterator(config.loader(mesh=mesh, batch_axis=("data", "fsdp")))
    batch = next(iterator)  # {"inputs": [B, S], ..., "targets_segmentation": [B, S]}

MaxText counts segments from 1 and writes 0 for padding. Its loss counts each label whose
``targets_segmentation`` is not 0, so the labels that headrace does not train on are 0 there: those
after the end of a document, masked ones, and padding. MaxText's own packing trains the last token
of a document on the first of the next one; headrace does not.

Price: one small program on the devices per batch, which writes six int32 arrays.
"""

from __future__ import annotations

from typing import Any

import grain
import jax
import jax.numpy as jnp
from jaxtyping import Int32

from headrace.batch.packed_batch import PackedBatch
from headrace.errors import ConfigError
from headrace.feed.loader import DataLoader
from headrace.feed.prefetch import Prefetched
from headrace.run.lock import RunLock
from headrace.run.state import LoaderState


def to_maxtext(batch: PackedBatch) -> dict[str, Int32[Any, "B S"]]:
    """The six arrays of MaxText's batch, int32 ``[B, S]`` each; numpy arrays for a batch on the
    host. Works under jit.

    Returns:
        ``inputs`` and ``targets``: tokens and the next tokens. ``inputs_position`` and
        ``targets_position``: the position of the input in its document, from 0, in both.
        ``inputs_segmentation``: the number of the document in its row, from 1; 0 in padding.
        ``targets_segmentation``: the same where the target is trained on, else 0.

    Raises:
        ConfigError: the batch has its own weights, which MaxText's loss cannot express.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = to_maxtext(pack_rows(np.array([[5, 6, 0, 8]], np.uint16), eos_id=0))
        >>> for name, values in batch.items():
        ...     print(name, values.tolist())
        inputs [[5, 6, 0, 8]]
        inputs_position [[0, 1, 2, 0]]
        inputs_segmentation [[1, 1, 1, 2]]
        targets [[6, 0, 0, 0]]
        targets_position [[0, 1, 2, 0]]
        targets_segmentation [[1, 1, 0, 0]]
    """
    weighed = batch.token_mask is not None and jnp.issubdtype(batch.token_mask.dtype, jnp.floating)
    if batch.weights is not None or batch.pairs or weighed:
        raise ConfigError(
            "have weights of their own, and MaxText's loss counts a label or does not",
            field="batch",
            value="pairs" if batch.pairs else "weights",
            cure="Give data without weights; masks are kept.",
        )
    segmentation = (batch.segment_ids + 1) * batch.valid[:, None]
    position = batch.position_ids
    return {
        "inputs": batch.tokens,
        "inputs_position": position,
        "inputs_segmentation": segmentation,
        "targets": batch.labels,
        "targets_position": position,
        "targets_segmentation": segmentation * batch.label_mask,
    }


class MaxTextIterator(grain.DatasetIterator[dict[str, jax.Array]]):
    """A loader's batches for MaxText: global arrays with the loader's sharding, and Grain's
    iterator state.

    Its state is a step and the run's fingerprint: the same on all hosts, for any number of hosts,
    and without the batches that were read ahead. Orbax saves it with
    ``grain.checkpoint.CheckpointSave``; MaxText saves it with the model if its ``dataset_type`` is
    ``grain``.

    Args:
        loader: The loader.
        step: The first one.

    Raises:
        ConfigError: (at the first batch) it has its own weights, or is not a
            :class:`~headrace.PackedBatch`.

    Example:
        >>> import headrace.testing
        >>> from headrace import DataLoader, TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> batches = MaxTextIterator(DataLoader(dataset, batch_size=8))
        >>> next(batches)["targets_segmentation"].shape, batches.get_state()["step"]
        ((8, 8), 1)
    """

    def __init__(self, loader: DataLoader, step: int = 0) -> None:
        super().__init__()
        self._loader = loader
        self._step = step
        self._first_step = step
        self._lock = RunLock.of(loader)
        self._batches: Prefetched[Any] | None = None
        self._convert = jax.jit(to_maxtext, out_shardings=loader.placement.sharding)

    def __iter__(self) -> MaxTextIterator:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        if self._batches is None:
            self._batches = self._loader.iter_from_step(self._step)
        batch = next(self._batches)
        if not isinstance(batch, PackedBatch):
            raise ConfigError(
                "is not a PackedBatch",
                field="loader",
                value=type(batch).__name__,
                cure="Leave out functions of map that give something else.",
            )
        self._step += 1
        return self._convert(batch)

    def get_state(self) -> dict[str, Any]:
        """The next step and the run's fingerprint, as JSON values."""
        return LoaderState(self._step, self._lock.fingerprint).to_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a saved state.

        Raises:
            ConfigError: it is not a state.
            PlanMismatchError: the state belongs to another run.
        """
        loader_state = LoaderState.from_dict(state)
        self._lock.check(loader_state)
        self._go_to(loader_state.step)

    def reset(self) -> None:
        """Starts over at the first step, as MaxText does before each evaluation."""
        self._go_to(self._first_step)

    def close(self) -> None:
        """Stops reading ahead."""
        self._go_to(self._step)

    def start_prefetch(self) -> None:
        """Begins to read ahead."""
        if self._batches is None:
            self._batches = self._loader.iter_from_step(self._step)

    def _go_to(self, step: int) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None
        self._step = step

    def __str__(self) -> str:
        return f"MaxTextIterator at step {self._step}"
