"""``Selection``: which groups a step uses, and why others are left out."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace.rl.advantages import Verdict, group_moments
from headrace.rl.groups import ScoredGroup
from headrace.rl.rollout_records import BatchRecord
from headrace.rl.settings import RLSettings
from headrace.rl.store import RolloutStore

COUNTERS: tuple[str, ...] = (
    "valid_groups",
    "attempts_per_batch",
    "zero_var_groups",
    "single_groups",
    "filtered_groups",
    "too_long_groups",
    "untrained_groups",
    "stale_groups",
    "given_up_groups",
    "aborted_groups",
    "partial_groups",
    "retries",
    "timeouts",
    "late_calls",
)
_CURES = {  # by the reason for leaving out groups; any other reason is about their rewards
    "stale": "Give the sampler the trainer's weights and version, or raise max_staleness.",
    "too_long": "Raise seq_len, or sample shorter completions.",
    "untrained": "Look at prompt_len and loss_masks: no token after the first of a completion is trained on.",
    "aborted": "Raise max_staleness, or let the sampler give back what it has (PartialGroup) when it is aborted.",
}
_OF_REWARDS = (
    "Look at the rewards: a task that is always or never solved, or sampled once, teaches nothing."
)


class NoGroupError(HeadraceError):
    """Too many groups in a row were left out for the run to continue."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Statistics of a group that was considered: for each completion its reward, its tokens after the prompt, and
    whether it was cut off, if the sampler reports it.
    """

    rewards: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray | None


class Selection:
    """The groups of a step that is being made.

    Attributes:
        groups: The groups that it trains on, by position.
        dropped: Positions that are left out, and why.
        counts: Its counters, by name.
        scored: Statistics of all groups considered, except those that are sampled again.
        wait_s: Seconds that it took.
    """

    def __init__(
        self, step: int, policy_version: int, settings: RLSettings, store: RolloutStore
    ) -> None:
        self.step = step
        self.policy_version = policy_version
        self._settings = settings
        self._store = store
        store.look_anew()
        self.groups: dict[int, ScoredGroup] = {}
        self.dropped: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.scored: list[Scored] = []
        self.wait_s = 0.0
        self._began = time.monotonic()
        self._reasons: Counter[str] = Counter()  # since the last group that was kept

    @property
    def is_complete(self) -> bool:
        """Whether it has its groups."""
        return len(self.groups) == self._settings.groups_per_batch

    def advance(self) -> bool:
        """Considers the next position; False: there is none yet.

        Raises:
            NoGroupError: ``max_attempts`` groups in a row were left out.
        """
        with self._store.lock:
            if self.is_complete:  # by another thread
                return True
            if (position := self._candidate()) is not None:
                self._consider(position)
            self.wait_s = time.monotonic() - self._began
        return position is not None

    def _candidate(self) -> int | None:
        if (position := self.awaited) is not None:
            return position if self._store.has_group(position) else None
        return self._store.first_waiting

    @property
    def awaited(self) -> int | None:
        """The position that has to be considered next; None: any."""
        if self._settings.stragglers != "wait":
            return None
        return next(self._store.open_positions())

    def _consider(self, position: int) -> None:
        """Selects the group of a position, leaves it out, or refuses it, so that its prompt is sampled again."""
        group = self._store.group(position)
        oldest = self._settings.oldest(self.policy_version, "resample")
        self.counts["attempts_per_batch"] += 1
        if (
            oldest is not None and group.trains() and group.oldest_version < oldest
        ):  # a new policy mends it
            self.counts["stale_groups"] += 1
            if self._is_given_up(position):
                self.drop(position, "stale")
                return
            self._count_reason("stale")
            self._store.refuse_group(position)
            return
        self._store.look_at(position)
        lengths = np.array([max(row.size - group.prompt_len, 0) for row in group.tokens])
        self.scored.append(Scored(group.rewards, lengths, group.truncated))
        verdict = self._judge(group, position)
        if verdict.keep:
            self.groups[position] = group
            self._reasons.clear()
        else:
            self.dropped[position] = verdict.reason
            self._count_reason(verdict.reason)

    def _is_given_up(self, position: int) -> bool:
        """Whether the groups of a prompt, which no step has to wait for, were too old too often."""
        settings = self._settings
        return (
            settings.stragglers != "wait"
            and self._store.refusals(position) >= settings.max_renewals
        )

    def drop(self, position: int, reason: str) -> None:
        """Leaves out a prompt that was restarted too often."""
        self.counts["given_up_groups"] += 1
        self._store.look_at(position)
        self.dropped[position] = reason
        self._count_reason(reason)

    def record(self) -> BatchRecord:
        """The record of the step."""
        last = max((*self.groups, *self.dropped, self._store.next_position - 1))
        counts = dict.fromkeys(COUNTERS[:8], 0) | {name: n for name, n in self.counts.items() if n}
        counts["valid_groups"] = len(self.groups)
        version = self.policy_version
        oldest = self._settings.oldest(self.policy_version, "mask")
        return BatchRecord(
            self.step, sorted(self.groups), self.dropped, last + 1, version, counts, oldest
        )

    def _judge(self, group: ScoredGroup, position: int) -> Verdict:
        """Whether a group is trained on; counts why not."""
        counts = self.counts
        settings = self._settings
        single = group.rewards.size == 1
        counts["single_groups"] += single
        if group.longest > settings.seq_len:
            counts["too_long_groups"] += 1
            return Verdict(False, "too_long")
        if not group.trains(oldest=settings.oldest(self.policy_version, "mask")):
            counts["untrained_groups"] += 1
            return Verdict(False, "stale" if group.trains() else "untrained")
        if settings.keep is None:
            return Verdict(True)
        verdict: Any = settings.keep(group.rewards)
        if not isinstance(verdict, Verdict):
            cure = "Return Verdict(True), or Verdict(False, 'reason')."
            raise ConfigError("must return a Verdict", field="keep", value=verdict, cure=cure)
        if not verdict.keep and not single:
            equal = (
                group_moments(group.rewards, np.full(group.rewards.size, position)).std[0] <= 1e-6
            )
            counts["zero_var_groups" if equal else "filtered_groups"] += 1
        return verdict

    def _count_reason(self, reason: str) -> None:
        self._reasons[reason] += 1
        if self._reasons.total() >= self._settings.max_attempts:
            reasons = ", ".join(f"{reason}: {n}" for reason, n in self._reasons.most_common())
            cures = dict.fromkeys(
                _CURES.get(reason, _OF_REWARDS) for reason, _ in self._reasons.most_common()
            )
            problem = f"this many consecutive groups were left out at step {self.step} ({reasons})"
            raise NoGroupError(
                problem,
                field="max_attempts",
                value=self._settings.max_attempts,
                cure=" ".join(cures),
            )
