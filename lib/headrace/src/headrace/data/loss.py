"""``unified_loss``: one loss for pretraining, SFT, preferences and RL, with a denominator that is named and global.

With p the model's probability of ``labels[b, i]``, w the weight there and c a coefficient that depends on the
denominator alone::

    loss = - sum over b, i of  c[b, i] * w[b, i] * log p[b, i]

===============  ====================================================================================================
denominator      c
===============  ====================================================================================================
``"weights"``    1 / max(1, sum of all ``|w|``); the default, seed 002's and nanomoe's
``"tokens"``     1 / max(1, labels that are trained on), whatever they weigh
``"sequences"``  1 / (labels of the segment that are trained on x segments that have any): the mean over segments of
                 each segment's mean
``"groups"``     the same with groups for segments, a group being all segments of one number in ``segment_groups``,
                 wherever in the batch they lie
a number         1 / that number (Dr. GRPO: completions x the longest length)
a function       1 / what it returns for the batch: a scalar, or one value a label
===============  ====================================================================================================

A label that weighs 0 because its advantage is 0 is trained on and counts; one that is masked does not.

Under jit on a sharded batch every sum is over the whole batch, not over a device's part: the loss and its gradient do
not depend on the number of devices. The softmax runs over ``chunk`` entries of the vocabulary at a time, forward and
backward, so what is held in float32 is [B, S, chunk], never [B, S, V]; :func:`unified_loss_from_hidden` does not hold
[B, S, V] in any type.

Price: the backward pass of ``unified_loss_from_hidden`` computes the logits again, a third more work than with logits
kept; at 8 x 4096 tokens and 128,256 entries that saves 16.8 GB of float32 and holds 0.5 GB with the default chunk.
An unembedding matrix that is sharded over the vocabulary is gathered chunk by chunk.

Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867 (the running maximum).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from headrace.data.axes import with_auto_axes
from headrace.errors import ConfigError, did_you_mean

DEFAULT_CHUNK = 4096
"""Entries of the vocabulary whose logits are held in float32 at a time."""


class LossBatch(Protocol):
    """What the loss reads of a batch: a ``PackedBatch``, or an ``ExpandedBatch``."""

    @property
    def labels(self) -> Any: ...
    @property
    def segment_ids(self) -> Any: ...
    @property
    def cu_seqlens(self) -> Any: ...
    @property
    def token_weights(self) -> Any: ...
    @property
    def label_mask(self) -> Any: ...
    @property
    def segment_groups(self) -> Any: ...


Named: TypeAlias = Literal["weights", "tokens", "sequences", "groups"]
Denominator: TypeAlias = Named | float | Callable[[LossBatch], Any]


def unified_loss(
    logits: Float[Array, "B S V"],
    batch: LossBatch,
    denominator: Denominator = "weights",
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Array, ""]:
    """The loss of logits, in nats.

    Args:
        logits: Of any float type; the sums are in float32.
        batch: What was asked of the model.
        denominator: See the module's table.
        chunk: Entries of the vocabulary at a time.

    Raises:
        ConfigError: there is no such denominator; shapes do not fit.

    Example:
        >>> import numpy as np
        >>> from headrace.data.batch import pack_rows
        >>> batch = pack_rows(np.array([[1, 2, 3]]))
        >>> round(float(unified_loss(jnp.zeros((1, 3, 4)), batch)), 4)  # log 4
        1.3863
    """
    _check_shape(logits.shape[:-1], batch, "logits")
    return weighted_mean(token_nll(logits, batch.labels, chunk=chunk), batch, denominator)


def unified_loss_from_hidden(
    hidden: Float[Array, "B S D"],
    unembedding: Float[Array, "V D"],
    batch: LossBatch,
    denominator: Denominator = "weights",
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Array, ""]:
    """The loss of ``logits = hidden @ unembedding.T``, which are never whole in memory.

    Args:
        hidden: What the last layer gives.
        unembedding: One row for each entry of the vocabulary.
        batch: What was asked of the model.
        denominator: See the module's table.
        chunk: Entries of the vocabulary at a time.

    Raises:
        ConfigError: there is no such denominator; shapes do not fit.

    Example:
        >>> import numpy as np
        >>> from headrace.data.batch import pack_rows
        >>> batch = pack_rows(np.array([[1, 2, 3]]))
        >>> round(float(unified_loss_from_hidden(jnp.zeros((1, 3, 2)), jnp.ones((4, 2)), batch, chunk=3)), 4)
        1.3863
    """
    _check_shape(hidden.shape[:-1], batch, "hidden")
    return weighted_mean(hidden_nll(hidden, unembedding, batch.labels, chunk=chunk), batch, denominator)


def weighted_mean(nll: Float[Array, "B S"], batch: LossBatch, denominator: Denominator = "weights") -> Float[Array, ""]:
    """``sum(coefficient * weight * nll)``: the loss of negative log likelihoods that the caller computed.

    Where the product of coefficient and weight is 0, the likelihood is not looked at: it may be infinite.
    """
    factor = coefficients(batch, denominator) * batch.token_weights
    return jnp.where(factor != 0, factor * nll, 0.0).sum()


def coefficients(batch: LossBatch, denominator: Denominator = "weights") -> Float[Array, "#B #S"]:
    """What the denominator makes of a batch: c of the module's table, one value a label or one for all.

    Raises:
        ConfigError: there is no such denominator.
    """
    if callable(denominator):
        return 1.0 / jnp.asarray(denominator(batch), jnp.float32)
    if not isinstance(denominator, str):
        if not denominator > 0:
            raise ConfigError("must be positive", field="denominator", value=denominator)
        return jnp.asarray(1.0 / denominator, jnp.float32)
    mask = jnp.asarray(batch.label_mask)
    if denominator == "weights":
        return 1.0 / jnp.maximum(1.0, jnp.abs(jnp.asarray(batch.token_weights)).sum())
    if denominator == "tokens":
        return 1.0 / jnp.maximum(1, mask.sum())
    if denominator not in ("sequences", "groups"):
        raise ConfigError(
            "is no denominator",
            field="denominator",
            value=denominator,
            cure=did_you_mean(denominator, ["weights", "tokens", "sequences", "groups"]),
        )
    groups = batch.segment_groups if denominator == "groups" else None
    rest: Any = jax.tree.map(jnp.asarray, (batch.segment_ids, batch.cu_seqlens, groups))
    return with_auto_axes(_shares, mask, *rest, out=lambda spec: spec)


def _shares(
    mask: Bool[Array, "B S"],
    segment_ids: Int[Array, "B S"],
    cu_seqlens: Int[Array, "B M1"],
    groups: Int[Array, "B M"] | None,
) -> Float[Array, "B S"]:
    """The coefficient of each label where every segment, or every group, counts alike."""
    trained = _trained_of_segments(mask, cu_seqlens)
    units = (trained > 0).sum()
    if groups is not None:
        trained, units = _summed_by_group(trained, groups)
    share = 1.0 / (jnp.maximum(1, trained) * jnp.maximum(1, units)).astype(jnp.float32)
    return jnp.take_along_axis(share, jnp.maximum(segment_ids, 0), axis=1)


def _trained_of_segments(mask: Bool[Array, "B S"], cu_seqlens: Int[Array, "B M1"]) -> Int[Array, "B M"]:
    """Labels of each segment that are trained on."""
    so_far = jnp.pad(jnp.cumsum(mask, axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))
    return jnp.diff(jnp.take_along_axis(so_far, cu_seqlens, axis=1), axis=1)


def _summed_by_group(trained: Int[Array, "B M"], groups: Int[Array, "B M"]) -> tuple[Int[Array, "B M"], Int[Array, ""]]:
    """For each segment the labels of its whole group, and the groups that have any. By number, not by place."""
    _, place = jnp.unique(groups, return_inverse=True, size=groups.size)
    sums = jnp.zeros(groups.size, jnp.int32).at[place.reshape(-1)].add(trained.reshape(-1))
    return sums[place.reshape(groups.shape)], (sums > 0).sum()


def token_nll(
    logits: Float[Array, "*batch V"], labels: Int[Array, "*batch"], *, chunk: int = DEFAULT_CHUNK
) -> Float[Array, "*batch"]:
    """``-log softmax(logits)[label]`` in float32, ``chunk`` entries of the vocabulary at a time.

    The gradient has the type of the logits.
    """
    size = logits.shape[-1]

    def nll(logits: Any, labels: Any) -> Any:
        flat: Any = _logits_nll(logits.reshape(-1, size), labels.reshape(-1), _chunk_of(chunk, size))
        return flat.reshape(labels.shape)

    return with_auto_axes(nll, logits, jnp.asarray(labels), out=lambda spec: PartitionSpec(*spec[:-1]))


def hidden_nll(
    hidden: Float[Array, "*batch D"],
    unembedding: Float[Array, "V D"],
    labels: Int[Array, "*batch"],
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Array, "*batch"]:
    """``-log softmax(hidden @ unembedding.T)[label]`` in float32, without the logits.

    Raises:
        ConfigError: hidden states and matrix are not of one width.
    """
    if hidden.shape[-1] != unembedding.shape[-1]:
        raise ConfigError(
            f"has another width than hidden states of {hidden.shape[-1]}",
            field="unembedding",
            value=unembedding.shape,
            cure="Give [V, D]: one row for each entry of the vocabulary.",
        )

    def nll(hidden: Any, unembedding: Any, labels: Any) -> Any:
        rows, size = hidden.reshape(-1, hidden.shape[-1]), unembedding.shape[0]
        flat: Any = _hidden_nll(rows, unembedding, labels.reshape(-1), _chunk_of(chunk, size))
        return flat.reshape(labels.shape)

    return with_auto_axes(nll, hidden, unembedding, jnp.asarray(labels), out=lambda spec: PartitionSpec(*spec[:-1]))


def _scan_vocabulary(
    part: Callable[[Any], Float[Array, "N C"]], labels: Int[Array, " N"], size: int, chunk: int, dtype: Any
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Log of the sum of exponentials over the vocabulary, and the label's logit; ``part(start)`` gives logits."""

    def step(carry: tuple[Any, Any, Any], first: Any) -> tuple[tuple[Any, Any, Any], None]:
        top, total, picked = carry
        start, column, fresh = _columns(first, size, chunk)
        z = jnp.where(fresh, part(start), -jnp.inf)
        high = jnp.maximum(top, z.max(axis=1))
        total = total * jnp.exp(top - high) + jnp.exp(z - high[:, None]).sum(axis=1)
        picked = picked + jnp.where(fresh & (column == labels[:, None]), z, 0).sum(axis=1)
        return (high, total, picked), None

    zeros = jnp.zeros(labels.shape, dtype)
    begin = (jnp.full(labels.shape, jnp.finfo(dtype).min, dtype), zeros, zeros)
    (top, total, picked), _ = jax.lax.scan(step, begin, jnp.arange(0, size, chunk))
    return top + jnp.log(total), picked


def _columns(first: Any, size: int, chunk: int) -> tuple[Any, Any, Any]:
    """Where a chunk starts, its columns, and which of them no chunk before had: the last one reaches back."""
    start = jnp.minimum(first, size - chunk)
    column = start + jnp.arange(chunk)[None, :]
    return start, column, column >= first


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _logits_nll(logits: Any, labels: Any, chunk: int) -> Any:
    return _logits_forward(logits, labels, chunk)[0]


def _logits_forward(logits: Any, labels: Any, chunk: int) -> tuple[Any, Any]:
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    norm, picked = _scan_vocabulary(
        lambda start: jax.lax.dynamic_slice_in_dim(logits, start, chunk, 1).astype(dtype),
        labels, logits.shape[1], chunk, dtype,
    )  # fmt: skip
    return norm - picked, (logits, labels, norm)


def _logits_backward(chunk: int, kept: Any, upstream: Any) -> tuple[Any, None]:
    logits, labels, norm = kept
    size = logits.shape[1]

    def step(gradient: Any, first: Any) -> tuple[Any, None]:
        start, column, _ = _columns(first, size, chunk)
        z = jax.lax.dynamic_slice_in_dim(logits, start, chunk, 1).astype(norm.dtype)
        part = upstream[:, None] * (jnp.exp(z - norm[:, None]) - (column == labels[:, None]))
        return jax.lax.dynamic_update_slice_in_dim(gradient, part.astype(gradient.dtype), start, 1), None

    return jax.lax.scan(step, jnp.zeros_like(logits), jnp.arange(0, size, chunk))[0], None


_logits_nll.defvjp(_logits_forward, _logits_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _hidden_nll(hidden: Any, unembedding: Any, labels: Any, chunk: int) -> Any:
    return _hidden_forward(hidden, unembedding, labels, chunk)[0]


def _part_of(hidden: Any, unembedding: Any, start: Any, chunk: int, dtype: Any) -> tuple[Any, Any]:
    """Rows of the matrix, and the logits that they give."""
    rows = jax.lax.dynamic_slice_in_dim(unembedding, start, chunk, 0)
    return rows, jnp.einsum("nd,cd->nc", hidden, rows, preferred_element_type=dtype)


def _hidden_forward(hidden: Any, unembedding: Any, labels: Any, chunk: int) -> tuple[Any, Any]:
    dtype = jnp.promote_types(jnp.result_type(hidden, unembedding), jnp.float32)
    norm, picked = _scan_vocabulary(
        lambda start: _part_of(hidden, unembedding, start, chunk, dtype)[1],
        labels, unembedding.shape[0], chunk, dtype,
    )  # fmt: skip
    return norm - picked, (hidden, unembedding, labels, norm)


def _hidden_backward(chunk: int, kept: Any, upstream: Any) -> tuple[Any, Any, None]:
    hidden, unembedding, labels, norm = kept
    size = unembedding.shape[0]

    def step(gradients: tuple[Any, Any], first: Any) -> tuple[tuple[Any, Any], None]:
        of_hidden, of_matrix = gradients
        start, column, fresh = _columns(first, size, chunk)
        rows, z = _part_of(hidden, unembedding, start, chunk, norm.dtype)
        part = jnp.where(fresh, upstream[:, None] * (jnp.exp(z - norm[:, None]) - (column == labels[:, None])), 0)
        of_hidden = of_hidden + jnp.einsum("nc,cd->nd", part, rows, preferred_element_type=norm.dtype)
        more = jnp.einsum("nc,nd->cd", part, hidden, preferred_element_type=norm.dtype)
        more = more + jax.lax.dynamic_slice_in_dim(of_matrix, start, chunk, 0)
        return (of_hidden, jax.lax.dynamic_update_slice_in_dim(of_matrix, more, start, 0)), None

    begin = jnp.zeros_like(hidden, norm.dtype), jnp.zeros_like(unembedding, norm.dtype)
    (of_hidden, of_matrix), _ = jax.lax.scan(step, begin, jnp.arange(0, size, chunk))
    return of_hidden.astype(hidden.dtype), of_matrix.astype(unembedding.dtype), None


_hidden_nll.defvjp(_hidden_forward, _hidden_backward)


def _chunk_of(chunk: int, size: int) -> int:
    if chunk < 1:
        raise ConfigError("must be at least 1", field="chunk", value=chunk, cure=f"E.g. {DEFAULT_CHUNK}.")
    return min(chunk, size)


def _check_shape(shape: tuple[int, ...], batch: LossBatch, field: str) -> None:
    if tuple(shape) != tuple(batch.labels.shape):
        raise ConfigError(
            f"has other rows and positions than a batch of {tuple(batch.labels.shape)}", field=field, value=tuple(shape)
        )
