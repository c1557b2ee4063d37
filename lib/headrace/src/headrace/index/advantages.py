"""Advantages of rewards within their groups, as the systems that users come from compute them.

A group is all completions of one prompt, and is known by its **number**, never by its place: groups may be of unequal
size and lie in any order.

===========  ==============================================  =========================================================
preset       advantage                                       note
===========  ==============================================  =========================================================
nanomoe      (r - mean) / (std with n - 1 + 1e-8)
slime        (r - mean) / (std with n - 1 + 1e-6)            GRPO
megatron     (r - mean) / (std with n + 1e-4)                rewards that are left out (``counted``) get 0
tinker       r - mean
dr_grpo      r - mean                                        arXiv:2503.20783; with a constant denominator of the loss
===========  ==============================================  =========================================================

A group of one has advantage 0 (it says nothing about its prompt) and is counted; so is a group whose rewards are equal.
A reward that is not finite is an error that names its group.

Price: 20 numpy calls for all groups of a batch; no loop.

References: Shao et al., arXiv:2402.03300 (GRPO); Liu et al., arXiv:2503.20783 (Dr. GRPO); Yu et al., arXiv:2503.14476
(DAPO's filter). slime reshapes rewards to groups of one size, and takes the whole batch for one group where their
number does not fit; a group of one becomes NaN there. Neither happens here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64

from headrace.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class AdvantageSpec:
    """How advantages are computed.

    Attributes:
        epsilon: Added to the standard deviation; None: advantages are not divided by it.
        ddof: The standard deviation divides by n - ``ddof``.
        reward_clip: Rewards are clipped to [-x, x] before; None: they are not.
        advantage_clip: Advantages are clipped to [-x, x] after; None: they are not.
        equal: A group whose standard deviation is at most this has advantage 0.

    Raises:
        ConfigError: a bound is negative.
    """

    epsilon: float | None = 1e-6
    ddof: Literal[0, 1] = 1
    reward_clip: float | None = None
    advantage_clip: float | None = None
    equal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "reward_clip", "advantage_clip", "equal"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError("must not be negative", field=name, value=value)


Preset: TypeAlias = Literal["nanomoe", "slime", "megatron", "tinker", "dr_grpo"]

PRESETS: dict[str, AdvantageSpec] = {
    "nanomoe": AdvantageSpec(1e-8, 1),
    "slime": AdvantageSpec(1e-6, 1),
    "megatron": AdvantageSpec(1e-4, 0),
    "tinker": AdvantageSpec(None),
    "dr_grpo": AdvantageSpec(None),
}


class Advantages(NamedTuple):
    """Advantages of rewards, and what was found on the way.

    Attributes:
        values: One a reward, in the order of the rewards.
        groups: Groups that have a counted reward.
        zero_var_groups: Groups of several rewards that are all equal: their advantages are 0.
        single_groups: Groups of one reward: its advantage is 0.
    """

    values: Float64[np.ndarray, " n"]
    groups: int
    zero_var_groups: int
    single_groups: int


class GroupMoments(NamedTuple):
    """Size, mean and standard deviation of each group, in the order of their numbers.

    Attributes:
        number: The groups' numbers, ascending.
        group: Place in ``number`` of each reward's group.
        size: Counted rewards.
        mean: Their mean; 0 if there are none.
        std: Their standard deviation; 0 for a group of one.
    """

    number: Int64[np.ndarray, " g"]
    group: Int64[np.ndarray, " n"]
    size: Int64[np.ndarray, " g"]
    mean: Float64[np.ndarray, " g"]
    std: Float64[np.ndarray, " g"]


def resolve(advantages: Preset | AdvantageSpec) -> AdvantageSpec:
    """The spec of a preset's name.

    Raises:
        ConfigError: there is no such preset.
    """
    if isinstance(advantages, AdvantageSpec):
        return advantages
    if advantages not in PRESETS:
        raise ConfigError(
            "is no preset", field="advantages", value=advantages, cure=did_you_mean(str(advantages), PRESETS)
        )
    return PRESETS[advantages]


def group_advantages(
    rewards: Float64[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"],
    advantages: Preset | AdvantageSpec = "slime",
    *,
    counted: Bool[np.ndarray, " n"] | None = None,
) -> Advantages:
    """The advantage of each reward within its group.

    Args:
        rewards: One a completion.
        groups: Number of each completion's group: any integers, in any order.
        advantages: A preset of the module's table, or a spec.
        counted: Rewards that count; the others get 0 and do not move their group's mean. None: all.

    Raises:
        ConfigError: a counted reward is not finite (its group is named); the arrays do not fit; no such preset.

    Example:
        >>> found = group_advantages(np.array([1.0, 0.0, 5.0, 1.0]), np.array([7, 7, 3, 7]), "tinker")
        >>> found.values.round(3).tolist(), found.single_groups
        ([0.333, -0.667, 0.0, 0.333], 1)
    """
    spec = resolve(advantages)
    rewards = np.asarray(rewards, np.float64)
    kept = np.ones(rewards.shape, bool) if counted is None else np.asarray(counted, bool)
    rewards = np.where(kept, rewards, 0.0)
    if spec.reward_clip is not None:
        _check_finite(rewards, np.asarray(groups))
        rewards = rewards.clip(-spec.reward_clip, spec.reward_clip)
    moments = group_moments(rewards, groups, counted=kept, ddof=spec.ddof)
    equal = _all_equal(rewards, kept, moments) | (moments.std <= spec.equal)
    values = rewards - moments.mean[moments.group]
    if spec.epsilon is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values / (moments.std[moments.group] + spec.epsilon)
    values = np.where(kept & ~equal[moments.group], values, 0.0)
    if spec.advantage_clip is not None:
        values = values.clip(-spec.advantage_clip, spec.advantage_clip)
    return Advantages(
        values,
        int((moments.size > 0).sum()),
        int((equal & (moments.size > 1)).sum()),
        int((moments.size == 1).sum()),
    )


def group_moments(
    rewards: Float64[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"],
    *,
    counted: Bool[np.ndarray, " n"] | None = None,
    ddof: int = 1,
) -> GroupMoments:
    """Mean and standard deviation of each group, in two passes.

    Raises:
        ConfigError: a counted reward is not finite (its group is named); the arrays do not fit.

    Example:
        >>> group_moments(np.array([1.0, 0.0, 5.0]), np.array([7, 7, 3])).mean.tolist()
        [5.0, 0.5]
    """
    rewards, groups = np.asarray(rewards, np.float64), np.asarray(groups)
    kept = np.ones(rewards.shape, bool) if counted is None else np.asarray(counted, bool)
    if rewards.ndim != 1 or groups.shape != rewards.shape or kept.shape != rewards.shape:
        raise ConfigError(
            f"must name the group of each of {rewards.shape} rewards", field="groups", value=tuple(groups.shape)
        )
    rewards = np.where(kept, rewards, 0.0)
    _check_finite(rewards, groups)
    number, place = np.unique(groups, return_inverse=True)
    size = np.bincount(place, kept, number.size).astype(np.int64)
    mean = np.bincount(place, rewards, number.size) / np.maximum(size, 1)
    off = np.where(kept, rewards - mean[place], 0.0)
    variance = np.bincount(place, off * off, number.size) / np.maximum(size - ddof, 1)
    return GroupMoments(number, place.astype(np.int64), size, mean, np.sqrt(variance))


def whiten(
    values: Float64[np.ndarray, "*n"], mask: Bool[np.ndarray, "*n"], *, shift_mean: bool = True
) -> Float64[np.ndarray, "*n"]:
    """Values less their masked mean, over their masked standard deviation (n - 1; ``1e-8`` added to the variance).

    All values are whitened, masked or not, as slime does; the mask says which the moments are of. Give the values of
    all ranks: the moments are of what is given.

    Args:
        values: E.g. advantages of tokens.
        mask: Which count.
        shift_mean: Whether the mean becomes 0; otherwise it stays what it is.

    Raises:
        ConfigError: nothing is counted.

    Example:
        >>> whiten(np.array([1.0, 3.0]), np.array([True, True])).round(4).tolist()
        [-0.7071, 0.7071]
    """
    kept = np.asarray(mask, bool)
    count = int(kept.sum())
    if count == 0:
        raise ConfigError("counts nothing", field="mask", value=count)
    values = np.asarray(values, np.float64)
    mean = values[kept].mean()
    variance = values[kept].var(ddof=1 if count > 1 else 0)
    whitened = (values - mean) / np.sqrt(variance + 1e-8)
    return whitened if shift_mean else whitened + mean


class Verdict(NamedTuple):
    """Whether a group is trained on, and why not.

    Attributes:
        keep: Whether it is.
        reason: E.g. ``zero_std_1.0``; empty if it is kept.
    """

    keep: bool
    reason: str = ""


def nonzero_std(rewards: Float64[np.ndarray, " n"], *, epsilon: float = 1e-6) -> Verdict:
    """DAPO's filter: keeps a group whose rewards have a standard deviation (n - 1) above ``epsilon``.

    Example:
        >>> nonzero_std(np.array([1.0, 1.0])), nonzero_std(np.array([1.0, 0.0])).keep
        (Verdict(keep=False, reason='zero_std_1.0'), True)
    """
    rewards = np.asarray(rewards, np.float64)
    spread = float(rewards.std(ddof=1)) if rewards.size > 1 else 0.0
    return Verdict(True) if spread > epsilon else Verdict(False, f"zero_std_{round(float(rewards[0]), 1)}")


def not_constant(rewards: Float64[np.ndarray, " n"]) -> Verdict:
    """The filter of tinker: keeps a group unless all rewards are the same number, bit for bit.

    Example:
        >>> not_constant(np.array([0.1, 0.1 + 1e-12])).keep
        True
    """
    rewards = np.asarray(rewards, np.float64)
    return Verdict(True) if (rewards != rewards[0]).any() else Verdict(False, "constant")


def drop_constant(rewards: list[list[float]]) -> list[int]:
    """Groups that are not constant, as tinker drops them: if all are, the first is kept; a batch is never empty.

    Example:
        >>> drop_constant([[1, 1], [0, 1], [0, 0]]), drop_constant([[1, 1], [0, 0]])
        ([1], [0])
    """
    kept = [i for i, group in enumerate(rewards) if not_constant(np.array(group, np.float64)).keep]
    return kept or [0] * bool(rewards)


def _all_equal(
    rewards: Float64[np.ndarray, " n"], kept: Bool[np.ndarray, " n"], moments: GroupMoments
) -> Bool[np.ndarray, " g"]:
    """Groups whose counted rewards are the same number; a mean is rounded, so the deviation alone cannot tell."""
    low, high = np.full(moments.size.size, np.inf), np.full(moments.size.size, -np.inf)
    np.minimum.at(low, moments.group[kept], rewards[kept])
    np.maximum.at(high, moments.group[kept], rewards[kept])
    return low >= high


def _check_finite(rewards: Float64[np.ndarray, " n"], groups: Int64[np.ndarray, " n"]) -> None:
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if wrong.size:
        at = int(wrong[0])
        raise ConfigError(
            f"is not finite (group {groups[at]}; {wrong.size} such rewards in all)",
            field=f"rewards[{at}]",
            value=float(rewards[at]),
            cure="Mend the reward function, or leave the completion out.",
        )
