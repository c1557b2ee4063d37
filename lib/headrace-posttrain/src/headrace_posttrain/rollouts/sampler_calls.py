"""Calls of the user's sampler, plain or async: retried if they fail, and checked."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace_posttrain.rollouts.groups import (
    PartialGroup,
    Prompt,
    Sampler,
    SamplerError,
    ScoredGroup,
)
from headrace_posttrain.rollouts.settings import RLSettings
from headrace_posttrain.rollouts.store import RolloutStore

logger = logging.getLogger(__name__)
# before a failed call is retried; doubled each time
_FIRST_WAIT_S = 0.1
_LAST_WAIT_S = 10.0


class SamplerCalls:
    """The sampler, for any number of threads. Async samplers run on one event loop, in a separate
    thread.

    Attributes:
        counts: Counters by name.
        call_s: Seconds of each call.
    """

    def __init__(self, sampler: Sampler, settings: RLSettings) -> None:
        self.sampler = sampler
        self._settings = settings
        self.counts: Counter[str] = Counter()
        self.call_s: list[float] = []
        self._awaited: dict[
            Prompt, Future[Any]
        ] = {}  # by call: a position may be asked for again meanwhile
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        is_async = inspect.iscoroutinefunction(sampler.sample_and_score)
        if settings.stragglers == "abort" and not is_async and not hasattr(sampler, "abort"):
            cure = (
                "Give it a method abort(prompt), make sample_and_score async, or use"
                " stragglers='keep'."
            )
            raise ConfigError(
                "cannot be aborted", field="sampler", value=type(sampler).__name__, cure=cure
            )

    def sample(
        self, prompt: Prompt, is_over: Callable[[], bool] = lambda: False
    ) -> ScoredGroup | PartialGroup | None:
        """A group from the sampler, possibly partial; None if ``is_over`` returns true first.

        Raises:
            ConfigError: the sampler returned something else.
            Exception: the sampler's own error, after ``retries`` retries.
        """
        wait_s = _FIRST_WAIT_S
        for retries_left in range(self._settings.retries, -1, -1):
            if is_over():
                return None
            try:
                return self._checked(self._call(prompt, is_over), prompt)
            except Exception as error:
                if is_over():
                    return None
                is_final = isinstance(error, HeadraceError) and not isinstance(error, SamplerError)
                if is_final or not retries_left:
                    if self._settings.retries:
                        error.add_note(
                            f"{self._settings.retries - retries_left + 1} calls failed of"
                            f" {describe_prompt(prompt)}"
                        )
                    raise
                logger.warning(
                    "the sampler failed at %s, and is called again: %r",
                    describe_prompt(prompt),
                    error,
                )
                self.counts["retries"] += 1
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_WAIT_S)
        return None

    def store(self, group: ScoredGroup | PartialGroup, position: int, store: RolloutStore) -> None:
        """Stores the result of :meth:`sample`."""
        is_partial = isinstance(group, PartialGroup)
        self.counts["partial_groups"] += is_partial
        store.put_group(position, group.group if is_partial else group, partial=is_partial)

    def abort(self, prompt: Prompt) -> None:
        """Stops the sampler with its ``abort`` or, if it is async and has none, by cancelling the
        call.
        """
        stop: Any = getattr(self.sampler, "abort", None)
        if stop is None:
            if (call := self._awaited.get(prompt)) is not None:
                call.cancel()
            return
        try:
            answer = stop(prompt)
            if inspect.isawaitable(answer):
                asyncio.run_coroutine_threadsafe(_await(answer), self._running_loop())
        except Exception:
            logger.exception(
                "the sampler's abort() failed at %s: its call goes on", describe_prompt(prompt)
            )

    def take_counts(self) -> tuple[Counter[str], list[float]]:
        """Returns and resets the counters and the seconds of calls."""
        counts = self.counts
        self.counts = Counter()
        call_s = self.call_s
        self.call_s = []
        return counts, call_s

    def close(self) -> None:
        """Ends the event loop."""
        with self._lock:
            loop = self._loop
            self._loop = None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end(loop), loop)

    def _call(self, prompt: Prompt, is_over: Callable[[], bool]) -> Any:
        began = time.monotonic()
        try:
            answer: Any = self.sampler.sample_and_score(prompt)
            if not inspect.isawaitable(answer):
                return answer
            call = asyncio.run_coroutine_threadsafe(_await(answer), self._running_loop())
            self._awaited[prompt] = call
            if is_over() and not hasattr(self.sampler, "abort"):
                call.cancel()
            if isinstance(answer := call.result(), BaseException):
                raise answer
            return answer
        except CancelledError as error:
            raise ConfigError(
                f"was cancelled ({describe_prompt(prompt)})", field="sample_and_score()"
            ) from error
        except ConfigError as error:  # a ScoredGroup does not know whose it is
            value = {} if error.value is None else {"value": error.value}
            problem = f"{error.problem} ({describe_prompt(prompt)})"
            raise ConfigError(problem, field=error.field, cure=error.cure, **value) from error
        finally:
            self._awaited.pop(prompt, None)
            self.call_s.append(time.monotonic() - began)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run, args=[self._loop], name="headrace-sampler", daemon=True
                ).start()
            return self._loop

    def _check_ids(self, group: ScoredGroup, prompt: Prompt) -> None:
        vocab_size = self._settings.vocab_size
        highest = max(int(ids.max()) for ids in group.tokens)
        if vocab_size is not None and highest >= vocab_size:
            raise ConfigError(
                f"is not below the {vocab_size:,} ids of the vocabulary"
                f" ({describe_prompt(prompt)})",
                field="tokens",
                value=highest,
                cure="Look at the sampler's tokenizer; if the model has more ids than the prompts'"
                " tokenizer, say so: RLSettings(vocab_size=...).",
            )

    def _checked(self, group: Any, prompt: Prompt) -> ScoredGroup | PartialGroup:
        scored: Any = group.group if isinstance(group, PartialGroup) else group
        if not isinstance(scored, ScoredGroup):
            problem = f"is no ScoredGroup ({describe_prompt(prompt)})"
            raise ConfigError(problem, field="sample_and_score()", value=type(scored).__name__)
        self._check_ids(scored, prompt)
        if isinstance(group, PartialGroup):
            started_tokens = (
                prompt.partial.tokens
                if prompt.partial is not None
                else [prompt.tokens] * len(scored.tokens)
            )
            if sum(map(len, scored.tokens)) <= sum(
                map(len, started_tokens)
            ):  # it would be requested forever
                problem = f"has no more tokens than the call began with ({describe_prompt(prompt)})"
                cure = (
                    "Go on from prompt.partial, and return a ScoredGroup, not a PartialGroup, at"
                    " the end."
                )
                raise ConfigError(
                    problem, field="sample_and_score()", value="PartialGroup", cure=cure
                )
            return group
        size = len(group.tokens)
        group_size = self._settings.group_size
        if group_size is not None and size != group_size:
            problem = (
                f"are not the {group_size} completions of group_size ({describe_prompt(prompt)})"
            )
            cure = "Return that many, or leave group_size out, for groups of unequal size."
            raise ConfigError(problem, field="sample_and_score()", value=size, cure=cure)
        wrong = np.flatnonzero(~np.isfinite(group.rewards))
        if wrong.size:
            raise ConfigError(
                f"is not finite ({describe_prompt(prompt)}; {wrong.size} such rewards in it)",
                field=f"rewards[{int(wrong[0])}]",
                value=float(group.rewards[wrong[0]]),
                cure="Mend the reward function; the run goes on with this prompt.",
            )
        return group


def describe_prompt(prompt: Prompt) -> str:
    """The prompt's number, for a message."""
    return f"group {prompt.position}, of prompt {prompt.index}"


async def _await(answer: Any) -> Any:
    try:
        return await answer
    except (
        KeyboardInterrupt,
        SystemExit,
    ) as error:  # raised here it would end the loop, under all other calls
        return error


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    loop.call_soon(loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()
