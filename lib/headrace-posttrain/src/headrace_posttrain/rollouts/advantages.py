"""Advantages of rewards within their groups, computed as in other systems.

A group is all completions of one prompt, and is identified by its **number**, never by its
position: groups may differ in size and be in any order.

======================  ====================================  ======================================
preset                  advantage                             note
======================  ====================================  ======================================
nanomoe                 (r - mean) / (std with n - 1 + 1e-8)
slime                   (r - mean) / (std with n - 1 + 1e-6)  GRPO
trl                     (r - mean) / (std with n - 1 + 1e-4)  GRPO
megatron                (r - mean) / (std with n + 1e-4)      rewards that are left out
                                                              (``counted``) get 0
tinker                  r - mean
dr_grpo                 r - mean                              arXiv:2503.20783; with a constant
                                                              denominator of the loss
rloo                    r - mean of the group's others        arXiv:2402.14740
batch_std               (r - mean) / (std of all r + 1e-4)    arXiv:2508.08221: of the batch, which
                                                              no group makes small
reinforce_pp            (r - mean of all r) / (their std)     REINFORCE++, arXiv:2501.03262: no
                                                              groups; 1e-8 is added
reinforce_pp_baseline   a = r - mean, then (a - mean of all   the same reference
                        a) / (their std)
======================  ====================================  ======================================

"All" are the completions of the batch. A group of one has advantage 0 and is counted, and so is a
group with equal rewards; without a group baseline (``reinforce_pp``), both have advantages like any
other. A reward that is not finite is an error that names its group.

Price: 20 numpy calls for all groups of a batch; no loop.

References: Shao et al., arXiv:2402.03300 (GRPO); Liu et al., arXiv:2503.20783 (Dr. GRPO); Yu et
al., arXiv:2503.14476 (DAPO's filter). slime reshapes rewards to groups of one size, and treats the
whole batch as one group if their number does not fit; a group of one becomes NaN there. Neither
happens here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64

from headrace.errors import ConfigError, check_choice, check_not_negative


@dataclass(frozen=True)
class AdvantageSpec:
    """How advantages are computed.

    Attributes:
        epsilon: Added to the standard deviation; None: advantages are not divided by it.
        ddof: The standard deviation divides by n - ``ddof``.
        reward_clip: Rewards are clipped to [-x, x] before; None: they are not.
        advantage_clip: Advantages are clipped to [-x, x] after; None: they are not.
        equal: A group whose standard deviation is at most this has advantage 0.
        baseline: What is subtracted from a reward: its ``group``'s mean, that of the group's others
            (``leave_one_out``), or nothing (``none``).
        scale: The standard deviation to divide by: of the ``group``'s rewards, of all ``rewards``
            of the batch, or of all advantages of the ``batch``, whose mean is subtracted first.

    Raises:
        ConfigError: a limit is negative; no such baseline or scale.
    """

    epsilon: float | None = 1e-6
    ddof: Literal[0, 1] = 1
    reward_clip: float | None = None
    advantage_clip: float | None = None
    equal: float = 0.0
    baseline: Literal["group", "leave_one_out", "none"] = "group"
    scale: Literal["group", "rewards", "batch"] = "group"

    def __post_init__(self) -> None:
        for name in ("epsilon", "reward_clip", "advantage_clip", "equal"):
            check_not_negative(name, getattr(self, name))
        check_choice(
            "baseline", self.baseline, ("group", "leave_one_out", "none"), "is no baseline"
        )
        check_choice("scale", self.scale, ("group", "rewards", "batch"), "is no scale")


Preset: TypeAlias = Literal[
    "nanomoe",
    "slime",
    "trl",
    "megatron",
    "tinker",
    "dr_grpo",
    "rloo",
    "batch_std",
    "reinforce_pp",
    "reinforce_pp_baseline",
]

PRESETS: dict[str, AdvantageSpec] = {
    "nanomoe": AdvantageSpec(1e-8, 1),
    "slime": AdvantageSpec(1e-6, 1),
    "trl": AdvantageSpec(1e-4, 1),
    "megatron": AdvantageSpec(1e-4, 0),
    "tinker": AdvantageSpec(None),
    "dr_grpo": AdvantageSpec(None),
    "rloo": AdvantageSpec(None, baseline="leave_one_out"),
    "batch_std": AdvantageSpec(1e-4, scale="rewards"),
    "reinforce_pp": AdvantageSpec(1e-8, baseline="none", scale="batch"),
    "reinforce_pp_baseline": AdvantageSpec(1e-8, scale="batch"),
}


class Advantages(NamedTuple):
    """Advantages of rewards, in their order; groups with a counted reward, and those without any
    advantage.
    """

    values: Float64[np.ndarray, " n"]
    groups: int
    zero_var_groups: int
    """Groups of several rewards that are all equal."""
    single_groups: int
    """Groups of one reward."""


class GroupMoments(NamedTuple):
    """Size, mean and standard deviation of each group's counted rewards, in the order of the
    groups' numbers.
    """

    number: Int64[np.ndarray, " g"]
    group: Int64[np.ndarray, " n"]
    """Index into ``number`` of each reward's group."""
    size: Int64[np.ndarray, " g"]
    mean: Float64[np.ndarray, " g"]
    std: Float64[np.ndarray, " g"]


def resolve(advantages: Preset | AdvantageSpec) -> AdvantageSpec:
    """The spec of a preset's name; raises ConfigError if there is none."""
    if isinstance(advantages, AdvantageSpec):
        return advantages
    check_choice("advantages", advantages, PRESETS, "is no preset")
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
        rewards: One per completion.
        groups: Number of each completion's group: any integers, in any order.
        advantages: A preset of the module's table, or a spec.
        counted: Rewards that count; the others get 0 and do not affect their group's mean. None:
            all.

    Raises:
        ConfigError: a counted reward is not finite (its group is named); the arrays do not fit; no
            such preset.

    Example:
        >>> found = group_advantages(
        ...     np.array([1.0, 0.0, 5.0, 1.0]), np.array([7, 7, 3, 7]), "tinker"
        ... )
        >>> found.values.round(3).tolist(), found.single_groups
        ([0.333, -0.667, 0.0, 0.333], 1)
    """
    spec = resolve(advantages)
    rewards, groups, counted = _check_arrays(rewards, groups, counted)
    if spec.reward_clip is not None:
        rewards = rewards.clip(-spec.reward_clip, spec.reward_clip)
    moments = group_moments(rewards, groups, counted=counted, ddof=spec.ddof)
    equal = _all_equal(rewards, counted, moments) | (moments.std <= spec.equal)
    is_trained = counted if spec.baseline == "none" else counted & ~equal[moments.group]
    values = np.where(
        is_trained,
        _scaled(_less_baseline(rewards, moments, spec), rewards, counted, moments, spec),
        0.0,
    )
    if spec.advantage_clip is not None:
        values = values.clip(-spec.advantage_clip, spec.advantage_clip)
    return Advantages(
        values,
        int((moments.size > 0).sum()),
        int((equal & (moments.size > 1)).sum()),
        int((moments.size == 1).sum()),
    )


def _less_baseline(
    rewards: Float64[np.ndarray, " n"], moments: GroupMoments, spec: AdvantageSpec
) -> Float64[np.ndarray, " n"]:
    if spec.baseline == "none":
        return rewards
    values = rewards - moments.mean[moments.group]
    size = moments.size[moments.group]
    # r - (sum - r) / (n - 1)
    return values * size / np.maximum(size - 1, 1) if spec.baseline == "leave_one_out" else values


def _scaled(
    values: Float64[np.ndarray, " n"],
    rewards: Float64[np.ndarray, " n"],
    counted: Bool[np.ndarray, " n"],
    moments: GroupMoments,
    spec: AdvantageSpec,
) -> Float64[np.ndarray, " n"]:
    if spec.scale == "group":
        std = moments.std[moments.group]
    else:
        scaled_by = rewards if spec.scale == "rewards" else values
        of_batch = group_moments(
            scaled_by, np.zeros_like(moments.group), counted=counted, ddof=spec.ddof
        )
        std = of_batch.std.sum()  # of one group; of none where there are no rewards
        if spec.scale == "batch":
            is_constant = _all_equal(values, counted, of_batch).any()
            values = np.zeros_like(values) if is_constant else values - of_batch.mean.sum()
    if spec.epsilon is None:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        return values / (std + spec.epsilon)


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
    rewards, groups, counted = _check_arrays(rewards, groups, counted)
    number, group_index = np.unique(groups, return_inverse=True)
    size = np.bincount(group_index, counted, number.size).astype(np.int64)
    mean = np.bincount(group_index, rewards, number.size) / np.maximum(size, 1)
    off = np.where(counted, rewards - mean[group_index], 0.0)
    variance = np.bincount(group_index, off * off, number.size) / np.maximum(size - ddof, 1)
    return GroupMoments(number, group_index.astype(np.int64), size, mean, np.sqrt(variance))


def whiten(
    values: Float64[np.ndarray, "*n"], mask: Bool[np.ndarray, "*n"], *, shift_mean: bool = True
) -> Float64[np.ndarray, "*n"]:
    """Values minus their masked mean, over their masked standard deviation (n - 1; ``1e-8`` added
    to the variance).

    As in slime, all values (such as advantages of tokens) are whitened, masked or not; the mask
    selects those that count in the moments. Pass the values of all ranks. The mean becomes 0 if
    ``shift_mean``.

    Raises:
        ConfigError: nothing is counted.

    Example:
        >>> whiten(np.array([1.0, 3.0]), np.array([True, True])).round(4).tolist()
        [-0.7071, 0.7071]
    """
    selected = np.asarray(mask, bool)
    count = int(selected.sum())
    if count == 0:
        raise ConfigError("counts nothing", field="mask", value=count)
    values = np.asarray(values, np.float64)
    mean = values[selected].mean()
    variance = values[selected].var(ddof=1 if count > 1 else 0)
    whitened = (values - mean) / np.sqrt(variance + 1e-8)
    return whitened if shift_mean else whitened + mean


class Verdict(NamedTuple):
    """Whether a group is trained on, and why not, e.g. ``zero_std_1.0``."""

    keep: bool
    reason: str = ""


def nonzero_std(rewards: Float64[np.ndarray, " n"], *, epsilon: float = 1e-6) -> Verdict:
    """DAPO's filter: keeps a group whose rewards have a standard deviation (n - 1) above
    ``epsilon``.

    Example:
        >>> nonzero_std(np.array([1.0, 1.0])), nonzero_std(np.array([1.0, 0.0])).keep
        (Verdict(keep=False, reason='zero_std_1.0'), True)
    """
    rewards = np.asarray(rewards, np.float64)
    spread = float(rewards.std(ddof=1)) if rewards.size > 1 else 0.0
    return (
        Verdict(True)
        if spread > epsilon
        else Verdict(False, f"zero_std_{round(float(rewards[0]), 1)}")
    )


def not_constant(rewards: Float64[np.ndarray, " n"]) -> Verdict:
    """The filter of tinker: keeps a group unless all rewards are the same number, bit for bit.

    Example:
        >>> not_constant(np.array([0.1, 0.1 + 1e-12])).keep
        True
    """
    rewards = np.asarray(rewards, np.float64)
    return Verdict(True) if (rewards != rewards[0]).any() else Verdict(False, "constant")


def drop_constant(rewards: list[list[float]]) -> list[int]:
    """Groups that are not constant, as in tinker: if all are constant, the first is kept, so a
    batch is never empty.

    Example:
        >>> drop_constant([[1, 1], [0, 1], [0, 0]]), drop_constant([[1, 1], [0, 0]])
        ([1], [0])
    """
    numbers = [
        i for i, group in enumerate(rewards) if not_constant(np.array(group, np.float64)).keep
    ]
    return numbers or [0] * bool(rewards)


def _all_equal(
    rewards: Float64[np.ndarray, " n"], counted: Bool[np.ndarray, " n"], moments: GroupMoments
) -> Bool[np.ndarray, " g"]:
    """Groups whose counted rewards are the same number; a mean is rounded, so the deviation alone
    cannot tell.
    """
    low = np.full(moments.size.size, np.inf)
    high = np.full(moments.size.size, -np.inf)
    np.minimum.at(low, moments.group[counted], rewards[counted])
    np.maximum.at(high, moments.group[counted], rewards[counted])
    return low >= high


def _check_arrays(
    rewards: Float64[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"],
    counted: Bool[np.ndarray, " n"] | None,
) -> tuple[Float64[np.ndarray, " n"], Int64[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """The arguments as arrays of matching shapes, with 0 for rewards that do not count."""
    rewards = np.asarray(rewards, np.float64)
    groups = np.asarray(groups)
    counted = np.ones(rewards.shape, bool) if counted is None else np.asarray(counted, bool)
    if rewards.ndim != 1 or groups.shape != rewards.shape or counted.shape != rewards.shape:
        problem = f"must name the group of each of {rewards.shape} rewards"
        raise ConfigError(problem, field="groups", value=tuple(groups.shape))
    rewards = np.where(counted, rewards, 0.0)
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if wrong.size:
        at = int(wrong[0])
        problem = f"is not finite (group {groups[at]}; {wrong.size} such rewards in all)"
        cure = "Mend the reward function, or leave the completion out."
        raise ConfigError(problem, field=f"rewards[{at}]", value=float(rewards[at]), cure=cure)
    return rewards, groups, counted
