"""``unified_loss``: one loss for pretraining, SFT, preferences and RL, with an explicit, global
denominator.

With p the model's probability of ``labels[b, i]``, w the weight there and c a coefficient that
depends only on the denominator::

    loss = - sum over b, i of  c[b, i] * w[b, i] * log p[b, i]

===============  ===================================================================================
denominator      c
===============  ===================================================================================
``"weights"``    1 / max(1, sum of all ``|w|``); the default, seed 002's and nanomoe's
``"tokens"``     1 / max(1, trained labels), whatever their weight
``"sequences"``  1 / (trained labels of the segment x segments that have any): the mean over
                 segments of each segment's mean
``"groups"``     the same with groups instead of segments; a group is all segments with one number
                 in ``segment_groups``, anywhere in the batch
a number         1 / that number (Dr. GRPO: completions x the longest length)
a function       1 / its result for the batch: a scalar, or one value per label
===============  ===================================================================================

A label with weight 0 because its advantage is 0 is trained on and counts; a masked one does not.

Under jit on a sharded batch every sum is over the whole batch, not a device's part, so the loss and
its gradient do not depend on the number of devices. All losses reduce their per-label terms with
:func:`token_mean` or :func:`weighted_mean`, so every loss works with every denominator, packed or
not. The softmax is that of :mod:`headrace.batch.vocabulary`: :func:`unified_loss_from_hidden` never
holds [B, S, V] in any dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from headrace.batch.along_rows import with_auto_axes
from headrace.batch.context_parallel import ContextBatch
from headrace.batch.packed_batch import ExpandedBatch, PackedBatch
from headrace.batch.vocabulary import DEFAULT_CHUNK, hidden_nll, token_nll
from headrace.errors import ConfigError, check_choice

LossBatch: TypeAlias = PackedBatch | ExpandedBatch
LabelBatch: TypeAlias = LossBatch | ContextBatch
"""Batches that say of each label what it weighs; those of a context's ranks know no segments."""
Named: TypeAlias = Literal["weights", "tokens", "sequences", "groups"]
Denominator: TypeAlias = Named | float | Callable[[LossBatch], Any]


def unified_loss(
    logits: Float[Array, "B S V"],
    batch: LabelBatch,
    denominator: Denominator = "weights",
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Array, ""]:
    """The loss from logits, in nats.

    Args:
        logits: Of any float dtype; sums are in float32.
        batch: The batch the logits were computed from.
        denominator: See the module's table.
        chunk: Entries of the vocabulary at a time.

    Raises:
        ConfigError: no such denominator; shapes do not match.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[1, 2, 3]]))
        >>> round(float(unified_loss(jnp.zeros((1, 3, 4)), batch)), 4)  # log 4
        1.3863
    """
    _check_shape(logits.shape[:-1], batch, "logits")
    return weighted_mean(token_nll(logits, batch.labels, chunk=chunk), batch, denominator)


def unified_loss_from_hidden(
    hidden: Float[Array, "B S D"],
    unembedding: Float[Array, "V D"],
    batch: LabelBatch,
    denominator: Denominator = "weights",
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Array, ""]:
    """The loss from ``logits = hidden @ unembedding.T``, which are never materialised in full.

    Args:
        hidden: Output of the last layer.
        unembedding: One row for each entry of the vocabulary.
        batch: The batch the hidden states were computed from.
        denominator: See the module's table.
        chunk: Entries of the vocabulary at a time.

    Raises:
        ConfigError: no such denominator; shapes do not match.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[1, 2, 3]]))
        >>> round(
        ...     float(
        ...         unified_loss_from_hidden(jnp.zeros((1, 3, 2)), jnp.ones((4, 2)), batch, chunk=3)
        ...     ),
        ...     4,
        ... )
        1.3863
    """
    _check_shape(hidden.shape[:-1], batch, "hidden")
    return weighted_mean(
        hidden_nll(hidden, unembedding, batch.labels, chunk=chunk), batch, denominator
    )


def weighted_mean(
    nll: Float[Array, "B S"], batch: LabelBatch, denominator: Denominator = "weights"
) -> Float[Array, ""]:
    """``sum(coefficient * weight * nll)``: the loss from negative log likelihoods that the caller
    computed.

    Where coefficient times weight is 0, the likelihood is ignored: it may be infinite.
    """
    return _sum_of(nll, coefficients(batch, denominator) * batch.token_weights)


def token_mean(
    values: Float[Array, "B S"], batch: LabelBatch, denominator: Denominator = "tokens"
) -> Float[Array, ""]:
    """``sum(coefficient * value)`` over the trained labels, whatever their weight: KL, entropy,
    z-loss.

    Values of other labels are ignored: they may be NaN.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> float(token_mean(jnp.array([[1.0, 3.0, 9.0]]), pack_rows(np.array([[1, 2, 3]]))))
        2.0
    """
    return _sum_of(values, coefficients(batch, denominator) * batch.label_mask)


class SourceLosses(eqx.Module):
    """Losses of the sources of batches. Those of two batches are added with ``+``.

    Attributes:
        sums: For each source, the sum of weight times loss over its labels.
        weights: The sum of the weights' sizes: the number of its trained labels, unless weights are
            given.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[1, 2, 3], [4, 5, 6]]), source_id=np.array([1, 0]))
        >>> losses = loss_by_source(batch, jnp.array([[1.0, 3.0, 9.0], [2.0, 2.0, 9.0]]), 3)
        >>> (losses + losses).by_name(["code", "docs", "math"])
        {'code': 2.0, 'docs': 2.0}
    """

    sums: Float[Array, " n"]
    weights: Float[Array, " n"]

    def __add__(self, other: SourceLosses) -> SourceLosses:
        return SourceLosses(self.sums + other.sums, self.weights + other.weights)

    def by_name(self, names: Sequence[str]) -> dict[str, float]:
        """The mean loss of each source that has labels, on the host: ``log(step, loss_by_source=
        losses.by_name(names))`` puts it into the report.
        """
        columns = (names, np.asarray(self.sums), np.asarray(self.weights))
        return {
            name: float(total / weight)
            for name, total, weight in zip(*columns, strict=True)
            if weight > 0
        }


def loss_by_source(
    batch: PackedBatch,
    token_losses: Float[Array, "B S"],
    sources: int,
    *,
    source_ids: Int[Array, "B ..."] | None = None,
) -> SourceLosses:
    """Losses of each source in a batch, under jit as well; over all devices of a sharded batch.

    Args:
        batch: The batch.
        token_losses: Loss of each label, before weights: ``token_nll(logits, batch.labels)``. That
            of labels that weigh nothing is ignored: it may be NaN.
        sources: Number of sources; static.
        source_ids: Source of each row, ``[B]``, or of each segment, ``[B, M]``, as
            :attr:`MicroBatches.segment_sources` has them; None: the batch's ``source_id``. -1
            belongs to none.

    Raises:
        ConfigError: shapes do not match.
    """
    _check_shape(token_losses.shape, batch, "token_losses")
    ids = batch.source_id if source_ids is None else source_ids
    rest: Any = jax.tree.map(jnp.asarray, (batch.token_weights, ids, batch.segment_ids))

    def of_sources(losses: Any, weights: Any, ids: Any, segments: Any) -> SourceLosses:
        weighted = jnp.where(weights != 0, weights * losses, 0.0)
        sizes = jnp.abs(weights)
        if ids.ndim == 1:
            weighted = weighted.sum(axis=1)
            sizes = sizes.sum(axis=1)
        else:
            ids = jnp.where(
                segments < 0, -1, jnp.take_along_axis(ids, jnp.maximum(segments, 0), axis=1)
            )
        # past the end, which is dropped: -1 would count from there
        slot = jnp.where(ids < 0, sources, ids)
        zeros = jnp.zeros(sources, jnp.float32)
        return SourceLosses(
            zeros.at[slot].add(weighted, mode="drop"), zeros.at[slot].add(sizes, mode="drop")
        )

    nowhere = SourceLosses(PartitionSpec(None), PartitionSpec(None))  # pyright: ignore
    return with_auto_axes(of_sources, jnp.asarray(token_losses), *rest, out=lambda _: nowhere)


def _sum_of(values: Float[Array, "B S"], factor: Float[Array, "B S"]) -> Float[Array, ""]:
    return (factor * jnp.where(factor != 0, values, 0.0)).sum()


def coefficients(batch: LabelBatch, denominator: Denominator = "weights") -> Float[Array, "#B #S"]:
    """The coefficient c of the module's table for a batch: one value per label, or one for all.

    Raises:
        ConfigError: no such denominator, or one of segments, which the ranks of a context hold in
            parts.
    """
    if callable(denominator):
        return 1.0 / jnp.asarray(denominator(cast(LossBatch, batch)), jnp.float32)
    if not isinstance(denominator, str):
        if not denominator > 0:
            raise ConfigError("must be positive", field="denominator", value=denominator)
        return jnp.asarray(1.0 / denominator, jnp.float32)
    mask = jnp.asarray(batch.label_mask)
    if denominator == "weights":
        return 1.0 / jnp.maximum(1.0, jnp.abs(jnp.asarray(batch.token_weights)).sum())
    if denominator == "tokens":
        return 1.0 / jnp.maximum(1, mask.sum())
    check_choice("denominator", denominator, get_args(Named), "is no denominator")
    if isinstance(batch, ContextBatch):
        cure = 'Use "weights", "tokens" or a number, or sequence_layout="contiguous".'
        raise ConfigError("needs whole rows", field="denominator", value=denominator, cure=cure)
    groups = batch.segment_groups if denominator == "groups" else None
    rest: Any = jax.tree.map(jnp.asarray, (batch.segment_ids, batch.cu_seqlens, groups))
    return with_auto_axes(_shares, mask, *rest, out=lambda spec: spec)


def _shares(
    mask: Bool[Array, "B S"],
    segment_ids: Int[Array, "B S"],
    cu_seqlens: Int[Array, "B M1"],
    groups: Int[Array, "B M"] | None,
) -> Float[Array, "B S"]:
    """The coefficient of each label if every segment, or every group, counts equally."""
    trained = _trained_of_segments(mask, cu_seqlens)
    units = (trained > 0).sum()
    if groups is not None:
        trained, units = _summed_by_group(trained, groups)
    share = 1.0 / (jnp.maximum(1, trained) * jnp.maximum(1, units)).astype(jnp.float32)
    return jnp.take_along_axis(share, jnp.maximum(segment_ids, 0), axis=1)


def _trained_of_segments(
    mask: Bool[Array, "B S"], cu_seqlens: Int[Array, "B M1"]
) -> Int[Array, "B M"]:
    """Trained labels of each segment."""
    so_far = jnp.pad(jnp.cumsum(mask, axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))
    return jnp.diff(jnp.take_along_axis(so_far, cu_seqlens, axis=1), axis=1)


def _summed_by_group(
    trained: Int[Array, "B M"], groups: Int[Array, "B M"]
) -> tuple[Int[Array, "B M"], Int[Array, ""]]:
    """For each segment, the labels of its whole group; and the number of groups with any. Matched
    by number.
    """
    _, group = jnp.unique(groups, return_inverse=True, size=groups.size)
    sums = jnp.zeros(groups.size, jnp.int32).at[group.reshape(-1)].add(trained.reshape(-1))
    return sums[group.reshape(groups.shape)], (sums > 0).sum()


def _check_shape(shape: tuple[int, ...], batch: LabelBatch, field: str) -> None:
    if tuple(shape) != tuple(batch.labels.shape):
        raise ConfigError(
            f"has other rows and positions than a batch of {tuple(batch.labels.shape)}",
            field=field,
            value=tuple(shape),
        )
