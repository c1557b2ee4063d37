"""``RLDataset``: pulls groups from a sampler, leaves out those that carry no signal, and packs the
rest into batches.

A step uses prompts in the order of their positions
(:mod:`headrace_posttrain.rollouts.prompt_order`) until it has its groups. The
reasons for leaving out groups are counted:

===================  ===============================================================================
counter              meaning (of one step)
===================  ===============================================================================
attempts_per_batch   groups that were considered; each is in exactly one of the counters below
valid_groups         groups that the step trains on
zero_var_groups      left out: all rewards equal
single_groups        of one completion: no advantage; left out by the default filter
filtered_groups      left out by a filter of the user's
too_long_groups      left out: a completion is longer than a row
untrained_groups     left out: no token is trained on (``prompt_len``, ``loss_masks``; with
                     ``mask``, all are too old)
stale_groups         sampled again: the policy that sampled them is too old
given_up_groups      left out: sampled again, or aborted, too often (``max_renewals``)
===================  ===============================================================================

With a :class:`~headrace_posttrain.rollouts.store.RolloutStore` on disk the run can be killed at any
moment, and other processes can sample for it (:meth:`RLDataset.produce`); see there.

Price: the sampler's. With a store, one ``fsync`` per group; packing takes 20 us per completion.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from itertools import islice, takewhile
from typing import Any, NoReturn, cast

import jax
import numpy as np
from jaxtyping import Int64

from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import AsyncDataset
from headrace.errors import CacheCorruptError, ConfigError, check_at_least, check_not_negative
from headrace.mix.schedule import BatchSchedule
from headrace.order.order import Order
from headrace_posttrain.rollouts.advantages import AdvantageSpec, resolve
from headrace_posttrain.rollouts.feeder import Feeder
from headrace_posttrain.rollouts.groups import Prompt, Prompts, Sampler, digest_of_prompts
from headrace_posttrain.rollouts.producer_watch import ProducerWatch
from headrace_posttrain.rollouts.prompt_order import PROMPT_ORDERS
from headrace_posttrain.rollouts.rollout_metrics import rollout_metrics
from headrace_posttrain.rollouts.rollout_records import BatchRecord
from headrace_posttrain.rollouts.sampler_calls import SamplerCalls
from headrace_posttrain.rollouts.selection import COUNTERS, NoGroupError, Selection
from headrace_posttrain.rollouts.settings import RLSettings
from headrace_posttrain.rollouts.step_batch import Patience, pack_groups
from headrace_posttrain.rollouts.store import RolloutStore

__all__ = ["NoGroupError", "RLDataset", "RLSettings"]

logger = logging.getLogger(__name__)
# how often what is waited for is looked at
_POLL_S = 0.1
_ASYNC_POLL_S = 0.005


class RLDataset(AsyncDataset[PackedBatch]):
    """Batches of rollouts.

    Args:
        prompts: Prompts by number.
        sampler: Completes them and scores the completions; None: waits for other processes to do so
            (:meth:`produce`).
        settings: How they become batches.
        store: Where to keep rollouts; None: in memory.

    Attributes:
        counts: Counters of the latest step, by name.
        totals: Their sums over all steps that this process made; a step that is made again counts
            once.

    Raises:
        ConfigError: there are no prompts; no sampler, and no store.
        PlanMismatchError: the store belongs to another run, with other prompts, seed, seq_len,
            advantages or tokenizer.
        CacheError: another process, which is named, makes steps with the same store.

    Example:
        >>> from headrace_posttrain import ScoredGroup
        >>> class Guess:
        ...     def sample_and_score(self, prompt):
        ...         return ScoredGroup(
        ...             [np.append(prompt.tokens, a) for a in (0, 1)], np.arange(2.0), 1
        ...         )
        >>> dataset = RLDataset(
        ...     [np.array([7])] * 4, Guess(), RLSettings(seq_len=8, groups_per_batch=2, seed=0)
        ... )
        >>> batch = dataset.next_batch()
        >>> batch.rewards.tolist(), dataset.counts["valid_groups"]
        ([[0.0, 1.0, 0.0, 1.0]], 2)
    """

    def __init__(
        self,
        prompts: Prompts,
        sampler: Sampler | None,
        settings: RLSettings,
        *,
        store: RolloutStore | None = None,
    ) -> None:
        if sampler is None and (store is None or store.folder is None):
            cure = "Give a sampler, or a store in a folder that other processes sample into."
            raise ConfigError("nobody could sample", field="sampler", value=None, cure=cure)
        self.prompts = prompts
        self.sampler = sampler
        if settings.vocab_size is None:
            settings = replace(settings, vocab_size=getattr(prompts, "vocab_size", None))
        self.settings = settings
        self.order = PROMPT_ORDERS[settings.prompt_order](len(prompts), seed=settings.seed)
        self.advantages = resolve(settings.advantages)
        self.store = RolloutStore(None) if store is None else store
        self._calls = (
            None if sampler is None or self.store.follow else SamplerCalls(sampler, settings)
        )
        self._claimed = self._identity()
        self.store.claim(self._claimed)
        # Of a run whose log of steps is lost: which of its prompts were trained on, nobody knows.
        self._has_groups_of_no_step = self.store.next_step == 0 and bool(self.store.pending)
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.totals: Counter[str] = Counter()
        self._counts_of: dict[int, dict[str, int]] = {}  # of the steps that this process made
        self._producers = ProducerWatch(self.store)
        self._lock = threading.Lock()
        self._version = cast("int | None", None)  # nobody has announced one
        self._feeder: Feeder | None = None
        self._read: tuple[BatchRecord | None, Any] = None, None  # the step that a loader read last
        self._selection: Selection | None = (
            None  # of the step that is being made, for all that ask for it
        )
        if (
            settings.in_flight is not None
            and self._calls is not None
            and self.store.producer is None
        ):
            self._feeder = Feeder(self._calls, self.store, settings, self._prompt)

    def _identity(self) -> dict[str, Any]:
        """The values that identify a run's rollouts."""
        named = self.settings.tokenizer or getattr(self.prompts, "tokenizer", None)
        seed = self.settings.seed
        order = self.settings.prompt_order
        named_seed = seed if order == "shuffled" else f"{order}, {seed}"
        identity: dict[str, Any] = {
            "prompts": len(self.prompts),
            "seed": named_seed,
            "tokenizer": named,
        }
        if self.store.folder is None:
            return identity
        advantages = {
            name: value
            for name, value in asdict(self.advantages).items()
            if value != _ADVANTAGES[name]
        }
        digest = getattr(self.prompts, "fingerprint", None) or digest_of_prompts(self.prompts)
        return {
            **identity,
            "prompts_digest": digest,
            "seq_len": self.settings.seq_len,
            "advantages": advantages,
        }

    def __iter__(self) -> Iterator[PackedBatch]:
        """Batches of steps that have not been made yet, endlessly."""
        while True:
            yield self.next_batch()

    def __enter__(self) -> RLDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops sampling in the background. The store stays open."""
        if self._feeder is not None:
            self._feeder.close()
        if self._calls is not None:
            self._calls.close()

    def set_policy_version(self, version: int) -> None:
        """Announces a new policy of the trainer: version v is the one that trains on step v.

        Call it after each update, in every process that makes steps or samples in the background.
        """
        self._version = max(operator.index(version), self._version or 0)
        if self._feeder is not None:
            self._feeder.set_policy_version(self._version)

    def next_batch(self, step: int | None = None, *, policy_version: int = 0) -> PackedBatch:
        """The batch of a step.

        Args:
            step: The trainer's step: the next one, or any earlier one (which is the same again);
                None: the next one.
            policy_version: The trainer's version; groups are sampled by it, or accepted if they are
                not much older.

        Raises:
            ConfigError: a step after the next one; an invalid group, e.g. with a reward that is not
                finite (its position and prompt are named), which is not stored, and whose prompt is
                sampled again; a batch that does not fit ``rows`` or ``max_segments``: its groups
                are stored, and the step is not made.
            NoGroupError: ``max_attempts`` groups in a row were left out; the message has the
                counts.
            SamplerError: the sampler did not answer within ``timeout_s``.
            HostError: the process whose steps this one follows is gone; or no producer may sample
                what is missing.
        """
        step = self.store.next_step if step is None else operator.index(step)
        self.set_policy_version(policy_version)
        batch = self._make(step, operator.index(policy_version))
        while True:
            try:
                next(batch)
            except StopIteration as end:
                return end.value
            if self._feeder is not None:
                self._feeder.wait(_POLL_S)
            else:
                time.sleep(_POLL_S)

    def metrics(self, step: int) -> dict[str, float]:
        """Counters and figures of a step that was made, for a log.

        Pass them to :class:`~headrace.feed.run_log.RunLog` with ``log(step,
        rollout=dataset.metrics(step))``.

        Returns:
            The counters of the step (``valid_groups``, ``aborted_groups``, ``retries``, ...), and:
            ``reward_mean``, ``_std``, ``_min``, ``_max`` over all completions that were scored for
            it, also of groups that were left out; ``length_mean``, ``_max``, their tokens behind
            the prompt; ``truncated_share`` of these, cut off at their limit, if the sampler says so
            (``ScoredGroup(truncated=...)``); ``zero_variance_share`` of the groups, left out
            because all rewards are equal; ``staleness_mean``, ``_max``, versions between the policy
            that trains on a token and the one that sampled it; ``sample_s_mean``, ``_max``, seconds
            of the sampler's calls that ended since the step before, in the process that makes
            steps; ``wait_s``, seconds that the step waited for groups.

            Elsewhere: rewards are slime's ``raw_reward`` and tinker's ``env/all/reward/total``;
            lengths are ``response_len/mean`` and ``/max``, and ``ac_tokens_per_turn``;
            ``truncated_share`` is ``truncated_ratio``; ``zero_variance_share`` is
            ``zero_std/count_*``, and ``by_group/frac_all_good`` and ``_bad``; ``sample_s_mean`` is
            ``perf/rollout_time``, and ``wait_s`` ``perf/train_wait_time``.

        Raises:
            ConfigError: the step has not been made.
        """
        if (record := self.store.record(operator.index(step))) is None:
            cure = "Ask for it after its batch was given out."
            raise ConfigError("has not been made", field="step", value=step, cure=cure)
        return {**dict.fromkeys(COUNTERS, 0.0), **record.counts, **record.metrics}

    @property
    def length(self) -> None:
        return None

    @property
    def own_schedule(self) -> BatchSchedule:
        """Each step has ``rows`` rows.

        Raises:
            ConfigError: the settings lack ``rows``, or the limit for reading ahead.
        """
        for name, example in (("rows", "rows=64"), ("max_staleness", "max_staleness=1")):
            if getattr(self.settings, name) is None:
                raise ConfigError(
                    "is needed by a loader",
                    field=name,
                    value=None,
                    cure=f"Set RLSettings({example}).",
                )
        return BatchSchedule(self.settings.rows or 1)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        return (self.settings.seq_len,)

    def describe(self) -> dict[str, Any]:
        s = self.settings
        shape = {
            name: getattr(s, name)
            for name in ("seq_len", "groups_per_batch", "rows", "max_segments", "ranks")
        }
        return {"rollouts": self._claimed, **shape}

    def reordered(self, order: Order) -> NoReturn:
        cure = "Choose RLSettings(prompt_order=...), or shuffle the prompts."
        raise ConfigError(
            "has the order of its log", field="dataset", value=type(self).__name__, cure=cure
        )

    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> PackedBatch:
        """Rows of steps, for a loader: row r of step s is number s * ``rows`` + r.

        A step is made when it is requested and the policy that trains on it, whose version is its
        number, is at most ``max_staleness`` versions away.
        """
        steps, rows = np.divmod(np.asarray(indices, np.int64), self.own_schedule.max_size)
        parts: list[Any] = []
        for step in np.unique(steps).tolist():
            batch = await self._batch_of(step)
            batch_rows = rows[steps == step]
            parts.append(jax.tree.map(lambda leaf, rows=batch_rows: leaf[rows], batch))
        if not parts:
            raise ConfigError(
                "name no row", field="indices", value=[], cure="Ask for at least one."
            )
        back = np.argsort(np.argsort(steps, kind="stable"), kind="stable")
        return (
            parts[0]
            if len(parts) == 1
            else jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *parts)
        )

    async def _batch_of(self, step: int) -> PackedBatch:
        if self._version is None:
            self.set_policy_version(step)  # the version that a resumed run starts with
        if (record := self.store.record(step)) is not None and record == self._read[0]:
            return self._read[1]  # micro-batches ask twice
        batch = self._make(step, step)
        while True:
            try:
                next(batch)
            except StopIteration as end:
                self._read = self.store.record(step), end.value
                return end.value
            await asyncio.sleep(_ASYNC_POLL_S)

    def _make(self, step: int, policy_version: int) -> Generator[None, None, PackedBatch]:
        """Makes a step unless it exists, yielding to other tasks while it waits.
        Returns its batch.
        """
        if self.store.producer is not None:
            cure = "Call produce() here, and next_batch() in the process that trains."
            raise ConfigError(
                "only adds groups", field="producer", value=self.store.producer, cure=cure
            )
        check_not_negative("step", step)
        patience = Patience()
        selection = None
        try:
            if self.store.record(step) is None:
                self._check_next(step)
                if self.store.follow:
                    yield from self._follow(step, patience)
                else:
                    yield from self._wait_for_policy(step, policy_version, patience)
                    selection = yield from self._select(step, policy_version, patience)
            with self._lock:  # a loader and an iteration that was left may ask for the same step
                record = self.store.record(step)
                if record is not None:
                    groups = [self.store.group(p) for p in record.positions]
                    batch = pack_groups(groups, self.settings, oldest=record.oldest)
                else:
                    assert selection is not None
                    self._check_next(step)
                    record = selection.record()
                    # before the record is put: a step that cannot be packed has used no prompt
                    groups = [selection.groups[p] for p in record.positions]
                    batch = pack_groups(groups, self.settings, oldest=record.oldest)
                    self._measure(record, selection, batch)
                    if self._feeder is not None:
                        self._feeder.end_step()
                    self.store.put_record(
                        record
                    )  # on disk, and still ours, before the batch is returned
                    self._selection = None
                    self.totals.subtract(self._counts_of.get(step, {}))
                    self.totals.update(record.counts)
                    self._counts_of[step] = record.counts
        except Exception:
            self._selection = None  # the next attempt starts over
            raise
        if self._feeder is not None:
            self._feeder.fill()
        self.counts = dict.fromkeys(COUNTERS, 0) | record.counts
        return batch

    def _check_next(self, step: int) -> None:
        if step != self.store.next_step and self.store.next_step > 0 and not self.store.follow:
            ahead = step > self.store.next_step
            problem = (
                "is ahead of the rollouts" if ahead else "comes before the first step that was made"
            )
            raise ConfigError(
                problem, field="step", value=step, cure=f"The next step is {self.store.next_step}."
            )
        if step > 0 and self.store.next_step == 0 and self._has_groups_of_no_step:
            problem = "has groups and no step, though steps were made: their log is lost"
            raise CacheCorruptError(
                problem,
                field="rollouts",
                value=self.store.folder,
                cure="Bring its steps/ back from a copy. If no step was made with these groups,"
                " move its producers/ away: their prompts are sampled again.",
            )

    def _follow(self, step: int, patience: Patience) -> Iterator[None]:
        self.store.refresh()
        while self.store.record(step) is None:
            self.store.check_leader()
            patience.say(
                "waits for step %d: the process that makes the steps has not stored it", step
            )
            yield
            self.store.refresh()

    def _wait_for_policy(
        self, step: int, policy_version: int, patience: Patience
    ) -> Iterator[None]:
        bound = self.settings.max_staleness
        while bound is not None and (self._version or 0) < policy_version - bound:
            message = (
                "step %d waits for policy version %d: tell it by set_policy_version(version) after"
                " each update"
            )
            patience.say(message, step, policy_version - bound)
            yield

    def _select(
        self, step: int, version: int, patience: Patience
    ) -> Generator[None, None, Selection | None]:
        """Selects groups until the step is complete; samples what is missing, or waits for it."""
        with self._lock:
            selection = self._selection
            is_mine = selection is not None and (selection.step, selection.policy_version) == (
                step,
                version,
            )
            if self.store.record(step) is None and not is_mine:
                selection = self._selection = Selection(step, version, self.settings, self.store)
                self._producers.begin_step()
                if self._feeder is not None:
                    self._feeder.begin_step(selection)
        was_idle = False
        while (
            selection is not None and not selection.is_complete and self.store.record(step) is None
        ):
            has_advanced = selection.advance()
            if not has_advanced and self._feeder is None:
                self.store.refresh()
                has_advanced = selection.advance()
            if has_advanced:
                was_idle = False
                continue
            if self._feeder is not None:
                self._feeder.check()
                self._feeder.fill()
                yield
            elif self._calls is not None:
                if selection.gets_stale_groups:  # weights may be on their way to the sampler
                    yield
                self._sample_missing()
            else:
                # Groups that are about to arrive are not asked for: what is told costs a record.
                if was_idle and (news := selection.take_news()) is not None:
                    self.store.put_open_step(step, news)
                was_idle = True
                self._producers.check(selection.awaited)
                awaited = self._producers.describe(selection.awaited)
                patience.say("step %d waits for %s", step, awaited)
                yield
        return selection

    def _measure(self, record: BatchRecord, selection: Selection, batch: PackedBatch) -> None:
        """Adds the step's figures to the record, and the counters of the sampler's calls since the
        previous step.
        """
        counts, call_s = (Counter(), []) if self._calls is None else self._calls.take_counts()
        record.counts.update({name: n for name, n in counts.items() if n})
        record.metrics.update(rollout_metrics(selection, batch, call_s, oldest=record.oldest))

    def produce(self, share: tuple[int, int] = (0, 1), *, ahead: int = 64) -> list[int]:
        """Samples groups, once, for the process that makes the steps. Requires a store that was
        opened with a producer's name.

        Args:
            share: This producer's number, and the number of producers, which divide the positions.
                Positions of a share that nobody has stay open: a step that waits for one ends with
                an error.
            ahead: Largest number of groups that wait for a step; a step that lacks more gets as
                many as it lacks.

        Returns:
            Positions whose groups were stored; empty if there is nothing to do until the trainer
            needs more groups, or until a group of this share is refused as too old.

        Raises:
            ConfigError: as for :meth:`next_batch`; an invalid share or number.
            PlanMismatchError: the steps belong to another run.
        """
        number, producers = share
        check_at_least("ahead", ahead)
        if not 0 <= number < producers:
            raise ConfigError(
                "must be a number from 0 on, below the second", field="share", value=share
            )
        self.store.put_share((number, producers))
        self.store.refresh()
        chosen = self._choose(number, producers, ahead)[: self.settings.prompts_at_a_time]
        if chosen:
            self._sample(chosen)
        return chosen

    def _choose(self, number: int, producers: int, ahead: int) -> list[int]:
        """Positions that a producer with this share may sample now, ascending."""
        # 1. Those of its share among the first that no step has used and the open step has not
        #    considered. They are as many as may wait, or as the open step lacks: once all have
        #    groups, it can go on.
        within = max(ahead, self.store.needed)
        near = [p for p in islice(self.store.open_positions(), within) if p % producers == number]
        missing = [p for p in near if not self.store.has_group(p)]
        lacking = self.store.needed - self.store.num_waiting
        if missing or lacking <= 0 or self.settings.stragglers == "wait":
            return missing
        # 2. The others have not sampled theirs: a step that takes any group takes later ones of
        #    this share.
        later = (
            p
            for p in self.store.open_positions()
            if p % producers == number and not self.store.has_group(p)
        )
        return list(islice(later, lacking))

    def _sample_missing(self) -> None:
        """Samples the next group that the step needs, together with as many prompts as are sampled
        at a time.
        """
        at_a_time = self.settings.prompts_at_a_time
        missing = (p for p in self.store.open_positions() if not self.store.has_group(p))
        first = next(missing)
        self._sample([first, *takewhile(lambda p: p < first + at_a_time, missing)])

    def _prompt(self, position: int) -> Prompt:
        """The prompt of a position, with its partial group unless that is too old
        to continue from.
        """
        index = int(self.order(np.array([position]))[0])
        partial = self.store.partial(position)
        version = self._version or 0
        oldest = self.settings.oldest(version, "resample")
        if partial is not None and oldest is not None and partial.oldest_version < oldest:
            partial = None
        return Prompt(position, index, self.prompts[index], partial)

    def _sample(self, positions: list[int]) -> None:
        """Samples prompts, and stores each group as soon as it is complete, even if others fail."""
        prompts = [self._prompt(position) for position in positions]
        if self.settings.threads == 1 or len(prompts) == 1:
            for prompt in prompts:
                self._sample_one(prompt)
            return
        with ThreadPoolExecutor(self.settings.threads) as pool:
            samples = [pool.submit(self._sample_one, prompt) for prompt in prompts]
            wait(samples, return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)  # wait for those that were started, and store them
        for sample in (one for one in samples if not one.cancelled()):
            sample.result()

    def _sample_one(self, prompt: Prompt) -> None:
        """Stores a group from the sampler if it is valid; then its prompt is not sampled again."""
        if self._calls is None:
            raise ConfigError(
                "nobody could sample", field="sampler", value=None, cure="Give RLDataset a sampler."
            )
        if (group := self._calls.sample(prompt)) is not None:
            self._calls.store(group, prompt.position, self.store)


_ADVANTAGES: dict[str, Any] = asdict(AdvantageSpec())
