"""Tinker-style datums: to and from :class:`~headrace.batch.examples.Example`, with
tinker-cookbook's rules.

A datum is a mapping with ``model_input`` (all tokens but the last), ``target_tokens`` (all but the
first) and, aligned to the targets, ``weights`` (SFT) or ``logprobs``, ``advantages`` and ``mask``
(RL). An example holds the same per token, so converting back loses nothing: a datum's first token
is the first of its model input.

Reference: tinker-cookbook ``supervised/common.py`` and ``rl/data_processing.py`` at 9dfcc3a.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32, Integer

from headrace.batch.examples import Example
from headrace.errors import ConfigError

Datum: TypeAlias = dict[str, np.ndarray]


def sft_datum(
    tokens: Sequence[int] | Integer[np.ndarray, " n"],
    weights: Sequence[float] | Float32[np.ndarray, " n"],
    *,
    max_length: int | None = None,
    reduction: Literal["mean", "none"] = "none",
) -> Datum:
    """A supervised datum.

    Args:
        tokens: All tokens.
        weights: How much each token counts.
        max_length: Tokens after this many are cut off before the shift: the datum has ``max_length
            - 1`` positions.
        reduction: ``mean``: weights are divided by their sum, unless that is 0.

    Raises:
        ConfigError: fewer than two tokens are left; weights and tokens differ in number.

    Example:
        >>> datum = sft_datum([1, 2, 3], [0, 1, 1], reduction="mean")
        >>> (
        ...     datum["model_input"].tolist(),
        ...     datum["target_tokens"].tolist(),
        ...     datum["weights"].tolist(),
        ... )
        ([1, 2], [2, 3], [0.5, 0.5])
    """
    ids = np.asarray(tokens)
    token_weights = np.asarray(weights, np.float32)
    if token_weights.size != ids.size:
        raise ConfigError(
            f"must be one for each of {ids.size} tokens", field="weights", value=token_weights.size
        )
    ids = ids[:max_length]
    token_weights = token_weights[:max_length]
    if ids.size < 2:
        raise ConfigError(
            "leaves nothing to predict",
            field="tokens",
            value=int(ids.size),
            cure="At least 2 tokens are needed.",
        )
    shifted = token_weights[1:]
    total = float(shifted.sum())
    if reduction == "mean" and total != 0:
        shifted = shifted / np.float32(total)
    return {
        "model_input": ids[:-1],
        "target_tokens": ids[1:].astype(np.int64),
        "weights": shifted.astype(np.float32),
    }


def rl_datum(example: Example) -> Datum:
    """The datum of a rollout.

    Example:
        >>> rollout = Example(np.array([1, 2, 3]), loss_mask=np.array([0, 0, 1]), weights=0.5)
        >>> rl_datum(rollout)["advantages"].tolist()
        [0.0, 0.5]
    """
    n = example.length
    mask = (
        np.ones(n, np.float32)
        if example.loss_mask is None
        else example.loss_mask.astype(np.float32)
    )
    weights = np.full(n, 1.0 if example.weights is None else example.weights, np.float32)
    log_probs = np.zeros(n, np.float32) if example.log_probs is None else example.log_probs
    return {
        "model_input": example.tokens[:-1],
        "target_tokens": example.tokens[1:].astype(np.int64),
        "logprobs": np.asarray(log_probs, np.float32)[1:],
        "advantages": (weights * mask)[1:],
        "mask": mask[1:],
    }


def example_of_datum(datum: Mapping[str, Any]) -> Example:
    """Converts a datum (SFT or RL) back to its example.

    Raises:
        ConfigError: a key is missing; input and targets are not one sequence.

    Example:
        >>> example_of_datum(sft_datum([1, 2, 3], [0, 0, 1])).weights.tolist()
        [0.0, 0.0, 1.0]
    """
    for key in ("model_input", "target_tokens"):
        if key not in datum:
            raise ConfigError("is missing", field=key, value=sorted(datum), cure="A datum has one.")
    inputs = np.asarray(datum["model_input"])
    targets = np.asarray(datum["target_tokens"])
    if inputs.size != targets.size or not np.array_equal(inputs[1:], targets[:-1]):
        raise ConfigError(
            "is not the input moved by one token", field="target_tokens", value=targets.tolist()
        )

    def of_tokens(name: str, dtype: Any) -> Any:
        values = datum.get(name)
        return (
            None
            if values is None
            else np.concatenate([np.zeros(1, dtype), np.asarray(values, dtype)])
        )

    weights = of_tokens("weights" if "weights" in datum else "advantages", np.float32)
    mask = of_tokens("mask", np.uint8)
    return Example(
        np.concatenate([inputs[:1], targets]).astype(inputs.dtype),
        loss_mask=(weights != 0).astype(np.uint8) if mask is None and weights is not None else mask,
        weights=weights,
        log_probs=of_tokens("logprobs", np.float32),
    )


@dataclass(frozen=True, eq=False)
class Turn:
    """What the model was shown, and its answer.

    Attributes:
        observation: All tokens it was shown, from the start of the conversation.
        action: The tokens it sampled.
        log_probs: Their log probabilities.
        masked: Whether the answer is excluded from training (it could not be parsed).
        policy_version: Version of the policy that sampled it.
    """

    observation: Sequence[int] | Integer[np.ndarray, " n"]
    action: Sequence[int] | Integer[np.ndarray, " m"]
    log_probs: Sequence[float] | Float32[np.ndarray, " m"] = field(default_factory=tuple)
    masked: bool = False
    policy_version: int = 0


def join_turns(
    turns: Sequence[Turn],
    *,
    weight: float | None = None,
    group: int | None = None,
    strict: bool = False,
) -> list[Example]:
    """Joins turns of a conversation into as few sequences as possible: a turn whose observation
    starts with all tokens of the previous turn continues it.

    Continuation is decided by **token ids**, not text: the same text may be tokenised differently
    the second time, and the model would then be trained on tokens it never saw.

    Args:
        turns: In order.
        weight: Weight of trained tokens: the advantage.
        group: The group's number.
        strict: Whether a turn that does not continue the previous one is an error instead of
            starting a new sequence.

    Returns:
        Examples whose mask is 1 on actions; none if there are no turns.

    Raises:
        ConfigError: log probabilities and actions differ in number; with ``strict``, a turn does
            not continue.

    Example:
        >>> [example] = join_turns([Turn([1, 2], [3]), Turn([1, 2, 3, 4], [5])])
        >>> example.tokens.tolist(), example.loss_mask.tolist()
        ([1, 2, 3, 4, 5], [0, 0, 1, 0, 1])
    """
    examples: list[Example] = []
    parts: list[Turn] = []
    so_far = np.zeros(0, np.int64)
    for number, turn in enumerate(turns):
        observation = np.asarray(turn.observation, np.int64)
        continues = observation.size >= so_far.size and np.array_equal(
            observation[: so_far.size], so_far
        )
        if not continues:
            if strict:
                same = np.append(observation[: so_far.size] == so_far[: observation.size], False)
                raise ConfigError(
                    "does not begin with the tokens of the turns before it (first other one:"
                    f" {int(same.argmin())})",
                    field=f"turns[{number}]",
                    value=observation.tolist() if observation.size < 20 else int(observation.size),
                    cure="Keep the ids that were sampled, rather than tokenise their text again.",
                )
            examples.append(_joined(parts, weight, group))
            parts = []
            so_far = so_far[:0]
        parts.append(
            Turn(
                observation[so_far.size :],
                turn.action,
                turn.log_probs,
                turn.masked,
                turn.policy_version,
            )
        )
        so_far = np.concatenate([observation, np.asarray(turn.action, np.int64)])
    return [*examples, _joined(parts, weight, group)] if parts else examples


def _joined(parts: Sequence[Turn], weight: float | None, group: int | None) -> Example:
    tokens = []
    mask = []
    action_log_probs = []
    versions = []
    for part in parts:
        observation = np.asarray(part.observation, np.int64)
        action = np.asarray(part.action, np.int64)
        log_probs = np.asarray(part.log_probs, np.float32)
        if log_probs.size not in (0, action.size):
            raise ConfigError(
                f"must be one for each of {action.size} tokens",
                field="log_probs",
                value=log_probs.size,
            )
        tokens += [observation, action]
        mask += [
            np.zeros(observation.size, np.uint8),
            np.full(action.size, not part.masked, np.uint8),
        ]
        action_log_probs += [
            np.zeros(observation.size, np.float32),
            log_probs if log_probs.size else np.zeros(action.size, np.float32),
        ]
        versions += [
            np.full(observation.size, -1, np.int32),
            np.full(action.size, part.policy_version, np.int32),
        ]
    return Example(
        np.concatenate(tokens),
        loss_mask=np.concatenate(mask),
        weights=weight,
        log_probs=np.concatenate(action_log_probs),
        group=group,
        policy_version=np.concatenate(versions),
    )
