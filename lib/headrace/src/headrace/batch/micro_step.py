"""``MicroBatches``: the batch of a step as micro-batches whose losses and gradients sum to those of
the whole batch.

.. code-block:: python

    def loss(params, batch, denominator):
        return unified_loss(model(params, batch), batch, denominator)


    @jax.jit
    def train_step(params, step: MicroBatches):
        value, gradient = step.sum(
            lambda batch, whole: jax.value_and_grad(loss)(params, batch, whole)
        )

The mean of micro-batch means is not the mean over the step, as micro-batches hold different numbers
of labels. ``whole`` is the step's denominator (:mod:`headrace.batch.loss`) in the form that each
micro-batch has to apply.

All K x R rows are one :class:`~headrace.batch.packed_batch.PackedBatch`, sharded like any batch.
Row r of micro-batch k is row ``r * K + k``: each device selects its own rows, and nothing is moved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Int32

from headrace.batch.along_rows import with_auto_axes
from headrace.batch.loss import Denominator, LossBatch, coefficients
from headrace.batch.micro_plan import MicroShape
from headrace.batch.packed_batch import PackedBatch

T = TypeVar("T")


class MicroBatches(eqx.Module):
    """The batch of a step as up to K micro-batches of R rows.

    Attributes:
        rows: All rows, including empty ones; ``source_id`` is that of the first batch row in each.
        count: Number of micro-batches that hold rows; they come first.
        segment_sources: Source of each segment of ``rows``; -1 after the last.
        number: Micro-batches that there is room for (K). Static under jit.

    Example:
        >>> from headrace.batch import MicroBatchConfig, pack_rows, unified_loss
        >>> lengths = np.array([[2], [3], [4], [3]], np.int32)
        >>> batch = pack_rows(np.arange(16).reshape(4, 4), segment_lengths=lengths)
        >>> config = MicroBatchConfig(8)
        >>> shape = config.shape(batch_size=4, seq_len=4, row_segments=1, ways=1)
        >>> step = lay_out(batch, *config.plan(lengths, shape), shape=shape)
        >>> [step.at(k).tokens.tolist() for k in range(step.number)]
        [[[0, 1, 4, 5, 6, 12, 13, 14]], [[8, 9, 10, 11, 0, 0, 0, 0]]]
        >>> whole = unified_loss(jnp.zeros((4, 4, 16)), batch)
        >>> loss = step.sum(
        ...     lambda some, denominator: unified_loss(jnp.zeros((1, 8, 16)), some, denominator)
        ... )
        >>> round(float(whole), 5), round(float(loss), 5)
        (2.77259, 2.77259)
    """

    rows: PackedBatch
    count: Int32[Any, ""]
    segment_sources: Int32[Any, "N M"]
    number: int = eqx.field(static=True)

    def at(self, k: int | Int[Array, ""]) -> PackedBatch:
        """Micro-batch ``k``; those from ``count`` on are empty."""
        return jax.tree.map(partial(self._take_rows, k), self.rows)

    def _take_rows(self, k: int | Int[Array, ""], leaf: Any) -> Any:
        return leaf.reshape(-1, self.number, *leaf.shape[1:])[:, k]

    def sum(
        self,
        function: Callable[[PackedBatch, Denominator], T],
        denominator: Denominator = "weights",
    ) -> T:
        """Sums ``function`` over the micro-batches that hold rows: a loss, its gradient, any pytree
        of arrays. The loop is compiled once, whatever their number.

        Args:
            function: Takes a micro-batch, and the denominator to pass to its losses.
            denominator: The denominator of the whole step.
        """
        share = coefficients(self.rows, denominator)
        if share.ndim:
            share = jnp.broadcast_to(share, (self.rows.batch_size, share.shape[-1]))

        def of_micro_batch(k: Int[Array, ""]) -> T:
            own_share = self._take_rows(k, share) if share.ndim else share

            def denominator_of_step(_: LossBatch) -> Array:
                return 1.0 / own_share

            return function(self.at(k), denominator_of_step)

        shapes = jax.eval_shape(of_micro_batch, self.count)
        nothing = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), shapes
        )
        added = partial(jax.tree.map, jnp.add)
        return jax.lax.fori_loop(
            0, self.count, lambda k, total: added(total, of_micro_batch(k)), nothing
        )


@partial(jax.jit, static_argnames=("shape", "sharding"))
def lay_out(
    batch: PackedBatch,
    place: Int32[Any, " B"],
    segment: Int32[Any, "N M"],
    count: Int32[Any, ""] | int,
    *,
    shape: MicroShape,
    sharding: NamedSharding | None = None,
) -> MicroBatches:
    """Lays out a batch as micro-batches, by a :class:`~headrace.batch.micro_plan.MicroPlan`.

    This is a collective if rows are on several devices: all processes must call it, in the same
    order.

    Args:
        batch: The batch, on host or devices.
        place: The plan's ``place``.
        segment: The plan's ``segment``.
        count: The plan's ``filled``.
        shape: Shape of the micro-batches.
        sharding: Sharding of ``[N, T]`` arrays; None: jax's default.
    """
    lay = partial(_laid_out, shape)
    if sharding is None:
        return lay(batch, place, segment, count)

    def spec_of(leaf: Any) -> PartitionSpec:
        along = leaf.ndim > 1 and leaf.shape[1] == shape.places
        return PartitionSpec(*sharding.spec[: min(leaf.ndim, 2 if along else 1)])

    plain = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (batch, place, segment, count)
    )
    specs = jax.tree.map(spec_of, jax.eval_shape(lay, *plain))
    laid = with_auto_axes(lay, batch, place, segment, count, out=lambda _: specs)
    if AxisType.Explicit in sharding.mesh.axis_types:
        return laid
    placed = partial(NamedSharding, sharding.mesh)
    return jax.tree.map(
        lambda leaf, spec: jax.lax.with_sharding_constraint(leaf, placed(spec)), laid, specs
    )


def _laid_out(
    shape: MicroShape, batch: PackedBatch, place: Any, segment: Any, count: Any
) -> MicroBatches:
    """Gathers a batch ``[B, S]`` into all N = K x R rows of T positions.

    1. Which row of the batch each position is of, and which column: both int32 ``[N, T]``.
    2. The segments of each of the N rows, ``[N, M]``, and which positions they fill.
    3. Values of tokens by row and column, values of segments by number.
    """
    # 1.
    row, column = _origin(shape, place)
    # 2.
    lengths = batch.segment_lengths
    if lengths is None:
        lengths = jnp.where(batch.valid, batch.seq_len, 0)[:, None].astype(np.int32)

    def of_segments(values: Any, fill: int) -> Any:
        return jnp.where(segment >= 0, values.reshape(-1)[segment], np.asarray(fill, values.dtype))

    own_lengths = of_segments(lengths, 0)
    inside = jnp.arange(shape.places) < own_lengths.sum(axis=1)[:, None]
    column = jnp.where(inside, column, 0)

    # 3.
    def spread(values: Any) -> Any:
        """Lays out per-token values, or one value per row of the batch."""
        entries = values[row, 0 if values.shape[1] == 1 else column]
        return jnp.where(
            inside.reshape(*inside.shape, *[1] * (entries.ndim - 2)),
            entries,
            np.zeros((), values.dtype),
        )

    of_tokens = ("log_probs", "loss_mask", "policy_version", "token_mask", "weights")
    leaves = {name: getattr(batch, name) for name in of_tokens}
    laid = PackedBatch(
        spread(batch.token_ids),
        jnp.where(inside[:, 0], batch.source_id[row[:, 0]], -1),
        segment_lengths=own_lengths,
        rewards=None if batch.rewards is None else of_segments(batch.rewards, 0),
        group_ids=None if batch.group_ids is None else of_segments(batch.group_ids, -1),
        pairs=batch.pairs,
        extras=batch.extras and {name: spread(leaf) for name, leaf in batch.extras.items()},
        **{name: None if leaf is None else spread(leaf) for name, leaf in leaves.items()},
    )
    sources = of_segments(jnp.broadcast_to(batch.source_id[:, None], lengths.shape), -1)
    return MicroBatches(laid, jnp.asarray(count, np.int32), sources, shape.number)


def _origin(shape: MicroShape, place: Any) -> tuple[Any, Any]:
    """The row of the batch that each position is of, -1 before the first, and the column in it; a
    position behind the end of its row counts on.
    """
    size = shape.number * shape.rows * shape.places
    numbers = jnp.arange(place.size, dtype=np.int32)
    begins = jnp.full(size, -1, np.int32).at[place].set(numbers, mode="drop")
    # Rows of the batch lie in ascending order, so the last one that began is the greatest number
    row = jax.lax.cummax(begins.reshape(-1, shape.places), axis=1)
    begin = jnp.where(row >= 0, place[row] % shape.places, 0)
    return row, jnp.arange(shape.places, dtype=np.int32) - begin
