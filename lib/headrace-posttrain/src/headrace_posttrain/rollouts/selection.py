"""``Selection``: which groups a step uses, and why others are left out."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace_posttrain.rollouts.advantages import Verdict, group_moments
from headrace_posttrain.rollouts.groups import ScoredGroup
from headrace_posttrain.rollouts.rollout_records import BatchRecord, OpenStep
from headrace_posttrain.rollouts.settings import RLSettings
from headrace_posttrain.rollouts.store import RolloutStore

logger = logging.getLogger(__name__)

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
_STALE_CURE = "Give the sampler the trainer's weights and version, or raise max_staleness."
_CURES = {  # by the reason for leaving out groups; any other reason is about their rewards
    "stale": _STALE_CURE,
    "too_long": "Raise seq_len, or sample shorter completions.",
    "untrained": "Look at prompt_len and loss_masks: no token after the first of a completion is"
    " trained on.",
    "aborted": "Raise max_staleness, or let the sampler give back what it has (PartialGroup) when"
    " it is aborted.",
}
_OF_REWARDS = (
    "Look at the rewards: a task that is always or never solved, or sampled once, teaches nothing."
)


class NoGroupError(HeadraceError):
    """Too many groups in a row were left out for the run to continue."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Statistics of a group that was considered: for each completion its reward, its tokens after
    the prompt, and whether it was cut off, if the sampler reports it.
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
        self._considered: list[int] = []  # positions, in the order in which they were
        self._num_told: int | None = None  # of these, those that producers know of
        # Groups that may have been sampled before the step began are no fault of the sampler's.
        self._old_groups = store.num_waiting + (settings.in_flight or settings.prompts_at_a_time)
        self._renewed: set[int] = set()  # positions that were sampled again for this step
        self._stale_in_a_row = 0
        self._stale_renewals = 0  # of these, those that were sampled while the step was open
        self._first_renewal_s = 0.0

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

    @property
    def gets_stale_groups(self) -> bool:
        """Whether the latest groups were sampled for this step, and are too old for it."""
        return self._stale_renewals > 0

    def take_news(self) -> OpenStep | None:
        """What producers have not been told about the step; from now on they have."""
        with self._store.lock:
            if self._num_told == len(self._considered):
                return None
            begins = self._num_told is None
            considered = self._considered[self._num_told or 0 :]
            self._num_told = len(self._considered)
            needed = self._settings.groups_per_batch - len(self.groups)
            return OpenStep(begins, considered, needed)

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
        """Selects the group of a position, leaves it out, or refuses it, so that its prompt is
        sampled again.
        """
        group = self._store.group(position)
        oldest = self._settings.oldest(self.policy_version, "resample")
        self.counts["attempts_per_batch"] += 1
        if (
            oldest is not None and group.trains() and group.oldest_version < oldest
        ):  # a new policy mends it
            was_renewed = position in self._renewed
            self._renewed.add(position)
            self._check_sampler(position, group.oldest_version, oldest, sampled_for_it=was_renewed)
            if self._is_given_up(position):
                self._leave_out(position, "stale")
                return
            self.counts["stale_groups"] += 1
            self._count_reason("stale")
            self._store.refuse_group(position)
            return
        self._look_at(position)
        lengths = np.array([max(row.size - group.prompt_len, 0) for row in group.tokens])
        self.scored.append(Scored(group.rewards, lengths, group.truncated))
        verdict = self._judge(group, position)
        if verdict.reason != "stale":
            self._stale_in_a_row = self._stale_renewals = 0
        if verdict.keep:
            self.counts["valid_groups"] += 1
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
        """Leaves out a prompt whose calls were aborted too often."""
        self.counts["attempts_per_batch"] += 1
        self._leave_out(position, reason)

    def _leave_out(self, position: int, reason: str) -> None:
        self.counts["given_up_groups"] += 1
        self._look_at(position)
        self.dropped[position] = reason
        self._count_reason(reason)

    def _look_at(self, position: int) -> None:
        self._store.look_at(position)
        self._considered.append(position)

    def _check_sampler(
        self, position: int, version: int, oldest: int, *, sampled_for_it: bool
    ) -> None:
        """Names a sampler whose policy is too old, as soon as it has sampled for this step.

        Raises:
            NoGroupError: it has done so for ``hang_s`` seconds, and nothing else came meanwhile.
        """
        settings = self._settings
        self._stale_in_a_row += 1
        if not sampled_for_it and self._stale_in_a_row <= self._old_groups:
            return
        now = time.monotonic()
        self._stale_renewals += 1
        sampler = self._store.sampler_of(position)
        who = "the sampler" if sampler in ("", "consumer") else f"the sampler of producer {sampler}"
        problem = (
            f"{who} samples with policy version {version}, but step {self.step} trains version"
            f" {self.policy_version} on tokens of version {oldest} or later"
        )
        if self._stale_renewals == 1:
            self._first_renewal_s = now
            logger.warning("%s. %s", problem, _STALE_CURE)
        is_enough = self._stale_renewals > settings.max_renewals
        if is_enough and now - self._first_renewal_s >= settings.hang_s:
            raise NoGroupError(
                problem, field="max_staleness", value=settings.max_staleness, cure=_STALE_CURE
            )

    def record(self) -> BatchRecord:
        """The record of the step."""
        last = max((*self.groups, *self.dropped, self._store.next_position - 1))
        counts = dict.fromkeys(COUNTERS[:8], 0) | {name: n for name, n in self.counts.items() if n}
        version = self.policy_version
        oldest = self._settings.oldest(self.policy_version, "mask")
        return BatchRecord(
            self.step, sorted(self.groups), self.dropped, last + 1, version, counts, oldest
        )

    def _judge(self, group: ScoredGroup, position: int) -> Verdict:
        """Whether a group is trained on; counts why not."""
        counts = self.counts
        settings = self._settings
        if group.longest > settings.seq_len:
            counts["too_long_groups"] += 1
            return Verdict(False, "too_long")
        if not group.trains(oldest=settings.oldest(self.policy_version, "mask")):
            counts["untrained_groups"] += 1
            if not group.trains():
                return Verdict(False, "untrained")
            oldest = settings.oldest(self.policy_version, "mask") or 0
            self._check_sampler(position, group.newest_version, oldest, sampled_for_it=False)
            return Verdict(False, "stale")
        if settings.keep is None:
            return Verdict(True)
        verdict: Any = settings.keep(group.rewards)
        if not isinstance(verdict, Verdict):
            cure = "Return Verdict(True), or Verdict(False, 'reason')."
            raise ConfigError("must return a Verdict", field="keep", value=verdict, cure=cure)
        if not verdict.keep:
            counts[_counter_of(group.rewards)] += 1
        return verdict

    def _count_reason(self, reason: str) -> None:
        self._reasons[reason] += 1
        most = self._settings.max_attempts
        number = self._reasons.total()
        if number < most and number != most // 10:
            return
        reasons = ", ".join(f"{reason}: {n}" for reason, n in self._reasons.most_common())
        cures = dict.fromkeys(
            _CURES.get(reason, _OF_REWARDS) for reason, _ in self._reasons.most_common()
        )
        cure = " ".join(cures)
        problem = f"consecutive groups were left out at step {self.step} ({reasons})"
        if number < most:
            logger.warning("%d %s; %d are an error. %s", number, problem, most, cure)
            return
        raise NoGroupError(f"this many {problem}", field="max_attempts", value=most, cure=cure)


def _counter_of(rewards: np.ndarray) -> str:
    """The counter of a group that a filter left out."""
    if rewards.size == 1:
        return "single_groups"
    deviation = group_moments(rewards, np.zeros(rewards.size, np.int64)).std[0]
    return "zero_var_groups" if deviation <= 1e-6 else "filtered_groups"
