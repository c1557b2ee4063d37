"""``Feeder``: samples in the background, in its own threads, during training.

A prompt is started when there is room for it: at most ``in_flight`` calls are running, and no more
groups are running or waiting than steps can use before they are older than ``max_staleness``. The
next prompt is always the lowest position that no step has used, that has no group, and that is not
running. A crash therefore loses nothing: a running call has left nothing in the log, and its prompt
is the first to be started again.

Price: a thread for each running call, which ends after 5 s without work.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from headrace.errors import ConfigError
from headrace_posttrain.rollouts.groups import Prompt, SamplerError
from headrace_posttrain.rollouts.sampler_calls import SamplerCalls, describe_prompt
from headrace_posttrain.rollouts.selection import Selection
from headrace_posttrain.rollouts.settings import RLSettings
from headrace_posttrain.rollouts.store import RolloutStore

logger = logging.getLogger(__name__)
_CLOSE_S = 10.0
_IDLE_S = 5.0


@dataclass(eq=False)
class _Call:
    """A prompt that is being sampled: the policy, and the start (monotonic seconds)."""

    prompt: Prompt
    policy_version: int
    say_after_s: float
    since: float = field(default_factory=time.monotonic)
    is_aborted: bool = False


class Feeder:
    """Keeps a store supplied with groups for the steps to come.

    Args:
        calls: The sampler.
        store: Where to store groups.
        settings: Number of groups, and how old they may be.
        prompt_at: Returns the prompt of a position.

    Attributes:
        policy_version: The newest version that the trainer has announced.
        given_up: Prompts that were aborted too often, which a step leaves out.
    """

    def __init__(
        self,
        calls: SamplerCalls,
        store: RolloutStore,
        settings: RLSettings,
        prompt_at: Callable[[int], Prompt],
    ) -> None:
        self._calls = calls
        self._store = store
        self._settings = settings
        self._prompt_at = prompt_at
        self.policy_version = 0
        self.given_up: set[int] = set()
        self._changed = threading.Condition(threading.RLock())
        self._under_way: dict[int, _Call] = {}
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that have nothing to do, less those that something is queued for
        self._aborts: Counter[int] = Counter()  # of positions
        self._timeouts: Counter[int] = Counter()
        self._selection: Selection | None = None
        self._next_version = 0  # of the policy that trains on the next step
        self._error: BaseException | None = None
        self._closed = False
        _open.add(self)

    def begin_step(self, selection: Selection) -> None:
        """Also samples for a step that is being made."""
        with self._changed:
            self._selection = selection
            self._next_version = selection.policy_version
            for position in sorted(self.given_up):
                selection.drop(position, "aborted")
            self.given_up.clear()
        self.fill()

    def end_step(self) -> None:
        """Samples only for later steps from now on. Call it before the step is stored and uses its
        groups.
        """
        with self._changed:
            if self._selection is not None:
                self._selection, self._next_version = None, self._selection.policy_version + 1

    def set_policy_version(self, version: int) -> None:
        """Sets the trainer's policy. Calls that are too old for it are aborted, if the settings say
        so.
        """
        settings = self._settings
        with self._changed:
            self.policy_version = max(version, self.policy_version)
            if self._selection is None:
                self._next_version = max(version, self._next_version)
            old: list[_Call] = []
            if settings.stragglers == "abort":
                old = [
                    call
                    for call in self._under_way.values()
                    if not self._is_fresh(call, self.policy_version)
                ]
            self._calls.counts["aborted_groups"] += sum(not call.is_aborted for call in old)
            for call in old:
                call.is_aborted = True
        for call in old:  # also those that were told before, and have not stopped
            self._calls.abort(call.prompt)
        self.fill()

    def _is_fresh(self, call: _Call, version: int) -> bool:
        """Whether a group of a call can be trained on by a policy."""
        bound = self._settings.max_staleness
        return not call.is_aborted and (bound is None or call.policy_version >= version - bound)

    def _room(self) -> int:
        """Number of prompts that may be started now."""
        settings = self._settings
        selection = self._selection
        most = self._settings.in_flight or 0
        groups_ahead = most  # beside what the step has looked at
        if settings.max_staleness is not None:
            steps = self.policy_version + settings.max_staleness - self._next_version + 1
            groups_ahead = steps * settings.groups_per_batch
            if selection is not None:
                groups_ahead = max(groups_ahead, settings.prompts_at_a_time) - len(selection.groups)
        fresh = sum(self._is_fresh(call, self._next_version) for call in self._under_way.values())
        groups_ahead -= self._store.num_waiting + fresh
        # whatever is stored for later: the step needs this one
        needed = selection is not None and self._is_missing(selection.awaited)
        return min(max(groups_ahead, int(needed)), most - len(self._under_way))

    def _is_missing(self, position: int | None) -> bool:
        """Whether a position has no group and no running call."""
        return (
            position is not None
            and position not in self._under_way
            and not self._store.has_group(position)
        )

    def fill(self) -> None:
        """Starts as many prompts as there is room for."""
        with self._changed:
            self._watch()
            if self._closed or self._error is not None:
                return
            room = self._room()
            if room <= 0:
                return
            missing = (
                position
                for position in self._store.open_positions()
                if self._is_missing(position) and position not in self.given_up
            )
            for position in list(itertools.islice(missing, room)):
                self._begin(position)

    def _begin(self, position: int) -> None:
        call = _Call(self._prompt_at(position), self.policy_version, self._settings.hang_s)
        self._under_way[position] = call
        self._queue.put(call)
        if self._idle > 0:
            self._idle -= 1
            return
        thread = threading.Thread(target=self._work, name="headrace-rollouts", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        """The loop of each thread, until there is no work for a while."""
        while True:
            try:
                call = self._queue.get(timeout=_IDLE_S)
            except Empty:
                with self._changed:
                    if not self._queue.empty():
                        continue
                    self._idle -= 1
                    call = None
            if call is None:
                self._threads.discard(threading.current_thread())
                return
            self._run(call)

    def _run(self, call: _Call) -> None:
        position = call.prompt.position
        error = None
        group = None
        try:
            group = self._calls.sample(call.prompt, lambda: not self._is_current(call))
            if group is not None and self._under_way.get(position) is call:
                self._calls.store(group, position, self._store)
        except BaseException as raised:  # noqa: BLE001  # whatever it is, the trainer gets it
            error = raised
        with self._changed:
            self._idle += 1
            if self._under_way.get(position) is call:
                del self._under_way[position]
                if error is not None and not call.is_aborted:
                    self._error = self._error or error
                elif group is None:
                    self._try_again(position)
            else:
                self._calls.counts["late_calls"] += 1
            self.fill()
            self._changed.notify_all()

    def _is_current(self, call: _Call) -> bool:
        is_ours = self._under_way.get(call.prompt.position) is call
        return is_ours and not call.is_aborted and not self._closed

    def _try_again(self, position: int) -> None:
        """Restarts a prompt whose call was aborted, unless that has happened too often."""
        self._aborts[position] += 1
        if self._aborts[position] > self._settings.max_renewals:
            self.given_up.add(position)

    def _watch(self) -> None:
        """Logs calls that take long, and ends those that take too long."""
        settings = self._settings
        now = time.monotonic()
        for position, call in list(self._under_way.items()):
            seconds = now - call.since
            if settings.timeout_s is not None and seconds > settings.timeout_s:  # aborted or not
                call.is_aborted = True
                self._calls.counts["timeouts"] += 1
                self._timeouts[position] += 1
                del self._under_way[position]
                threading.Thread(target=self._calls.abort, args=[call.prompt], daemon=True).start()
                if self._timeouts[position] > settings.retries:
                    attempt = f"{describe_prompt(call.prompt)}; call {self._timeouts[position]}"
                    problem = f"the sampler has not answered ({attempt})"
                    cure = "Look at the sampler, raise timeout_s, or allow more retries."
                    self._error = SamplerError(
                        problem, field="timeout_s", value=settings.timeout_s, cure=cure
                    )
            elif seconds > call.say_after_s:
                call.say_after_s = 2 * seconds
                others = len(self._under_way) - 1
                message = (
                    "the sampler has not answered for %.0f s: %s, begun at policy version %d; %d"
                    " other calls"
                )
                logger.warning(
                    message, seconds, describe_prompt(call.prompt), call.policy_version, others
                )

    def wait(self, seconds: float) -> None:
        """Returns when a call has ended, or after the timeout."""
        with self._changed:
            if self._error is None and not self._closed:
                self._changed.wait(seconds)

    def check(self) -> None:
        """Raises an error of a call once; its prompt is then started again. Raises ConfigError
        after :meth:`close`.
        """
        with self._changed:
            error = self._error
            self._error = None
            if error is not None:
                self._timeouts.clear()
        if error is not None:
            raise error
        if self._closed:
            cure = "Make another RLDataset of the same store: it goes on with the next step."
            raise ConfigError(
                "samples no more: it was closed", field="dataset", value="RLDataset", cure=cure
            )

    def close(self) -> None:
        """Aborts running calls, and waits for them for a while."""
        with self._changed:
            self._closed = True
            calls = list(self._under_way.values())
            threads = list(self._threads)
            for _ in threads:
                self._queue.put(None)
            self._changed.notify_all()
        for call in calls:
            call.is_aborted = True
            self._calls.abort(call.prompt)
        end = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
        if hanging := [call for call in calls if self._under_way.get(call.prompt.position) is call]:
            logger.warning(
                "the sampler does not stop: %s, and %d others",
                describe_prompt(hanging[0].prompt),
                len(hanging) - 1,
            )
        self._under_way.clear()  # whose answers are no longer stored
        self._calls.close()


_open: weakref.WeakSet[Feeder] = weakref.WeakSet()


@atexit.register
def _end_with_the_process() -> None:
    """Python cannot exit while one of its threads is inside XLA."""
    for feeder in list(_open):
        feeder.close()
