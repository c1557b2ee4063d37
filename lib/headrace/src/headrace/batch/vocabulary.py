"""What losses need from the softmax over the vocabulary: log probabilities of labels, log
normaliser, entropy.

With logits z of one position: ``norm = log sum_j exp z_j``, log p_j = z_j - norm, and H = - sum_j
p_j log p_j. One pass over ``chunk`` entries of the vocabulary at a time computes all of them, for
one label per position or several (a teacher's most likely tokens), so float32 memory is [N, chunk],
never [N, V]. The gradients are written by hand::

    d norm / dz_j = p_j      d log p_k / dz_j = 1[j = k] - p_j      d H / dz_j = - p_j (log p_j + H)

From hidden states, logits are computed chunk by chunk, forward and backward, and never materialised
in any dtype.

Price: the backward pass from hidden states computes the logits again, a third more work than with
logits summary; at 8 x 4096 tokens and 128,256 entries that saves 16.8 GB of float32 and holds 0.5
GB with the default chunk. An unembedding matrix that is sharded over the vocabulary is gathered
chunk by chunk. Entropy costs one more sum, K labels a position K comparisons an entry.

Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867 (the
running maximum).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from headrace.batch.along_rows import with_auto_axes
from headrace.errors import ConfigError, check_at_least

DEFAULT_CHUNK = 4096
"""Vocabulary entries whose logits are in float32 at a time."""


class TokenStats(NamedTuple):
    """Softmax results at each position, in float32 and nats; gradients flow through all of them."""

    log_probs: Float[Array, "*labels"]
    """Log probability of each label, in the shape of the labels."""
    log_normalizer: Float[Array, "*batch"]
    """Log of the sum of exponentials of the logits, which a z-loss squares."""
    entropy: Float[Array, "*batch"] | None
    """None if not requested."""


def token_stats(
    logits: Float[Array, "*batch V"],
    labels: Int[Array, "*labels"],
    *,
    entropy: bool = True,
    chunk: int = DEFAULT_CHUNK,
) -> TokenStats:
    """Log probabilities of labels, log normaliser and entropy, from logits.

    Args:
        logits: Of any float dtype; sums are in float32, and the gradient has the dtype of the
            logits.
        labels: One per position, ``[*batch]``, or K, ``[*batch, K]``.
        entropy: Whether the entropy is computed.
        chunk: Entries of the vocabulary at a time.

    Raises:
        ConfigError: labels and logits differ in positions; a chunk below 1.

    Example:
        >>> stats = token_stats(jnp.zeros((1, 3, 4)), jnp.zeros((1, 3), jnp.int32))
        >>> (
        ...     stats.log_probs.shape,
        ...     round(float(stats.log_probs[0, 0]), 4),
        ...     round(float(stats.entropy[0, 0]), 4),
        ... )  # log 4
        ((1, 3), -1.3863, 1.3863)
    """
    size = logits.shape[-1]

    def stats(logits: Any, labels: Any) -> TokenStats:
        rows = logits.reshape(-1, size)
        flat: Any = _logits_stats(
            rows, labels.reshape(rows.shape[0], -1), _chunk_of(chunk, size), entropy
        )
        return _shaped(flat, logits.shape[:-1], labels.shape)

    return _on_any_mesh(stats, entropy, labels, logits)


def hidden_stats(
    hidden: Float[Array, "*batch D"],
    unembedding: Float[Array, "V D"],
    labels: Int[Array, "*labels"],
    *,
    entropy: bool = True,
    chunk: int = DEFAULT_CHUNK,
) -> TokenStats:
    """The same from ``logits = hidden @ unembedding.T``, which are never materialised in full.

    Args:
        hidden: Output of the last layer, divided by the temperature if sampled with one.
        unembedding: One row for each entry of the vocabulary.
        labels: One per position, ``[*batch]``, or K, ``[*batch, K]``.
        entropy: Whether the entropy is computed.
        chunk: Entries of the vocabulary at a time.

    Raises:
        ConfigError: the matrix has a different width; labels and hidden states differ in positions;
            a chunk below 1.

    Example:
        >>> stats = hidden_stats(
        ...     jnp.zeros((1, 3, 2)), jnp.ones((4, 2)), jnp.zeros((1, 3, 2), jnp.int32), chunk=3
        ... )
        >>> stats.log_probs.shape, stats.log_normalizer.shape
        ((1, 3, 2), (1, 3))
    """
    if hidden.shape[-1] != unembedding.shape[-1]:
        raise ConfigError(
            f"has another width than hidden states of {hidden.shape[-1]}",
            field="unembedding",
            value=unembedding.shape,
            cure="Give [V, D]: one row for each entry of the vocabulary.",
        )

    def stats(hidden: Any, unembedding: Any, labels: Any) -> TokenStats:
        rows = hidden.reshape(-1, hidden.shape[-1])
        size = unembedding.shape[0]
        ids = labels.reshape(rows.shape[0], -1)
        flat: Any = _hidden_stats(rows, unembedding, ids, _chunk_of(chunk, size), entropy)
        return _shaped(flat, hidden.shape[:-1], labels.shape)

    return _on_any_mesh(stats, entropy, labels, hidden, unembedding)


def token_nll(
    logits: Float[Array, "*batch V"], labels: Int[Array, "*labels"], *, chunk: int = DEFAULT_CHUNK
) -> Float[Array, "*labels"]:
    """``-log softmax(logits)[label]`` in float32: :func:`token_stats` without the rest.

    Example:
        >>> nll = token_nll(jnp.zeros((1, 2, 4)), jnp.zeros((1, 2), jnp.int32))
        >>> nll.shape, round(float(nll[0, 0]), 4)
        ((1, 2), 1.3863)
    """
    return -token_stats(logits, labels, entropy=False, chunk=chunk).log_probs


def hidden_nll(
    hidden: Float[Array, "*batch D"],
    unembedding: Float[Array, "V D"],
    labels: Int[Array, "*labels"],
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Array, "*labels"]:
    """``-log softmax(hidden @ unembedding.T)[label]`` in float32: :func:`hidden_stats` without the
    rest.

    Example:
        >>> nll = hidden_nll(jnp.zeros((1, 2, 3)), jnp.ones((4, 3)), jnp.zeros((1, 2), jnp.int32))
        >>> nll.shape, round(float(nll[0, 0]), 4)
        ((1, 2), 1.3863)
    """
    return -hidden_stats(hidden, unembedding, labels, entropy=False, chunk=chunk).log_probs


def _on_any_mesh(
    stats: Callable[..., TokenStats], entropy: bool, labels: Any, first: Any, *rest: Any
) -> TokenStats:
    labels = jnp.asarray(labels)
    extra = labels.ndim - (first.ndim - 1)
    if extra not in (0, 1) or labels.shape[: first.ndim - 1] != first.shape[:-1]:
        raise ConfigError(
            f"are not those of {first.shape[:-1]} positions",
            field="labels",
            value=labels.shape,
            cure="Give one id a position, or [..., K] for K ids a position.",
        )

    def shardings(spec: PartitionSpec) -> TokenStats:
        positions: Any = PartitionSpec(*spec[: first.ndim - 1])
        return TokenStats(positions, positions, positions if entropy else None)

    return with_auto_axes(stats, first, *rest, labels, out=shardings)


def _shaped(
    flat: tuple[Any, Any, Any], positions: tuple[int, ...], labels: tuple[int, ...]
) -> TokenStats:
    norm, picked, entropy = flat
    log_probs = (picked - norm[:, None]).reshape(labels)
    return TokenStats(
        log_probs, norm.reshape(positions), None if entropy is None else entropy.reshape(positions)
    )


def _chunk_of(chunk: int, size: int) -> int:
    check_at_least("chunk", chunk, cure=f"E.g. {DEFAULT_CHUNK}.")
    return min(chunk, size)


def _columns(first: Any, size: int, chunk: int) -> tuple[Any, Any, Any]:
    """A chunk's start, its columns, and which of them are new: the last chunk overlaps the one
    before.
    """
    start = jnp.minimum(first, size - chunk)
    column = start + jnp.arange(chunk)[None, :]
    return start, column, column >= first


def _scan_vocabulary(
    logits_from: Callable[[Any], Float[Array, "N C"]],
    ids: Int[Array, "N K"],
    chunking: tuple[int, int],
    entropy: bool,
) -> tuple[Any, Any, Any]:
    """Normaliser, logits of ids, entropy; ``logits_from(start)`` returns a chunk, ``chunking`` is V
    and its size.

    Of the chunks so far are kept, each ``[N]``: the greatest logit ``top``, so that no exponential
    overflows; ``total``, the sum of exp(z - top); and ``spread``, that of (z - top) exp(z - top).
    When a chunk raises the top by d, the old exponentials shrink by exp(-d), and each of the old
    differences grows by -d. In the end the normaliser is top + log total, and the entropy
    log total - spread / total.
    """
    size, chunk = chunking

    def step(carry: tuple[Any, ...], first: Any) -> tuple[tuple[Any, ...], None]:
        top, total, spread, picked = carry
        start, column, fresh = _columns(first, size, chunk)
        z = jnp.where(fresh, logits_from(start), -jnp.inf)
        high = jnp.maximum(top, z.max(axis=1))
        above = z - high[:, None]
        share = jnp.exp(above)
        if entropy:  # each summand is bounded, whatever the logits
            spread = jnp.exp(top - high) * (spread + total * (top - high))
            spread = spread + jnp.where(share > 0, share * above, 0).sum(axis=1)
        total = total * jnp.exp(top - high) + share.sum(axis=1)
        hit = fresh[:, :, None] & (column[:, :, None] == ids[:, None, :])
        picked = picked + jnp.where(hit, z[:, :, None], 0).sum(axis=1)
        return (high, total, spread, picked), None

    dtype = jax.eval_shape(logits_from, 0).dtype
    zeros = jnp.zeros(ids.shape[:1], dtype)
    begin = (
        jnp.full(ids.shape[:1], jnp.finfo(dtype).min, dtype),
        zeros,
        zeros,
        jnp.zeros(ids.shape, dtype),
    )
    (top, total, spread, picked), _ = jax.lax.scan(step, begin, jnp.arange(0, size, chunk))
    return top + jnp.log(total), picked, jnp.log(total) - spread / total if entropy else None


def _logits_gradient(
    z: Any, column: Any, summary: tuple[Any, Any, Any], upstream: tuple[Any, Any, Any]
) -> Any:
    """Gradient of a chunk's logits from the gradients of normaliser, picked logits and entropy."""
    ids, norm, entropy = summary
    of_norm, of_picked, of_entropy = upstream
    log_p = z - norm[:, None]
    p = jnp.exp(log_p)
    scale = of_norm[:, None]
    if entropy is not None:
        scale = scale - of_entropy[:, None] * (jnp.where(p > 0, log_p, 0) + entropy[:, None])
    return scale * p + jnp.where(
        column[:, :, None] == ids[:, None, :], of_picked[:, None, :], 0
    ).sum(axis=2)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _logits_stats(logits: Any, ids: Any, chunk: int, entropy: bool) -> Any:
    return _logits_forward(logits, ids, chunk, entropy)[0]


def _logits_forward(logits: Any, ids: Any, chunk: int, entropy: bool) -> tuple[Any, Any]:
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    stats = _scan_vocabulary(
        lambda start: jax.lax.dynamic_slice_in_dim(logits, start, chunk, 1).astype(dtype),
        ids,
        (logits.shape[1], chunk),
        entropy,
    )
    return stats, (logits, (ids, stats[0], stats[2]))


def _logits_backward(chunk: int, entropy: bool, residuals: Any, upstream: Any) -> tuple[Any, None]:
    logits, summary = residuals
    size = logits.shape[1]

    def step(gradient: Any, first: Any) -> tuple[Any, None]:
        start, column, _ = _columns(first, size, chunk)
        z = jax.lax.dynamic_slice_in_dim(logits, start, chunk, 1).astype(summary[1].dtype)
        part = _logits_gradient(z, column, summary, upstream)
        return jax.lax.dynamic_update_slice_in_dim(
            gradient, part.astype(gradient.dtype), start, 1
        ), None

    return jax.lax.scan(step, jnp.zeros_like(logits), jnp.arange(0, size, chunk))[0], None


_logits_stats.defvjp(_logits_forward, _logits_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _hidden_stats(hidden: Any, unembedding: Any, ids: Any, chunk: int, entropy: bool) -> Any:
    return _hidden_forward(hidden, unembedding, ids, chunk, entropy)[0]


def _part_of(hidden: Any, unembedding: Any, start: Any, chunk: int) -> tuple[Any, Any]:
    """A chunk's rows of the matrix, and their logits."""
    dtype = jnp.promote_types(jnp.result_type(hidden, unembedding), jnp.float32)
    rows = jax.lax.dynamic_slice_in_dim(unembedding, start, chunk, 0)
    return rows, jnp.einsum("nd,cd->nc", hidden, rows, preferred_element_type=dtype)


def _hidden_forward(
    hidden: Any, unembedding: Any, ids: Any, chunk: int, entropy: bool
) -> tuple[Any, Any]:
    def logits_from(start: Any) -> Any:
        return _part_of(hidden, unembedding, start, chunk)[1]

    stats = _scan_vocabulary(logits_from, ids, (unembedding.shape[0], chunk), entropy)
    return stats, (hidden, unembedding, (ids, stats[0], stats[2]))


def _hidden_backward(
    chunk: int, entropy: bool, residuals: Any, upstream: Any
) -> tuple[Any, Any, None]:
    hidden, unembedding, summary = residuals
    size = unembedding.shape[0]
    dtype = summary[1].dtype

    def step(gradients: tuple[Any, Any], first: Any) -> tuple[tuple[Any, Any], None]:
        of_hidden, of_matrix = gradients
        start, column, fresh = _columns(first, size, chunk)
        rows, z = _part_of(hidden, unembedding, start, chunk)
        part = jnp.where(fresh, _logits_gradient(z, column, summary, upstream), 0)
        of_hidden = of_hidden + jnp.einsum("nc,cd->nd", part, rows, preferred_element_type=dtype)
        more = jnp.einsum("nc,nd->cd", part, hidden, preferred_element_type=dtype)
        more = more + jax.lax.dynamic_slice_in_dim(of_matrix, start, chunk, 0)
        return (of_hidden, jax.lax.dynamic_update_slice_in_dim(of_matrix, more, start, 0)), None

    begin = jnp.zeros_like(hidden, dtype), jnp.zeros_like(unembedding, dtype)
    (of_hidden, of_matrix), _ = jax.lax.scan(step, begin, jnp.arange(0, size, chunk))
    return of_hidden.astype(hidden.dtype), of_matrix.astype(unembedding.dtype), None


_hidden_stats.defvjp(_hidden_forward, _hidden_backward)
