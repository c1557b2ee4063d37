"""``least_consumed`` if the lengths of samples are not known in advance.

:func:`build_interleaved_dataset` reads streaming sources, and :class:`LeastConsumed` is the state,
written as JSON in the format of nanoschnack's checkpoints::

    {
        "datasets": [{"spec": "docs", "row_offset": 123, "token_offset": 4567}, ...],
        "seeded_specs": [...],
        "exhausted_specs": [...],
        "tie_rng": [...],
    }

Ties are broken as in :mod:`headrace_compat.least_consumed`. Unlike in the original, the state of
the tie draw is saved, so a resumed run continues as if it had not stopped; and a new source starts
at the smallest count of the sources in use, even if an unused one in the checkpoint is far behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from headrace.errors import ConfigError
from headrace_compat.least_consumed import least

Sample = TypeVar("Sample")


class LeastConsumed:
    """Live counts of a streaming mixture: which source is next, and the state to continue from.

    Args:
        specs: Names of the sources in use, each once.
        seed: Seed of the tie draw, unless the state contains its state.
        state: The result of :meth:`resume_state`, or a checkpoint of nanoschnack; None for a new
            run.
        baseline: A new source starts at the smallest count of these: ``"live"`` (sources in use
            that are not used up) or ``"saved"`` (all in the checkpoint, as in the original).

    Raises:
        ConfigError: a name twice, none at all, or a state that cannot be read.

    Example:
        >>> mix = LeastConsumed(
        ...     ["a", "b"], state={"datasets": [{"spec": "a", "row_offset": 3, "token_offset": 40}]}
        ... )
        >>> mix.tokens, mix.seeded
        ({'a': 40, 'b': 40}, ['b'])
        >>> mix.consume("b", 7)
        >>> mix.pick()
        'a'
    """

    def __init__(
        self,
        specs: Sequence[str],
        seed: int = 42,
        state: Mapping[str, Any] | None = None,
        baseline: str = "live",
    ) -> None:
        if not specs or len(set(specs)) != len(specs):
            raise ConfigError(
                "must name at least one source, each once", field="specs", value=list(specs)
            )
        if baseline not in ("live", "saved"):
            raise ConfigError(
                "is no baseline", field="baseline", value=baseline, cure="Use 'live' or 'saved'."
            )
        self.specs = tuple(specs)
        self._rng = random.Random(seed)
        self.rows, tokens, seeded = _read_state(state)
        self.tokens: dict[str, int] = dict(tokens)
        for spec in (*specs, *self.rows):
            self.rows.setdefault(spec, 0)
            self.tokens.setdefault(spec, 0)
        exhausted = _exhausted(state)
        self._active = [d for d, spec in enumerate(specs) if spec not in exhausted] or list(
            range(len(specs))
        )
        present = [
            tokens[s] for s in (tokens if baseline == "saved" else self._live()) if s in tokens
        ]
        smallest = min(
            present or tokens.values(), default=0
        )  # no token offsets at all: an old state, all start at 0
        new = {spec for spec in specs if spec not in tokens} if smallest > 0 else set[str]()
        for spec in new | (seeded & self.tokens.keys()):
            self.tokens[spec] = max(self.tokens[spec], smallest)
        self.seeded: list[str] = sorted(seeded | new)
        """Sources that did not start at 0 but at the smallest count of the others."""
        self._started_rows = dict(self.rows)
        self._started_tokens = dict(self.tokens)
        self._resume_ties(state)

    def _live(self) -> list[str]:
        """The sources that still have samples; all of them if none has, because they would then
        start over.
        """
        return [self.specs[d] for d in self._active] or list(self.specs)

    def _check_spec(self, spec: str) -> str:
        if spec not in self.specs:
            cure = f"Use one of {self.specs}."
            raise ConfigError("is no source of this mixture", field="spec", value=spec, cure=cure)
        return spec

    def _resume_ties(self, state: Mapping[str, Any] | None) -> None:
        saved = (state or {}).get("tie_rng")
        if saved is None:
            return
        try:
            self._rng.setstate((saved[0], tuple(saved[1]), saved[2]))
        except (TypeError, ValueError, IndexError, KeyError) as e:
            raise ConfigError(
                "is no state of the tie draw", field="tie_rng", value=type(saved).__name__
            ) from e

    def pick(self) -> str | None:
        """The source of the next sample; None when all are exhausted. Call it once per sample: ties
        use up draws.
        """
        if not self._active:
            return None
        return self.specs[least([self.tokens[s] for s in self.specs], self._active, self._rng)]

    def consume(self, spec: str, tokens: int) -> None:
        """Count one sample of ``tokens`` tokens.

        Raises:
            ConfigError: an unknown source; a negative number of tokens.
        """
        if tokens < 0:
            raise ConfigError(
                "cannot be negative",
                field="tokens",
                value=tokens,
                cure="Count the sample's tokens.",
            )
        self.rows[self._check_spec(spec)] += 1
        self.tokens[spec] += tokens

    def exhaust(self, spec: str) -> None:
        """Marks ``spec`` as having no samples left; repeated calls have no effect.

        Raises:
            ConfigError: no source of this mixture.
        """
        index = self.specs.index(self._check_spec(spec))
        self._active = [d for d in self._active if d != index]

    def resume_state(self) -> dict[str, Any]:
        """The state as JSON: sources in use in their order, then the others by name, which are
        kept.

        A source not in use is written with the smallest count of those that still have samples, and
        listed in ``seeded_specs``: when it returns, it is neither drawn alone until it has caught
        up nor left waiting.
        """
        smallest = min(self.tokens[s] for s in self._live())
        others = sorted(set(self.tokens) - set(self.specs))
        raised = set(others) if smallest > 0 else set[str]()
        counts = {**self.tokens, **dict.fromkeys(raised, smallest)}
        version, words, gauss = self._rng.getstate()
        state: dict[str, Any] = {
            "datasets": [
                {"spec": s, "row_offset": self.rows[s], "token_offset": counts[s]}
                for s in (*self.specs, *others)
            ],
            "tie_rng": [version, list(words), gauss],
        }
        if raised or self.seeded:
            state["seeded_specs"] = sorted(raised | set(self.seeded))
        if len(self._active) < len(self.specs):
            state["exhausted_specs"] = [
                s for d, s in enumerate(self.specs) if d not in self._active
            ]
        return state

    def consumed(self) -> dict[str, tuple[int, int]]:
        """Rows and tokens of each source in use since the start of this run, for the sum over
        ranks.
        """
        return {
            s: (self.rows[s] - self._started_rows[s], self.tokens[s] - self._started_tokens[s])
            for s in self.specs
        }

    def sum_over_ranks(self, consumed: Iterable[Mapping[str, tuple[int, int]]]) -> None:
        """Set the counts to those of all ranks together.

        Args:
            consumed: :meth:`consumed` of every rank, including this one. All ranks must have
                started from one state.

        Raises:
            ConfigError: a rank with other sources.

        Example:
            >>> ranks = [LeastConsumed(["a"]) for _ in range(2)]
            >>> for rank, n in zip(ranks, (5, 7)):
            ...     rank.consume("a", n)
            >>> everyone = [rank.consumed() for rank in ranks]
            >>> for rank in ranks:
            ...     rank.sum_over_ranks(everyone)
            >>> [rank.tokens for rank in ranks]
            [{'a': 12}, {'a': 12}]
        """
        everyone = list(consumed)
        for rank, counts in enumerate(everyone):
            if set(counts) != set(self.specs):
                cure = f"Expected {self.specs}."
                raise ConfigError(
                    "has other sources", field=f"consumed[{rank}]", value=sorted(counts), cure=cure
                )
        for s in self.specs:
            self._started_rows[s] += sum(c[s][0] for c in everyone)
            self._started_tokens[s] += sum(c[s][1] for c in everyone)
            self.rows[s], self.tokens[s] = self._started_rows[s], self._started_tokens[s]


def build_interleaved_dataset(
    sources: Mapping[str, Iterable[Sample]],
    count_tokens: Callable[[Sample], int],
    mix: LeastConsumed | None = None,
    *,
    token_counts: Mapping[str, int] | None = None,
    seed: int = 42,
) -> Iterator[tuple[str, Sample]]:
    """Samples of several sources, always from the one with the fewest tokens so far.

    Args:
        sources: Samples by name. When resuming, they must start after the ``row_offset`` rows
            already seen.
        count_tokens: Counts the tokens of a sample.
        mix: Live counts, updated before a sample is returned; read its ``resume_state`` at a
            checkpoint.
        token_counts: Instead of ``mix``: tokens consumed from each source so far.
        seed: Seed of the tie draw, without ``mix``.

    Yields:
        (name, sample).

    Raises:
        ConfigError: both ``mix`` and ``token_counts``; sources other than those of ``mix``; a count
            that is negative or of a name that is no source.

    Example:
        >>> texts = {"a": ["aaa", "aaa"], "b": ["b", "b", "b"]}
        >>> [name for name, _ in build_interleaved_dataset(texts, len, seed=1)]
        ['a', 'b', 'b', 'b', 'a']
    """
    if mix is not None and token_counts is not None:
        raise ConfigError(
            "is part of mix",
            field="token_counts",
            value=dict(token_counts),
            cure="Give one of the two.",
        )
    if mix is None:
        counts = (
            token_counts or {}
        )  # a source without a count is new: it starts at the smallest of the others
        for spec, n in counts.items():
            if spec not in sources or n < 0:
                what = "is no source" if spec not in sources else "cannot be negative"
                cure = f"Give tokens of {sorted(sources)}."
                raise ConfigError(what, field=f"token_counts[{spec!r}]", value=n, cure=cure)
        state = {"datasets": [{"spec": s, "token_offset": int(n)} for s, n in counts.items()]}
        mix = LeastConsumed(list(sources), seed, state)
    if set(sources) != set(mix.specs):
        raise ConfigError(
            "are not those of mix",
            field="sources",
            value=sorted(sources),
            cure=f"Expected {mix.specs}.",
        )
    return _interleave(sources, count_tokens, mix)


def _interleave(
    sources: Mapping[str, Iterable[Sample]],
    count_tokens: Callable[[Sample], int],
    mix: LeastConsumed,
) -> Iterator[tuple[str, Sample]]:
    streams = {spec: iter(sources[spec]) for spec in mix.specs}
    while (spec := mix.pick()) is not None:
        sample = next(streams[spec], _END)
        if sample is _END:
            mix.exhaust(spec)
            continue
        mix.consume(spec, count_tokens(cast(Sample, sample)))
        yield spec, cast(Sample, sample)


_END = object()


def _read_state(state: Mapping[str, Any] | None) -> tuple[dict[str, int], dict[str, int], set[str]]:
    """Rows, tokens (of entries that have any) and seeded sources of a checkpoint."""
    rows: dict[str, int] = {}
    tokens: dict[str, int] = {}
    try:
        for entry in (state or {}).get("datasets", ()):
            if entry["spec"] in rows:
                raise ValueError(f"{entry['spec']} twice")
            rows[entry["spec"]] = int(entry.get("row_offset") or 0)
            if "token_offset" in entry:
                tokens[entry["spec"]] = int(entry["token_offset"] or 0)
        if min((*rows.values(), *tokens.values()), default=0) < 0:
            raise ValueError("a negative offset")
        seeded = set(cast(Iterable[str], (state or {}).get("seeded_specs", ())))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        cure = 'It looks like {"datasets": [{"spec": "docs", "row_offset": 0, "token_offset": 0}]}.'
        raise ConfigError(
            f"is no state of this mixture ({e})", field="resume_state", value=state, cure=cure
        ) from e
    return rows, tokens, seeded


def _exhausted(state: Mapping[str, Any] | None) -> set[str]:
    names = (state or {}).get("exhausted_specs", ())
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError("must be a list of names", field="exhausted_specs", value=names)
    return set(names)


def cap_resume_rows(rows: Mapping[str, int], totals: Mapping[str, int]) -> dict[str, int]:
    """Row offsets within the current pass: subtracts full passes that all sources have made, and
    caps the rest.

    Args:
        rows: Rows seen of each source.
        totals: Rows that each source has; sources that are not named are left alone.

    Example:
        >>> cap_resume_rows({"a": 25, "b": 13, "old": 3}, {"a": 10, "b": 12})
        {'a': 10, 'b': 1, 'old': 3}
    """
    capped = {s: totals[s] for s in rows if totals.get(s)}
    passes = min((rows[s] // n for s, n in capped.items()), default=0)
    return {
        s: min(r - passes * capped[s], capped[s]) if s in capped else r for s, r in rows.items()
    }
