"""``ScoredGroup``: the completions of one prompt with their rewards; and ``Sampler``, which makes
them.

The user supplies the sampler: an inference server, or a model in this process. It needs no state:
it receives a :class:`Prompt`, whose position in the run it can use as the seed of its random
numbers.
"""

from __future__ import annotations

import hashlib
import io
import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Integer, Shaped

from headrace.batch.examples import Example, check_log_probs
from headrace.data.documents import places_in_use
from headrace.errors import (
    CacheCorruptError,
    ConfigError,
    HeadraceError,
    IndexOutOfRangeError,
    check_not_negative,
)
from headrace.store.cache import TokenCache
from headrace.store.npy import NPY_ERRORS, PYTHON_PARSER

_END_OF_IDS = 1 << 31
"""Ids, and versions of policies, are stored and trained on as int32."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt to complete.

    Attributes:
        position: Number of prompts before it in the run.
        index: Its number among the prompts.
        tokens: Its ids.
        partial: What an earlier call returned when it was aborted, to continue from; None: nothing.
    """

    position: int
    index: int
    tokens: Integer[np.ndarray, " n"]
    partial: ScoredGroup | None = None


class Prompts(Protocol):
    """Prompts by number: a list of arrays, or :class:`CachePrompts`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Integer[np.ndarray, " n"]: ...


class CachePrompts:
    """The documents of a token cache as prompts, without those that were removed from it: a cache
    of kind ``prompts``.

    Attributes:
        fingerprint: Fingerprint of the cache and of what was removed, which identifies the prompts.
        tokenizer: Fingerprint of the cache's tokenizer; None if the cache does not record it.
        vocab_size: Number of its ids; None likewise.

    Example:
        >>> import headrace.testing
        >>> len(CachePrompts(headrace.testing.tiny_cache(documents=7)))
        7
    """

    def __init__(self, cache: TokenCache) -> None:
        self.cache = cache
        self.fingerprint = cache.fingerprint
        if (removed := cache.removed()).total:
            self.fingerprint += f" without {removed.digest()[:32]}"
        self._documents = places_in_use(cache)
        self.tokenizer: str | None = cache.ledger.tokenizer.get("fingerprint")
        self.vocab_size: int | None = cache.ledger.tokenizer.get("vocab_size")

    def __len__(self) -> int:
        return self._documents.total

    def __getitem__(self, index: int, /) -> Integer[np.ndarray, " n"]:
        if not 0 <= index < len(self):
            cure = f"Prompts are numbered from 0 to {len(self) - 1}."
            raise IndexOutOfRangeError("is not a prompt", field="index", value=index, cure=cure)
        (document,) = self._documents.numbers(np.array([index])).tolist()
        return self.cache.document(document)


def digest_of_prompts(prompts: Prompts) -> str:
    """Digest of the ids of all prompts, in order."""
    digest = hashlib.sha256()
    for number in range(len(prompts)):
        ids = np.asarray(prompts[number], np.int64)
        digest.update(ids.size.to_bytes(8, "little") + ids.astype("<i8").tobytes())
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True, eq=False)
class ScoredGroup:
    """N completions of one prompt. Lists, and arrays of other libraries, become numpy's.

    Attributes:
        tokens: Each completion's ids, beginning with its prompt.
        rewards: One per completion.
        prompt_len: Tokens of the prompt, which are not trained on.
        log_probs: Log probabilities (natural logarithms, at most 0) of each completion's tokens
            under the policy that sampled them: of its last tokens, if there are fewer than tokens.
            0 for tokens that were not sampled.
        loss_masks: Instead of ``prompt_len``, the tokens of each completion to train on (several
            turns, tools): 1 or 0 for each token, including the prompt's.
        policy_version: Version of the policy that sampled each completion's tokens: one number, or
            one per token.
        extras: Columns by name: for each completion ``[n, ...]``, an entry for each token,
            including the prompt's, such as a teacher's most likely tokens. They become columns of
            the batch.
        truncated: Whether each completion was cut off at its limit of tokens, for the log; None:
            unknown.

    Raises:
        ConfigError: lists differ in length; no completion; ids or versions are not whole numbers
            from 0 to 2**31 - 1; an array does not match the tokens of its completion; a log
            probability that is above 0 or not finite.

    Example:
        >>> group = ScoredGroup(
        ...     [np.array([1, 2, 3]), np.array([1, 2])], np.array([1.0, 0.0]), prompt_len=1
        ... )
        >>> [e.loss_mask.tolist() for e in group.examples(np.array([0.5, -0.5]), 0)]
        [[0, 1, 1], [0, 1]]
    """

    tokens: Sequence[Integer[np.ndarray, " n"]]
    rewards: Float64[np.ndarray, " N"]
    prompt_len: int
    log_probs: Sequence[Float32[np.ndarray, " m"]] | None = None
    loss_masks: Sequence[Integer[np.ndarray, " n"]] | None = None
    policy_version: Sequence[Int32[np.ndarray, " n"]] | int = field(default=0)
    extras: Mapping[str, Sequence[Shaped[np.ndarray, "n ..."]]] = field(
        default_factory=dict[str, Any]
    )
    truncated: Bool[np.ndarray, " N"] | None = None

    def __post_init__(self) -> None:
        tokens = [
            _ids(f"tokens[{i}]", row)
            for i, row in enumerate(self.tokens if np.iterable(self.tokens) else [])
        ]
        if not tokens:
            raise ConfigError("holds no completion", field="tokens", value=0)
        prompt_len = _integer("prompt_len", self.prompt_len)
        rewards = _row("rewards", self.rewards, np.float64)
        check_not_negative("prompt_len", prompt_len)
        if rewards.size != len(tokens):
            raise ConfigError(
                f"must be one for each of {len(tokens)} completions",
                field="rewards",
                value=rewards.size,
            )
        values: dict[str, Any] = {"tokens": tokens, "rewards": rewards, "prompt_len": prompt_len}
        for name, check in (
            ("log_probs", _last),
            ("loss_masks", _mask),
            ("policy_version", _versions),
        ):
            field_value = getattr(self, name)
            if name == "policy_version" and not np.iterable(field_value):
                values[name] = _integer(name, field_value)
                _check_range(name, np.array([values[name]]))
            elif field_value is not None:
                values[name] = _each(name, field_value, tokens, check)
        values["extras"] = {
            name: _each(f"extras.{name}", rows, tokens, _column)
            for name, rows in self.extras.items()
        }
        if self.truncated is not None:
            values["truncated"] = _flags("truncated", self.truncated, len(tokens))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def dense(
        cls,
        tokens: Integer[np.ndarray, "N S"],
        log_probs: Float32[np.ndarray, "N G"],
        rewards: Float64[np.ndarray, " N"],
        prompt_len: int,
        *,
        policy_version: int = 0,
    ) -> ScoredGroup:
        """A group whose completions are equally long, as arrays."""
        return cls(
            list(tokens), rewards, prompt_len, list(log_probs), policy_version=policy_version
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest completion, with its prompt."""
        return max(t.size for t in self.tokens)

    def mask(self, i: int, *, oldest: int | None = None) -> np.ndarray:
        """The tokens of a completion that are trained on, uint8: with ``oldest``, none that an
        older policy sampled.
        """
        plain = (np.arange(self.tokens[i].size) >= self.prompt_len).astype(np.uint8)
        mask = plain if self.loss_masks is None else np.asarray(self.loss_masks[i])
        return mask if oldest is None else mask * (self.versions(i) >= oldest)

    def trains(self, *, oldest: int | None = None) -> bool:
        """Whether any token is trained on; the first of a completion never is, because nothing
        precedes it.

        Example:
            >>> ScoredGroup([np.array([1, 2])], np.array([1.0]), prompt_len=2).trains()
            False
        """
        return any(self.mask(i, oldest=oldest)[1:].any() for i in range(len(self.tokens)))

    def versions(self, i: int) -> np.ndarray:
        """Version of the policy that sampled each token of a completion; -1 for tokens that were
        not sampled.
        """
        version = self.policy_version
        sampled = (
            np.full(self.tokens[i].size, version)
            if isinstance(version, int)
            else np.asarray(version[i])
        )
        return np.where(self.mask(i) != 0, sampled, -1).astype(np.int32)

    @property
    def newest_version(self) -> int:
        """The newest policy among those that sampled the trained tokens; -1 if there is none."""
        return max(int(self.versions(i).max()) for i in range(len(self.tokens)))

    @property
    def oldest_version(self) -> int:
        """The oldest policy among those that sampled the trained tokens."""
        known_versions = [v[v >= 0] for v in map(self.versions, range(len(self.tokens)))]
        return int(min((v.min() for v in known_versions if v.size), default=0))

    def examples(
        self, advantages: Float64[np.ndarray, " N"], group: int, *, oldest: int | None = None
    ) -> list[Example]:
        """The completions as examples, weighted with their advantages.

        Args:
            advantages: One per completion.
            group: Number of the group in its batch.
            oldest: Tokens that an older policy sampled are not trained on; None: all are.
        """
        return [
            Example(
                ids,
                loss_mask=self.mask(i, oldest=oldest),
                weights=float(advantages[i]),
                log_probs=self._log_probs(i),
                reward=float(self.rewards[i]),
                group=group,
                policy_version=self.versions(i),
                extras={name: rows[i] for name, rows in self.extras.items()},
            )
            for i, ids in enumerate(self.tokens)
        ]

    def _log_probs(self, i: int) -> np.ndarray | None:
        if self.log_probs is None:
            return None
        values = self.log_probs[i]
        return np.concatenate([np.zeros(self.tokens[i].size - values.size, np.float32), values])

    def to_bytes(self) -> bytes:
        """The group as the bytes of an ``.npz`` file, exactly."""
        arrays = {
            "rewards": np.asarray(self.rewards, np.float64),
            "prompt_len": np.array(self.prompt_len),
        }
        versions = [self.versions(i) for i in range(len(self.tokens))]
        if self.truncated is not None:
            arrays["truncated"] = self.truncated
        ragged = {
            "tokens": self.tokens,
            "versions": versions,
            "log_probs": self.log_probs,
            "loss_masks": self.loss_masks,
            **{f"extras.{name}": rows for name, rows in self.extras.items()},
        }
        for name, rows in ragged.items():
            if rows is not None:
                arrays[name] = np.concatenate(rows)
                arrays[f"{name}.sizes"] = np.array([len(row) for row in rows], np.int64)
        file = io.BytesIO()
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> ScoredGroup:
        """The group of :meth:`to_bytes`; raises CacheCorruptError if the bytes are
        something else.
        """
        try:
            with PYTHON_PARSER, np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                names = [name.removesuffix(".sizes") for name in arrays if name.endswith(".sizes")]
                rows = {
                    name: np.split(arrays[name], np.cumsum(arrays[f"{name}.sizes"])[:-1])
                    for name in names
                }
                log_probs = rows.get("log_probs")
                loss_masks = rows.get("loss_masks")
                prompt_len = int(arrays["prompt_len"])
                extras = {
                    n.removeprefix("extras."): row
                    for n, row in rows.items()
                    if n.startswith("extras.")
                }
                cut = arrays.get("truncated")
                ids = rows["tokens"]
                rewards = arrays["rewards"]
                versions = rows["versions"]
                return cls(ids, rewards, prompt_len, log_probs, loss_masks, versions, extras, cut)
        except (ConfigError, *NPY_ERRORS) as error:
            raise CacheCorruptError(
                "is no stored group of rollouts", field="file", value=name
            ) from error


@dataclass(frozen=True, eq=False)
class PartialGroup:
    """What a sampler has of a group when it is stopped; it is stored, and sampling continues from
    it later.

    Attributes:
        group: The completions so far, in any state from which the sampler can continue; rewards are
            ignored.
    """

    group: ScoredGroup


class SamplerError(HeadraceError):
    """The sampler did not answer, or not in time. A sampler that raises it is called again, up to
    ``retries`` times.
    """


class Sampler(Protocol):
    """Completes prompts and scores the completions.

    It may have a method ``abort(prompt)``, plain or async, which makes a running call end soon:
    with the group, a :class:`PartialGroup`, or an error. Without it, an async call is cancelled.
    """

    def sample_and_score(
        self, prompt: Prompt, /
    ) -> ScoredGroup | PartialGroup | Awaitable[ScoredGroup | PartialGroup]:
        """A group of completions of one prompt, with rewards. May be called from several threads,
        and be async.
        """
        ...


def _integer(field: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError("must be a whole number", field=field, value=value) from None


def _row(field: str, values: Any, dtype: type[np.generic] | None = None) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # what the type cannot hold becomes infinite
            row = np.asarray(values, dtype)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"must be a row of numbers ({error})", field=field) from error
    if row.ndim != 1:
        raise ConfigError("must be a row of numbers: one axis", field=field, value=row.shape)
    return row


def _as_integers(field: str, row: np.ndarray, first: int = 0) -> np.ndarray:
    if row.dtype.kind not in "iu":
        raise ConfigError(
            "must be whole numbers",
            field=field,
            value=row.dtype.name,
            cure="Give an array of integers.",
        )
    _check_range(field, row, first)
    # With other integers, numpy converts uint64 to floats.
    return row.astype(np.int64) if row.dtype == np.uint64 else row


def _check_range(field: str, row: np.ndarray, first: int = 0) -> None:
    """Raises ConfigError for a number that int32 cannot hold, or below the first."""
    wrong = np.flatnonzero((row < first) | (row >= _END_OF_IDS))
    if wrong.size:
        at = int(wrong[0])
        raise ConfigError(
            f"must be from {first} to 2**31 - 1",
            field=f"{field}[{at}]",
            value=int(row[at]),
            cure="Look at what the sampler returns.",
        )


def _ids(field: str, values: Any) -> np.ndarray:
    row = _row(field, values)
    if row.size == 0:
        raise ConfigError("must be a row of at least one token", field=field, value=0)
    return _as_integers(field, row)


def _each(
    name: str, values: Any, tokens: list[np.ndarray], check: Callable[[str, Any, int], np.ndarray]
) -> list[np.ndarray]:
    """Checks arrays that have an entry for each token of a completion."""
    rows = list(values) if np.iterable(values) else []
    if len(rows) != len(tokens):
        raise ConfigError(
            f"must be one for each of {len(tokens)} completions", field=name, value=len(rows)
        )
    return [
        check(f"{name}[{i}]", row, ids.size)
        for i, (row, ids) in enumerate(zip(rows, tokens, strict=True))
    ]


def _last(field: str, values: Any, size: int) -> np.ndarray:
    row = _row(field, values, np.float32)
    if row.size > size:
        raise ConfigError(f"are more than the {size} tokens", field=field, value=row.size)
    check_log_probs(field, row)
    return row


def _sized(field: str, row: np.ndarray, size: int) -> np.ndarray:
    if row.size != size:
        cure = "One value for each token, the prompt included."
        raise ConfigError(
            f"are not as many as the {size} tokens", field=field, value=row.size, cure=cure
        )
    return row


def _flags(field: str, values: Any, size: int) -> np.ndarray:
    row = _row(field, values)
    if row.size != size or row.dtype != bool:
        cure = "Give an array of bool."
        problem = f"are not {size} times True or False, one for each completion"
        raise ConfigError(problem, field=field, value=row.tolist(), cure=cure)
    return row


def _mask(field: str, values: Any, size: int) -> np.ndarray:
    row = _sized(field, _row(field, values), size)
    other = row[(row != 0) & (row != 1)]
    if other.size:
        raise ConfigError("must be 0 or 1 for each token", field=field, value=other.tolist()[0])
    return row.astype(np.uint8)


def _column(field: str, values: Any, size: int) -> np.ndarray:
    column = np.asarray(values)
    if column.ndim < 1 or len(column) != size or column.dtype.kind not in "biuf":
        cure = "One number, or one row of as many numbers, for each token, the prompt included."
        raise ConfigError(
            f"are not numbers of the {size} tokens", field=field, value=column.shape, cure=cure
        )
    return column


def _versions(field: str, values: Any, size: int) -> np.ndarray:
    # -1: was not sampled
    return _sized(field, _as_integers(field, _row(field, values), -1), size)
