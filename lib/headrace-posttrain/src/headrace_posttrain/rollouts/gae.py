"""Advantages of labels, on devices: generalised advantage estimation, its critic, whitening, and KL
in the reward.

The results are aligned with labels: set them as a batch's ``weights`` with ``dataclasses.replace``.

Price: scans of log2(S) steps over [B, S].
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from headrace.batch.loss import Denominator, LossBatch, token_mean
from headrace.errors import ConfigError
from headrace_posttrain.losses.policy_loss import Estimator, kl_estimate
from headrace_posttrain.losses.segments import (
    discounted_sums,
    next_in_segment,
    run_backwards,
    spread_segments,
)


def gae(
    values: Float[Array, "B S"],
    batch: LossBatch,
    rewards: Float[Any, "B M"] | None = None,
    *,
    token_rewards: Float[Array, "B S"] | None = None,
    discount: float = 1.0,
    trace: float = 1.0,
) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """Advantages and returns of labels, from a critic's values::

        delta[i] = reward[i] + discount * value[next] - value[i]
        advantage[i] = delta[i] + discount * trace * advantage[next]
        return[i] = advantage[i] + value[i]

    ``next`` is the segment's next trained label: tokens in between (such as a tool's answer) do not
    count as time. After the last one, values are 0. With values of 0 and a trace of 1, advantages
    are discounted returns.

    Args:
        values: The critic's value at each label: of the state in which it is chosen.
        batch: Rollouts.
        rewards: One per segment, earned at its last trained label; None: ``batch.rewards``, if
            there are any.
        token_rewards: Additional rewards of each label, such as :func:`kl_penalty`.
        discount: Gamma.
        trace: Lambda: 0 trusts the critic, 1 the rewards.

    Returns:
        Both; 0 at labels that are not trained on, and without gradient.

    Raises:
        ConfigError: there are no rewards of either kind.

    Reference: Schulman et al., "High-dimensional continuous control using generalized advantage
        estimation",
    arXiv:1506.02438.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import Example, pack_examples
        >>> batch = pack_examples([Example(np.array([1, 2, 3]), reward=1.0)], 3)
        >>> advantages, returns = gae(jnp.array([[0.5, 0.75, 0.0]]), batch, trace=0.0)
        >>> advantages.tolist(), returns.tolist()
        ([[0.25, 0.25, 0.0]], [[0.75, 1.0, 0.0]])
    """
    rewards = getattr(batch, "rewards", None) if rewards is None else rewards
    if rewards is None and token_rewards is None:
        cure = "Pass rewards, one a segment, or a batch that has them."
        raise ConfigError("is missing", field="rewards", cure=cure)
    mask = jnp.asarray(batch.label_mask)
    label_rewards = (
        jnp.zeros(mask.shape, jnp.float32)
        if token_rewards is None
        else jnp.where(mask, token_rewards, 0)
    )
    if rewards is not None:
        last = mask & (discounted_sums(jnp.ones(mask.shape, jnp.float32), batch) == 1)
        label_rewards = label_rewards + jnp.where(last, spread_segments(rewards, batch), 0)
    masked = jax.lax.stop_gradient(jnp.where(mask, values, 0))
    next_values = next_in_segment(run_backwards(jnp.where(mask, 0.0, 1.0), masked, batch), batch)
    delta = label_rewards + discount * next_values - masked
    advantages = discounted_sums(delta, batch, discount * trace)
    return advantages, jnp.where(mask, advantages + masked, 0)


def value_loss(
    values: Float[Array, "B S"],
    returns: Float[Array, "B S"],
    batch: LossBatch,
    denominator: Denominator = "tokens",
    *,
    old_values: Float[Array, "B S"] | None = None,
    clip: float | None = None,
) -> Float[Array, ""]:
    """PPO's loss of a critic: ``max((v - R)^2, (v' - R)^2) / 2``, v' being v within ``clip`` of the
    old value.

    Args:
        values: The critic's value at each label.
        returns: Their targets, see :func:`gae`.
        batch: The batch of the labels.
        denominator: See :mod:`headrace.batch.loss`; not ``weights``, which are advantages.
        old_values: The critic's values when the step's batches were made.
        clip: How far values may move from them; None: any distance.

    Raises:
        ConfigError: a clip without old values.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> float(
        ...     value_loss(
        ...         jnp.array([[1.0, 3.0, 0.0]]),
        ...         jnp.zeros((1, 3)),
        ...         pack_rows(np.array([[1, 2, 3]])),
        ...     )
        ... )
        2.5
    """
    error = (values - returns) ** 2
    if clip is not None:
        if old_values is None:
            raise ConfigError(
                "needs old_values", field="clip", value=clip, cure="Pass old_values, or clip=None."
            )
        error = jnp.maximum(
            error, (jnp.clip(values, old_values - clip, old_values + clip) - returns) ** 2
        )
    return token_mean(error / 2, batch, denominator)


def kl_penalty(
    log_probs: Float[Array, "B S"],
    reference_log_probs: Float[Array, "B S"],
    batch: LossBatch,
    coef: float,
    *,
    estimator: Estimator = "k1",
    centered: bool = False,
    discount: float = 0.0,
) -> Float[Array, "B S"]:
    """The penalty of each label's reward for its distance from a reference: ``- coef * KL``,
    without gradient.

    Args:
        log_probs: Log probabilities of the policy that sampled, e.g. ``batch.log_probs``.
        reference_log_probs: Log probabilities of the reference.
        batch: The batch of the labels.
        coef: Weight of the penalty.
        estimator: See :func:`~headrace_posttrain.losses.policy_loss.kl_estimate`.
        centered: Whether the batch's mean KL is subtracted, so that the penalties add up to 0, as
            tinker-cookbook does when it adds them to advantages.
        discount: If above 0, a label also gets the discounted penalties of later labels of its
            segment.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[1, 2, 3]]))
        >>> kl_penalty(
        ...     jnp.array([[-1.0, -1.0, 0.0]]), jnp.array([[-2.0, -4.0, 0.0]]), batch, 0.5
        ... ).tolist()
        [[-0.5, -1.5, 0.0]]
    """
    mask = jnp.asarray(batch.label_mask)
    kl = kl_estimate(
        jnp.where(mask, log_probs, 0), jnp.where(mask, reference_log_probs, 0), estimator
    )
    kl = kl - token_mean(kl, batch, "tokens") if centered else kl
    penalty = jax.lax.stop_gradient(jnp.where(mask, -coef * kl, 0))
    return discounted_sums(penalty, batch, discount) if discount else penalty


def whiten_labels(
    values: Float[Array, "B S"], batch: LossBatch, *, epsilon: float = 1e-8
) -> Float[Array, "B S"]:
    """Values minus their mean, over their standard deviation, both over all trained labels of the
    batch.

    The variance divides by n - 1, and has ``epsilon`` added. REINFORCE++ does this to advantages of
    tokens (arXiv:2501.03262); :func:`headrace_posttrain.rollouts.advantages.whiten` does the same
    on the host, for arrays of all ranks.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> white = whiten_labels(jnp.array([[1.0, 3.0, 9.0]]), pack_rows(np.array([[1, 2, 3]])))
        >>> [round(x, 4) for x in white[0].tolist()]
        [-0.7071, 0.7071, 0.0]
    """
    mask = jnp.asarray(batch.label_mask)
    count = mask.sum()
    centered = jnp.where(mask, values - token_mean(values, batch, "tokens"), 0)
    variance = (centered**2).sum() / jnp.maximum(1, count - 1)
    return centered / jnp.sqrt(variance + epsilon)
