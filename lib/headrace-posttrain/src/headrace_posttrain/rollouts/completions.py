"""``CompletionsSampler``: groups from a server with OpenAI's completions API, such as vLLM and
SGLang.

One request per group: ``POST <url>/completions`` with the prompt's ids, ``n``, ``logprobs`` and
``return_token_ids``. Text is never tokenized again: training uses the ids that the server sampled.
They are, in each choice::

    token_ids             vLLM (vllm-project/vllm#22587), SGLang (sgl-project/sglang#30917)
    response_token_ids    what SGLang is about to call them (sgl-project/sglang#38459)
    logprobs.tokens       vLLM before that, asked by return_tokens_as_token_ids: "token_id:17"

Both servers return log probabilities in ``logprobs.token_logprobs``. They must be those of the
policy that samples: with a temperature other than 1, or ``top_p`` and the like, vLLM returns these
only if it was started with ``--logprobs-mode processed_logprobs``.

Price: one connection per request. A request that is cancelled (``stragglers="abort"``,
``timeout_s``) is closed at once, which tells the server to stop. Proxies of the environment are not
used.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec
import numpy as np
from jaxtyping import Float32, Integer

from headrace.errors import ConfigError, check_at_least
from headrace.store.http_messages import Head, read_body, read_head
from headrace_posttrain.rollouts.groups import Prompt, SamplerError, ScoredGroup

_TEMPORARY = (408, 409, 425, 429)  # and all from 500 on
_CURES = {
    400: "Look at the server's message, and at options, model and max_tokens.",
    401: "Give headers={'Authorization': 'Bearer ...'}.",
    403: "Give headers={'Authorization': 'Bearer ...'}.",
    404: "Give the URL up to /v1, as in http://localhost:8000/v1, and a model that the server has.",
    429: "Lower in_flight.",
}
_OPTIONS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
# An answer has, for each token of the prompt and the completion, its text, id and log probability,
# and those of as many others as were asked for.
_BYTES_OF_TOKEN = 1024
_BYTES_OF_ANSWER = 1 << 20
_Id: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _LogProbs(msgspec.Struct):
    token_logprobs: list[float]
    tokens: list[str] = []


class _Choice(msgspec.Struct):
    """What is read of a choice of the answer, with its types."""

    index: int
    logprobs: _LogProbs
    finish_reason: str
    text: str | None = None
    token_ids: list[_Id] | None = None
    response_token_ids: list[_Id] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


@dataclass(frozen=True, eq=False)
class Completion:
    """What the server sampled, for the function that scores it.

    Attributes:
        tokens: Ids after the prompt.
        log_probs: Log probability of each.
        text: Text from the server.
        finish_reason: ``stop``, or ``length`` if it was cut off.
    """

    tokens: Integer[np.ndarray, " n"]
    log_probs: Float32[np.ndarray, " n"]
    text: str
    finish_reason: str


Score: TypeAlias = Callable[[Prompt, Completion], "float | Awaitable[float]"]


class CompletionsSampler:
    """A sampler that uses a server; see the module.

    Args:
        url: URL of the server's API, e.g. ``http://localhost:8000/v1``.
        score: Computes the reward of a completion; may be async, and is called from a thread if it
            is not.
        group_size: Completions per prompt.
        max_tokens: Largest number of tokens in a completion.
        model: Its name; None: the server's only one (vLLM).
        options: Further fields of the request, e.g. ``{"temperature": 0.8, "stop_token_ids":
            [2]}``.
        headers: Headers of the request, e.g. ``{"Authorization": "Bearer ..."}``.
        timeout_s: Seconds that an answer may take.

    Attributes:
        version: Version of the server's weights: set it when the server has new ones. A group has
            the version that was set when its request was sent.

    Raises:
        ConfigError: an invalid URL or number.

    Example:
        >>> sampler = CompletionsSampler(
        ...     "http://localhost:8000/v1",
        ...     lambda prompt, done: float(done.text == "4"),
        ...     group_size=8,
        ...     max_tokens=64,
        ... )
        >>> sampler.version = 1
    """

    def __init__(
        self,
        url: str,
        score: Score,
        *,
        group_size: int,
        max_tokens: int,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        check_at_least("group_size", group_size)
        check_at_least("max_tokens", max_tokens)
        if not timeout_s > 0:
            raise ConfigError(
                "must be positive", field="timeout_s", value=timeout_s, cure="In seconds."
            )
        self.url = f"{url.rstrip('/')}/completions"
        self._parts = _split(url)
        self.score = score
        self.group_size = group_size
        self.timeout_s = timeout_s
        named = {} if model is None else {"model": model}
        self._request = {
            **named,
            "max_tokens": max_tokens,
            "n": group_size,
            "logprobs": 1,
            **_OPTIONS,
            **(options or {}),
        }
        self._headers = dict(headers or {})
        self.version = 0

    async def sample_and_score(self, prompt: Prompt) -> ScoredGroup:
        """A group of a prompt's completions.

        Raises:
            SamplerError: the server cannot be reached, does not answer in time or is overloaded:
                the call is repeated, up to ``RLSettings.retries`` times.
            ConfigError: the server refuses the request, or returns no ids or log probabilities; a
                reward is not a number.
        """
        version = self.version
        completions = await self.complete(prompt.tokens)
        rewards = [await self._reward(prompt, completion) for completion in completions]
        return ScoredGroup(
            [np.concatenate([prompt.tokens, completion.tokens]) for completion in completions],
            np.array(rewards, np.float64),
            prompt.tokens.size,
            [completion.log_probs for completion in completions],
            policy_version=version,
            truncated=np.array(
                [completion.finish_reason == "length" for completion in completions]
            ),
        )

    async def complete(self, tokens: Integer[np.ndarray, " n"]) -> list[Completion]:
        """``group_size`` completions of ids, for your own ``sample_and_score`` with several turns.

        Raises:
            SamplerError: as for :meth:`sample_and_score`.
            ConfigError: likewise.
        """
        body = json.dumps({"prompt": np.asarray(tokens).tolist(), **self._request}).encode()
        try:
            async with asyncio.timeout(self.timeout_s):
                status, answer = await self._post(body, self._most_bytes(len(tokens)))
        except TimeoutError:
            problem = f"has not answered within {self.timeout_s:g} s"
            cure = "Raise timeout_s, lower in_flight or max_tokens, or look at the server."
            raise SamplerError(problem, field="url", value=self.url, cure=cure) from None
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            problem = f"cannot be reached, or broke off ({type(error).__name__}: {error})"
            cure = "Start the server, or give the url that it prints."
            raise SamplerError(problem, field="url", value=self.url, cure=cure) from error
        if status != 200:
            raise self._refusal(status, answer)
        return self._completions(answer)

    def _most_bytes(self, prompt_tokens: int) -> int:
        """Bytes that an answer may have."""
        tokens = self.group_size * (prompt_tokens + int(self._request["max_tokens"]))
        return _BYTES_OF_ANSWER + _BYTES_OF_TOKEN * tokens * (1 + int(self._request["logprobs"]))

    async def _post(self, body: bytes, most: int) -> tuple[int, bytes]:
        """Status and body, of at most so many bytes, of the answer to one request, on its own
        connection.
        """
        parts = self._parts
        host = parts.hostname or ""
        is_secure = parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        path = f"{parts.path.rstrip('/')}/completions" + (f"?{parts.query}" if parts.query else "")
        json_only = {"host": parts.netloc.rpartition("@")[2], "content-type": "application/json"}
        head = Head(f"POST {path} HTTP/1.1", {**json_only, **self._headers}).with_length(len(body))
        reader, writer = await asyncio.open_connection(host, port, ssl=is_secure or None)
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            answer = await read_head(reader)
            if answer is None:
                raise EOFError("the connection was closed without an answer")
            return int(answer.first_line.split(" ", 2)[1]), await read_body(
                reader, answer, to_end=True, most=most
            )
        finally:
            writer.close()

    def _refusal(self, status: int, answer: bytes) -> SamplerError | ConfigError:
        text = " ".join(answer[:2000].decode(errors="replace").split())[:300]
        kind = SamplerError if status >= 500 or status in _TEMPORARY else ConfigError
        cure = _CURES.get(
            status, "Look at the server's log." if kind is SamplerError else _CURES[400]
        )
        return kind(
            f"answered with HTTP {status} ({text or 'no message'})",
            field="url",
            value=self.url,
            cure=cure,
        )

    def _completions(self, answer: bytes) -> list[Completion]:
        try:
            choices = msgspec.json.decode(answer, type=_Answer).choices
            choices.sort(key=lambda choice: choice.index)
            completions = [_completion(choice) for choice in choices]
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            cure = (
                "Use a vLLM or an SGLang that knows return_token_ids; see"
                " headrace_posttrain.rollouts.completions."
            )
            problem = (
                f"gave no completions with ids and log probabilities ({type(error).__name__}:"
                f" {error})"
            )
            raise ConfigError(problem, field="url", value=self.url, cure=cure) from error
        if any(completion.finish_reason == "abort" for completion in completions):
            cure = "It may be taking new weights: allow retries."
            raise SamplerError("aborted the request", field="url", value=self.url, cure=cure)
        indices = [choice.index for choice in choices]
        if len(set(indices)) != len(indices):
            problem = f"gave two completions of one index ({indices})"
            cure = "Look at the server, or at what is between it and this process."
            raise ConfigError(problem, field="url", value=self.url, cure=cure)
        if len(completions) != self.group_size:
            problem = f"gave {len(completions)} completions, not {self.group_size}"
            cure = "Leave n out of options, and use a server that supports it."
            raise ConfigError(problem, field="url", value=self.url, cure=cure)
        return completions

    async def _reward(self, prompt: Prompt, completion: Completion) -> float:
        is_async = inspect.iscoroutinefunction(self.score)
        score = self.score
        reward: Any = (
            score(prompt, completion)
            if is_async
            else await asyncio.to_thread(score, prompt, completion)
        )
        if inspect.isawaitable(reward):
            reward = await reward
        try:
            return float(reward)
        except (TypeError, ValueError) as error:
            raise ConfigError("must return a number", field="score", value=reward) from error


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and (parts.port is None or parts.port)
        ):
            return parts
    except ValueError:  # a port that is none
        pass
    raise ConfigError(
        "is no URL of a server",
        field="url",
        value=url,
        cure="Give one as http://localhost:8000/v1.",
    )


def _completion(choice: _Choice) -> Completion:
    """One completion of the answer."""
    log_probs = choice.logprobs.token_logprobs
    tokens = choice.response_token_ids if choice.token_ids is None else choice.token_ids
    if tokens is None:
        tokens = [_id_in(text) for text in choice.logprobs.tokens]
    if len(tokens) != len(log_probs):
        raise ValueError(f"{len(tokens)} ids, {len(log_probs)} log probabilities")
    ids = np.array(tokens, np.int64).reshape(-1)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        values = np.array(log_probs, np.float32)
    if not np.isfinite(values).all():
        raise ValueError("log probabilities that are not finite")
    return Completion(ids, values, choice.text or "", choice.finish_reason)


def _id_in(text: str) -> int:
    """17 of "token_id:17"."""
    digits = text.removeprefix("token_id:")
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"a token {text[:40]!r} without its id")
    return msgspec.convert(int(digits), _Id)
