"""Figures of the rollouts of a step, for logs;
:meth:`RLDataset.metrics <headrace_posttrain.rollouts.dataset.RLDataset.metrics>`.

They are computed once, by the process that makes the step, and stored in the step's record with its
counters, so every reader of the log has the same. ``scored`` completions are those of all groups
that the step has considered, including those that it left out, but not those that are sampled again
because they are too old.

============================  ======================================================================
name                          is, of one step
============================  ======================================================================
reward_mean, _std, _min,      of completions that were scored
_max
length_mean, _max             tokens of these behind their prompt
truncated_share               of these, those cut off at their limit; only of groups that say so
                              (``truncated``)
zero_variance_share           of groups that were looked at, those left out since all their rewards
                              are equal
staleness_mean, _max          versions between the policy that trains on a token and the one that
                              sampled it
sample_s_mean, _max           seconds of calls of the sampler that ended since the step before, in
                              this process
wait_s                        seconds that the step waited for groups after it was asked for
============================  ======================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.batch.packed_batch import PackedBatch
from headrace_posttrain.rollouts.selection import Selection

_KINDS = {
    "reward": ("mean", "std", "min", "max"),
    "length": ("mean", "max"),
    "staleness": ("mean", "max"),
    "sample_s": ("mean", "max"),
}


def rollout_metrics(
    selection: Selection, batch: PackedBatch, call_s: Sequence[float], *, oldest: int | None = None
) -> dict[str, float]:
    """The finite figures of a step by name; see the module.

    Args:
        selection: Its groups.
        batch: Their batch.
        call_s: Seconds of the sampler's calls.
        oldest: Tokens that an older policy sampled are not trained on; None: all are.
    """
    assert batch.policy_version is not None
    versions = batch.policy_version[batch.policy_version >= max(oldest or 0, 0)]  # -1: not sampled
    scored = selection.scored
    values = {
        "reward": np.concatenate([group.rewards for group in scored]),
        "length": np.concatenate([group.lengths for group in scored]),
        "staleness": selection.policy_version - versions,
        "sample_s": np.asarray(call_s),
    }
    truncated = [group.truncated for group in scored if group.truncated is not None]
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # rewards that a filter leaves out may be anything
        figures: dict[str, float] = {
            f"{name}_{kind}": float(getattr(values[name], kind)())
            for name, kinds in _KINDS.items()
            for kind in kinds
            if values[name].size
        }
    figures["zero_variance_share"] = (
        selection.counts["zero_var_groups"] / selection.counts["attempts_per_batch"]
    )
    if truncated:
        figures["truncated_share"] = float(np.concatenate(truncated).mean())
    figures["wait_s"] = selection.wait_s
    return {
        name: value for name, value in figures.items() if math.isfinite(value)
    }  # JSON has no others
