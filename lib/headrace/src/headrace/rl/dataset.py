"""``RLDataset``: pulls groups from a sampler, leaves out those that teach nothing, and packs the rest into batches.

A step takes prompts in the order of their positions (:mod:`headrace.rl.prompt_order`), one after the other, until it
has its groups. What a group is left out for is counted:

===================  =================================================================================================
counter              meaning (of one step)
===================  =================================================================================================
valid_groups         groups that the step trains on
attempts_per_batch   groups that were looked at for it
zero_var_groups      left out: all rewards equal
single_groups        of one completion: no advantage; left out by the default filter
filtered_groups      left out by a filter of the user's
too_long_groups      left out: a completion is longer than a row
untrained_groups     left out: no token is trained on (``prompt_len``, ``loss_masks``; with ``mask``, all are too old)
stale_groups         sampled again: the policy that sampled them is too old
===================  =================================================================================================

With a :class:`~headrace.rl.store.RolloutStore` on disk the run can be killed at any moment, and other processes can
sample for it (:meth:`RLDataset.produce`); see there.

Price: the sampler's. With a store, one ``fsync`` a group; packing takes 20 us a completion.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float64

from headrace.batch.examples import pack_examples
from headrace.batch.packed_batch import PackedBatch
from headrace.errors import ConfigError, HeadraceError, check_at_least, check_choice, check_not_negative
from headrace.rl.advantages import (
    AdvantageSpec,
    Preset,
    Verdict,
    group_advantages,
    group_moments,
    nonzero_std,
    resolve,
)
from headrace.rl.groups import Prompt, Prompts, Sampler, ScoredGroup
from headrace.rl.prompt_order import PROMPT_ORDERS
from headrace.rl.rollout_records import BatchRecord
from headrace.rl.store import RolloutStore

logger = logging.getLogger(__name__)

RewardFilter = Callable[[Float64[np.ndarray, " N"]], Verdict]
_COUNTERS: tuple[str, ...] = (
    "valid_groups", "attempts_per_batch", "zero_var_groups", "single_groups", "filtered_groups", "too_long_groups",
    "untrained_groups", "stale_groups",
)  # fmt: skip
Stale = Literal["resample", "mask"]
_CURES = {  # by the reason that groups were left out for; any other is about their rewards
    "stale": "Give the sampler the trainer's weights and version, or raise max_staleness.",
    "too_long": "Raise seq_len, or sample shorter completions.",
    "untrained": "Look at prompt_len and loss_masks: no token after the first of a completion is trained on.",
}
_POLL_S, _WARN_S = 0.1, 10.0  # how often other producers are looked at; when it is said that they are waited for
_OF_REWARDS = "Look at the rewards: a task that is always or never solved, or sampled once, teaches nothing."


class NoGroupError(HeadraceError):
    """So many groups in a row were left out that the run cannot go on."""


@dataclass(frozen=True)
class RLSettings:
    """How rollouts become batches.

    Attributes:
        seq_len: Tokens in a row.
        groups_per_batch: Groups that a step trains on.
        seed: Chooses the order of prompts.
        advantages: A preset (see :mod:`headrace.rl.advantages`), or a spec.
        keep: Says of a group's rewards whether it is trained on; None: every group is.
        max_attempts: So many groups left out in a row are an error.
        prompts_at_a_time: Prompts that are sampled at once, if any is missing; those too many are kept for the next
            step (oversampling).
        threads: Threads that the sampler is called from.
        max_staleness: Versions that the policy may have gone on since a token was sampled; None: any number.
        stale: What becomes of a group that is too old: its prompt is sampled again (``resample``), or the tokens that
            are too old are not trained on (``mask``).
        rows: Rows of a batch, see :func:`~headrace.batch.examples.pack_examples`.
        multiple: Else they are a multiple of this.
        max_segments: Segments of a row, at most; None: as many as there are. Given with ``rows``, all batches have one
            shape.
        tokenizer: Names the tokenizer of prompts and completions, so that a store is not continued with another one;
            None: what the prompts say (``tokenizer`` of :class:`~headrace.rl.groups.CachePrompts`), if they do.
        prompt_order: ``shuffled``, each pass in an order of its own; ``slime``, in slime's, whose seed is ``seed``; or
            ``listed``, as the prompts are listed.

    Raises:
        ConfigError: a number, or a name, that cannot be.
    """

    seq_len: int
    groups_per_batch: int
    seed: int
    advantages: Preset | AdvantageSpec = "slime"
    keep: RewardFilter | None = nonzero_std
    max_attempts: int = 10_000
    prompts_at_a_time: int = 1
    threads: int = 1
    max_staleness: int | None = None
    stale: Stale = "resample"
    rows: int | None = None
    multiple: int = 1
    max_segments: int | None = None
    tokenizer: str | None = None
    prompt_order: str = "shuffled"

    def __post_init__(self) -> None:
        check_choice("prompt_order", self.prompt_order, PROMPT_ORDERS)
        counts = ("groups_per_batch", "max_attempts", "threads", "prompts_at_a_time", "seq_len", "multiple", "rows")
        for name in (*counts, "max_segments"):
            check_at_least(name, getattr(self, name))
        check_not_negative("max_staleness", self.max_staleness)
        if self.stale not in get_args(Stale):
            raise ConfigError("must be 'resample' or 'mask'", field="stale", value=self.stale)
        resolve(self.advantages)


class RLDataset:
    """Batches of rollouts.

    Args:
        prompts: Prompts by number.
        sampler: Completes them and scores the completions; None: other processes do (:meth:`produce`), and are waited
            for.
        settings: How they become batches.
        store: Where rollouts are kept; None: in memory.

    Attributes:
        counts: Counters of the latest step, by name.
        totals: Their sums over all steps that this process made.

    Raises:
        ConfigError: there are no prompts; no sampler, and no store.
        PlanMismatchError: the store is another run's: of other prompts, seed, seq_len, advantages or tokenizer.
        CacheError: another process makes steps of the same store; it is named.

    Example:
        >>> class Guess:
        ...     def sample_and_score(self, prompt):
        ...         answers = [np.append(prompt.tokens, a) for a in (0, 1)]
        ...         return ScoredGroup(answers, np.array([0.0, 1.0]), prompt.tokens.size)
        >>> dataset = RLDataset([np.array([7])] * 4, Guess(), RLSettings(seq_len=8, groups_per_batch=2, seed=0))
        >>> batch = dataset.next_batch()
        >>> batch.rewards.tolist(), dataset.counts["valid_groups"]
        ([[0.0, 1.0, 0.0, 1.0]], 2)
    """

    def __init__(
        self, prompts: Prompts, sampler: Sampler | None, settings: RLSettings, *, store: RolloutStore | None = None
    ) -> None:
        if sampler is None and (store is None or store.folder is None):
            cure = "Give a sampler, or a store in a folder that other processes sample into."
            raise ConfigError("nobody could sample", field="sampler", value=None, cure=cure)
        self.prompts, self.sampler, self.settings = prompts, sampler, settings
        self.order = PROMPT_ORDERS[settings.prompt_order](len(prompts), seed=settings.seed)
        self.advantages = resolve(settings.advantages)
        self.store = RolloutStore(None) if store is None else store
        self.store.claim(self._identity())
        self.counts: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self.totals: Counter[str] = Counter()

    def _identity(self) -> dict[str, Any]:
        """What makes a run's rollouts its own."""
        named = self.settings.tokenizer or getattr(self.prompts, "tokenizer", None)
        seed, order = self.settings.seed, self.settings.prompt_order
        named_seed = seed if order == "shuffled" else f"{order}, {seed}"
        identity: dict[str, Any] = {"prompts": len(self.prompts), "seed": named_seed, "tokenizer": named}
        if self.store.folder is None:
            return identity
        advantages = {name: value for name, value in asdict(self.advantages).items() if value != _ADVANTAGES[name]}
        digest = getattr(self.prompts, "fingerprint", None) or _digest(self.prompts)
        return {**identity, "prompts_digest": digest, "seq_len": self.settings.seq_len, "advantages": advantages}

    def __iter__(self) -> Iterator[PackedBatch]:
        """Batches of steps that have not been made yet, without end."""
        while True:
            yield self.next_batch()

    def next_batch(self, step: int | None = None, *, policy_version: int = 0) -> PackedBatch:
        """The batch of a step.

        Args:
            step: The step that the trainer is at: the next one, or any that was made before (it is the same again);
                None: the next one.
            policy_version: The trainer's; groups are sampled by it, or admitted if they are not much older.

        Raises:
            ConfigError: a step ahead of the next one; a group that cannot be, e.g. a reward that is not finite (its
                position and prompt are named): it is not stored, and its prompt is sampled again; a batch that does
                not fit ``rows`` or ``max_segments``: its groups are stored, and the step is still to be made.
            NoGroupError: ``max_attempts`` groups in a row were left out; the message has the counts.
        """
        if self.store.producer is not None:
            cure = "Call produce() here, and next_batch() in the process that trains."
            raise ConfigError("only adds groups", field="producer", value=self.store.producer, cure=cure)
        step = self.store.next_step if step is None else operator.index(step)
        check_not_negative("step", step)
        policy_version = operator.index(policy_version)
        record = self.store.record(step)
        is_new = record is None
        if record is None:
            if step != self.store.next_step and self.store.next_step > 0:
                ahead = step > self.store.next_step
                problem = "is ahead of the rollouts" if ahead else "comes before the first step that was made"
                raise ConfigError(problem, field="step", value=step, cure=f"The next step is {self.store.next_step}.")
            record = self._make(step, policy_version)
        batch = self._pack(record)  # before the record is put: a step that cannot be packed has used no prompt
        if is_new:
            self.store.put_record(record)  # on the disk, and still ours, before the batch is given out
            self.totals.update(record.counts)
        self.counts = dict.fromkeys(_COUNTERS, 0) | record.counts
        return batch

    def _make(self, step: int, policy_version: int) -> BatchRecord:
        """Takes positions one after the other until the step has its groups."""
        counts: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        taken: list[int] = []
        dropped: dict[int, str] = {}
        reasons: Counter[str] = Counter()  # since the last group that was kept
        position, oldest = self.store.next_position, self._oldest(policy_version, "resample")
        while len(taken) < self.settings.groups_per_batch:
            group = self._group(position)
            counts["attempts_per_batch"] += 1
            if oldest is not None and group.trains() and group.oldest_version < oldest:  # a new policy mends it
                counts["stale_groups"] += 1
                reasons["stale"] += 1
                self._check_attempts(reasons, step)
                self.store.refuse_group(position)
                continue
            verdict = self._judge(group, position, self._oldest(policy_version, "mask"), counts)
            if verdict.keep:
                taken.append(position)
                reasons.clear()
            else:
                dropped[position] = verdict.reason
                reasons[verdict.reason] += 1
                self._check_attempts(reasons, step)
            position += 1
        counts["valid_groups"] = len(taken)
        oldest = self._oldest(policy_version, "mask")
        return BatchRecord(step, taken, dropped, position, policy_version, counts, oldest)

    def _judge(self, group: ScoredGroup, position: int, oldest: int | None, counts: dict[str, int]) -> Verdict:
        """Whether a group is trained on; counts why not."""
        single = group.rewards.size == 1
        counts["single_groups"] += single
        if group.longest > self.settings.seq_len:
            counts["too_long_groups"] += 1
            return Verdict(False, "too_long")
        if not group.trains(oldest=oldest):
            counts["untrained_groups"] += 1
            return Verdict(False, "stale" if group.trains() else "untrained")
        if self.settings.keep is None:
            return Verdict(True)
        verdict = self.settings.keep(group.rewards)
        if not verdict.keep and not single:
            equal = group_moments(group.rewards, np.full(group.rewards.size, position)).std[0] <= 1e-6
            counts["zero_var_groups" if equal else "filtered_groups"] += 1
        return verdict

    def _check_attempts(self, reasons: Counter[str], step: int) -> None:
        if reasons.total() >= self.settings.max_attempts:
            counted = ", ".join(f"{reason}: {n}" for reason, n in reasons.most_common())
            cures = dict.fromkeys(_CURES.get(reason, _OF_REWARDS) for reason, _ in reasons.most_common())
            problem = f"so many groups in a row were left out at step {step} ({counted})"
            raise NoGroupError(problem, field="max_attempts", value=self.settings.max_attempts, cure=" ".join(cures))

    def _oldest(self, policy_version: int, stale: Stale) -> int | None:
        """The oldest policy whose tokens are trained on, if this becomes of those of older ones."""
        if self.settings.stale != stale or self.settings.max_staleness is None:
            return None
        return policy_version - self.settings.max_staleness

    def produce(self, share: tuple[int, int] = (0, 1), *, ahead: int = 64) -> list[int]:
        """Samples groups, once, for the process that makes the steps. The store was opened with a producer's name.

        Args:
            share: This producer's number, and how many there are: it samples each of so many positions.
            ahead: Positions that are sampled before the steps get there, at most.

        Returns:
            Positions whose groups were stored; none if there is nothing to do until the next step is made, or a group
            of this share is refused as too old.

        Raises:
            ConfigError: as of :meth:`next_batch`; a share or a number that cannot be.
            PlanMismatchError: the steps turn out to be another run's.
        """
        number, producers = share
        check_at_least("ahead", ahead)
        if not 0 <= number < producers:
            raise ConfigError("must be a number from 0 on, below the second", field="share", value=share)
        self.store.refresh()
        begin = self.store.next_position
        first = begin + (number - begin) % producers
        missing = [p for p in range(first, begin + ahead, producers) if not self.store.has_group(p)]
        chosen = missing[: self.settings.prompts_at_a_time]
        if chosen:
            self._sample(chosen)
        return chosen

    def _group(self, position: int) -> ScoredGroup:
        waits, said = time.monotonic(), _WARN_S
        while not self.store.has_group(position):
            self.store.refresh()
            if self.store.has_group(position):
                break
            if self.sampler is not None:
                ahead = range(position, position + self.settings.prompts_at_a_time)
                self._sample([p for p in ahead if not self.store.has_group(p)])
                continue
            time.sleep(_POLL_S)
            if time.monotonic() - waits > said:
                logger.warning("waits for the group of position %d: no producer has stored it for %d s", position, said)
                said *= 2
        return self.store.group(position)

    def _sample(self, positions: list[int]) -> None:
        """Samples prompts, and stores each group as soon as it is there, whatever becomes of the others."""
        indices = self.order(np.array(positions)).tolist()
        prompts = [Prompt(p, i, self.prompts[i]) for p, i in zip(positions, indices, strict=True)]
        if self.settings.threads == 1 or len(prompts) == 1:
            for prompt in prompts:
                self._sample_one(prompt)
            return
        with ThreadPoolExecutor(self.settings.threads) as pool:
            samples = [pool.submit(self._sample_one, prompt) for prompt in prompts]
            wait(samples, return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)  # those that were begun are waited for, and stored
        for sample in samples:
            if not sample.cancelled():
                sample.result()

    def _sample_one(self, prompt: Prompt) -> None:
        """Stores a group of the sampler's, if it is good: once it is stored its prompt is not sampled again."""
        place = f"group {prompt.position}, of prompt {prompt.index}"
        if self.sampler is None:
            raise ConfigError("nobody could sample", field="sampler", value=None, cure="Give RLDataset a sampler.")
        try:
            group = self.sampler.sample_and_score(prompt)
        except ConfigError as error:  # a ScoredGroup does not know whose it is
            given = {} if error.value is None else {"value": error.value}
            raise ConfigError(f"{error.problem} ({place})", field=error.field, cure=error.cure, **given) from error
        if not isinstance(group, ScoredGroup):
            raise ConfigError(f"is no ScoredGroup ({place})", field="sample_and_score()", value=type(group).__name__)
        wrong = np.flatnonzero(~np.isfinite(group.rewards))
        if wrong.size:
            raise ConfigError(
                f"is not finite ({place}; {wrong.size} such rewards in it)",
                field=f"rewards[{int(wrong[0])}]",
                value=float(group.rewards[wrong[0]]),
                cure="Mend the reward function; the run goes on with this prompt.",
            )
        self.store.put_group(prompt.position, group)

    def _pack(self, record: BatchRecord) -> PackedBatch:
        groups = [self.store.group(p) for p in record.positions]
        rewards = np.concatenate([g.rewards for g in groups])
        sizes = [len(g.tokens) for g in groups]
        advantages = group_advantages(rewards, np.repeat(np.arange(len(groups)), sizes), self.advantages).values
        of_groups = np.split(advantages, np.cumsum(sizes)[:-1])
        examples = [
            example
            for number, (group, values) in enumerate(zip(groups, of_groups, strict=True))
            for example in group.examples(values, number, oldest=record.oldest)
        ]
        s = self.settings
        return pack_examples(examples, s.seq_len, rows=s.rows, multiple=s.multiple, max_segments=s.max_segments)


_ADVANTAGES: dict[str, Any] = asdict(AdvantageSpec())


def _digest(prompts: Prompts) -> str:
    """Of the ids of all prompts, in their order."""
    digest = hashlib.sha256()
    for number in range(len(prompts)):
        ids = np.asarray(prompts[number], np.int64)
        digest.update(ids.size.to_bytes(8, "little") + ids.astype("<i8").tobytes())
    return f"sha256:{digest.hexdigest()}"
