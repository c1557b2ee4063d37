"""Counting tokens instead of rows in weights, budgets and sizes, if rows hold different numbers of
tokens: of all rows of a component, and of its examples in the order in which they are drawn.

Packed rows are not quite full, so the number of rows does not determine the number of tokens.
``unit: content_tokens`` counts the tokens of documents, and ``unit: trained_tokens`` the trained
labels; ``examples`` and ``tokens`` count rows, and tokens with padding. The guarantees of each part
of a mixture:

* **weights** (``quota``): shares of tokens, turned into shares of rows by the tokens of a row on
  average (:func:`~headrace.mix.shares.row_shares`). No state, any step at once; exact at the end of
  each epoch of a source. In between, the rows drawn so far hold more or less than the average: like
  a sample without replacement, by a standard deviation of ``s * sqrt(n * (1 - n / N))`` tokens
  after n of the N rows of an epoch, s being that of a row.
* **budgets** (``max_tokens``): the rows of a source are added up in its order, once, to the last
  row that fits.
* **stages** with a number of tokens: as many steps as needed, with the rows of all sources added up
  in their orders.

All of them depend only on the step.

A packed row has the tokens of its documents (**content**), and some of these are trained on
(**trained**: the labels that count in the loss, none after the last token of a document, and as a
mask says). Both follow from the pack plan, except that a mask is read once. A row cut from a stream
of tokens is full.

An epoch has the same rows in every order, so its number of tokens is fixed. Within an epoch, tokens
are added up along the order, as far as needed. Sums that took long (labels of a mask, pages of an
order, the steps at which stages end) are saved with the cache's plans
(:mod:`headrace.data.kept_sums`) for other processes.

Price, measured with 1.3e8 rows: 1 or 2 bytes per row and 0.04 us to count it; 0.15 to 0.4 us for
each row that is added up along an order, at most the rows of one epoch, and almost nothing once the
sums are saved; one pass over the leaf of a mask, once.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer, UInt8

from headrace.data.async_dataset import AsyncDataset, run_blocking
from headrace.data.columns import MASK, WEIGHT, of_batch
from headrace.data.dataset import PlannedDataset
from headrace.data.kept_sums import load_or_add_up
from headrace.data.rows import (
    Rows,
    RowSource,
    add_ends_by_token,
    ends_by_token,
    ends_of,
    read_columns,
    read_rows,
    segments_of,
)
from headrace.data.token_seq import stored_dataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.metrics import ReadStats
from headrace.mix.plan import Plan
from headrace.mix.policy import MixingPolicy
from headrace.mix.schedule import MAX_STEP, CountedTokens
from headrace.mix.stages import Stage
from headrace.order.intervals import chunks_of
from headrace.pack.saved_plans import PLANS_FOLDER
from headrace.store import files

_CHUNK = 1 << 14  # rows that are looked at together
_STRETCH = 1 << 14  # examples between two sums
_PAGE = 256  # stretches that are added up together
_SAVED_STRETCHES = 64  # stretches of a page whose sums are kept
_MIN_LOOKUP = (
    1 << 10
)  # rows that are looked up at least: with many sources, few are requested at a time
_READ = 1 << 24  # places of rows whose labels, once they were read, are kept
_VERSION = 1  # of what is kept


class RowTokens:
    """Tokens of the rows of one pass over a component.

    Args:
        dataset: The component; its shuffle does not matter.
        counted: ``content`` or ``trained``.
        name: Name of the component, for errors.

    Raises:
        ConfigError: it is endless; none of its tokens is counted.

    Attributes:
        rows: Rows of a pass.
        counted: What is counted.
        total: Tokens of these.
        each: Tokens per row, if all rows have the same number; else None.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.packed import PackedTokenDataset
        >>> packed = PackedTokenDataset(headrace.testing.tiny_cache(documents=50), seq_len=64)
        >>> content, trained = RowTokens(packed, "content"), RowTokens(packed.shuffle(0), "trained")
        >>> content.total == packed.plan.counts.packed_tokens, content.rows == len(packed)
        (True, True)
        >>> untrained = content.total - trained.total
        >>> untrained == packed.plan.items.size.size  # the last token of a document has no label
        True
    """

    def __init__(self, dataset: PlannedDataset, counted: CountedTokens, name: str = "") -> None:
        stored = _as_stored(dataset)
        if not stored.is_finite():
            cure = "Leave out repeat()."
            raise ConfigError(
                "has no end, so its tokens cannot be counted", field=f"components.{name}", cure=cure
            )
        self.rows = len(stored)
        self.counted = counted
        self._of_source: list[np.ndarray] = []
        full = not any(source.max_segments for source in stored.sources)
        read = counted == "trained" and (_masked(stored) or stored.splits_documents)
        self.each: int | None = None
        if full and not read:
            self.each = stored.seq_len - (counted == "trained")
            self.total = self.rows * self.each
        else:
            if read:
                _check_there(stored, name)
            self._of_source = (
                _read(stored)
                if read
                else [_count_by_packs(source, counted) for source in stored.sources]
            )
            self.total = sum(
                int(self.of(stored.locate(np.arange(first, stop))).sum())
                for first, stop in chunks_of(self.rows, _CHUNK)
            )
        if self.total == 0:
            raise ConfigError(
                "has no token that counts",
                field=f"components.{name}",
                value=stored.sources[0].name,
                cure="Leave it out, or look at its mask (loss_mask), or count unit:"
                " content_tokens.",
            )

    def of(self, located: Rows) -> Int64[np.ndarray, " n"]:
        """Tokens of some rows."""
        if self.each is not None:
            return np.full(located.row.size, self.each)
        if len(self._of_source) == 1:
            return self._of_source[0][located.row].astype(np.int64)
        tokens = np.empty(located.row.size, np.int64)
        for number, of_rows in enumerate(self._of_source):
            of_source = located.source == number
            tokens[of_source] = of_rows[located.row[of_source]]
        return tokens


class OrderedTokens:
    """Tokens of a component's examples in the order of drawing: a
    :class:`~headrace.mix.plan.TokensInOrder`.

    Args:
        dataset: The component in its order, pass after pass.
        rows: Tokens of its rows.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.packed import PackedTokenDataset
        >>> packed = PackedTokenDataset(
        ...     headrace.testing.tiny_cache(documents=50), seq_len=64
        ... ).shuffle(0)
        >>> tokens = OrderedTokens(packed.repeat(), RowTokens(packed, "content"))
        >>> n = len(packed)
        >>> (
        ...     tokens.count_first(3 * n) == 3 * tokens.rows.total,
        ...     tokens.fitting(tokens.count_first(n + 2)) == n + 2,
        ... )
        (True, True)
    """

    def __init__(self, dataset: PlannedDataset, rows: RowTokens) -> None:
        self.dataset = dataset
        self.rows = rows
        # By epoch and page: tokens of the page before each of its stretches, and in all. Threads
        # that meet store equal values.
        self._pages: dict[tuple[int, int], Int64[np.ndarray, " s1"]] = {}
        self._latest: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))
        self._looked_up: tuple[int, np.ndarray] = (
            0,
            np.zeros(0, np.int64),
        )  # the first example, and tokens from it on

    def between(self, first: int, stop: int) -> Int64[np.ndarray, " n"]:
        """Tokens of each of the examples ``first .. stop``; later ones are looked up too, for calls
        that go on.
        """
        if self.rows.each is not None:
            return np.full(stop - first, self.rows.each)
        if stop - first >= _MIN_LOOKUP:
            return self.rows.of(self.dataset.locate(np.arange(first, stop)))
        begin, tokens = self._looked_up
        if not begin <= first <= stop <= begin + tokens.size:
            last = self.dataset.length
            until = (
                first + _MIN_LOOKUP if last is None else max(stop, min(first + _MIN_LOOKUP, last))
            )
            begin = first
            tokens = self.rows.of(self.dataset.locate(np.arange(first, until)))
            self._looked_up = (begin, tokens)
        return tokens[first - begin : stop - begin]

    def count_first(self, examples: int) -> int:
        """Tokens of the first ``examples`` examples together."""
        if self.rows.each is not None:
            return examples * self.rows.each
        epoch, row = divmod(examples, self.rows.rows)
        stretch, offset = divmod(row, _STRETCH)
        page, nth = divmod(stretch, _PAGE)
        tokens = sum(int(self._page(epoch, number)[-1]) for number in range(page))
        tokens += int(self._page(epoch, page)[nth]) if nth else 0
        return (
            epoch * self.rows.total
            + tokens
            + (int(self._running(epoch, stretch)[offset - 1]) if offset else 0)
        )

    def fitting(self, tokens: int) -> int:
        """Largest number of first examples with at most ``tokens`` tokens together."""
        if self.rows.each is not None:
            return tokens // self.rows.each
        epoch, tokens_left = divmod(tokens, self.rows.total)
        page = 0
        last = (self.rows.rows - 1) // (_STRETCH * _PAGE)
        while page < last and self._page(epoch, page)[-1] <= tokens_left:
            tokens_left -= int(self._page(epoch, page)[-1])
            page += 1
        sums = self._page(epoch, page)
        nth = min(int(np.searchsorted(sums, tokens_left, side="right")), sums.size - 1) - 1
        stretch = page * _PAGE + nth
        row = int(
            np.searchsorted(self._running(epoch, stretch), tokens_left - sums[nth], side="right")
        )
        return epoch * self.rows.rows + stretch * _STRETCH + row

    def _page(self, epoch: int, page: int) -> Int64[np.ndarray, " s1"]:
        if (sums := self._pages.get((epoch, page))) is None:
            first = page * _PAGE
            stretches = range(first, min(first + _PAGE, -(-self.rows.rows // _STRETCH)))

            def add_up() -> Int64[np.ndarray, " s1"]:
                return np.cumsum(
                    [0, *(int(self._running(epoch, stretch)[-1]) for stretch in stretches)]
                )

            folder = _plans_of(self.dataset) if len(stretches) >= _SAVED_STRETCHES else None
            made_from = {
                "along": self.dataset.describe(),
                "counted": self.rows.counted,
                "epoch": epoch,
                "page": page,
            }
            sums = self._pages[epoch, page] = load_or_add_up(
                folder, {**made_from, "version": _VERSION}, add_up
            )
        return sums

    def _running(self, epoch: int, stretch: int) -> Int64[np.ndarray, " n"]:
        """Tokens of a stretch up to and including each example."""
        first = epoch * self.rows.rows + stretch * _STRETCH
        number, running = self._latest
        if number != first:
            stop = min(first + _STRETCH, (epoch + 1) * self.rows.rows)
            running = np.cumsum(self.between(first, stop))
            self._latest = (first, running)
        return running


def _as_stored(dataset: PlannedDataset) -> PlannedDataset:
    """The dataset below what only shuffles it."""
    while (
        (run := dataset.pass_order()) is not None
        and run.order.bijective
        and run.order.rows == run.dataset.length
    ):
        dataset = run.dataset
    return dataset


def _check_there(stored: PlannedDataset, name: str) -> None:
    if any(cache.ledger.tokenizer.get("fingerprint") == "virtual" for cache in stored.caches()):
        raise ConfigError(
            "counts what a cache says of its tokens, and this one is not there yet",
            field="unit",
            value=f"trained_tokens ({name})",
            cure="Build the cache, or plan with unit: content_tokens.",
        )


def _masked(stored: PlannedDataset) -> bool:
    """Whether a column masks or weighs tokens."""
    return any(name in source.columns for source in stored.sources for name in (MASK, WEIGHT))


def _count_by_packs(source: RowSource, counted: CountedTokens) -> Integer[np.ndarray, " n"]:
    """Tokens of all rows of a source without a mask, from its packs."""
    tokens = np.empty(source.num_rows, np.min_scalar_type(source.row_elements))
    for at, stop in chunks_of(tokens.size, _CHUNK):
        content, segments = source.count_content(at, stop)
        tokens[at:stop] = content - segments if counted == "trained" else content
    return tokens


def _read(stored: PlannedDataset) -> list[Integer[np.ndarray, " n"]]:
    """Trained tokens of the rows of each source in a pass, from masks and ends of documents; read
    once and saved.
    """

    def read() -> Integer[np.ndarray, " n"]:
        tokens = np.zeros(first[-1], np.min_scalar_type(stored.seq_len))
        for at, stop in chunks_of(len(stored), _CHUNK):
            located = stored.locate(np.arange(at, stop))
            tokens[first[located.source] + located.row] = run_blocking(read_labels(stored, located))
        return tokens

    first = np.cumsum([0] + [source.num_rows for source in stored.sources])
    made_from = {"labels": stored.describe(), "version": _VERSION}
    folder = _plans_of(stored) if len(stored) * stored.seq_len >= _READ else None
    return np.split(load_or_add_up(folder, made_from, read), first[1:-1])


async def read_labels(stored: PlannedDataset, located: Rows) -> Int64[np.ndarray, " n"]:
    """Labels of rows that are trained on, as their masks say."""
    segments = segments_of(stored.sources, located.source, located.row)
    stats = ReadStats()
    tokens = np.zeros((located.row.size, stored.seq_len), np.int32)
    if ends_by_token(stored.sources):
        tokens = await read_rows(stored.sources, located, stats)
    ends = ends_of(stored.sources, located.source, located.row)
    add_ends_by_token(ends, stored.sources, located.source, tokens)
    mask, _ = of_batch(await read_columns(stored.sources, located, stats))
    trained = ~_first_tokens(tokens, segments, ends, stored.eos_id)
    if segments is not None:
        trained &= np.arange(stored.seq_len) < segments.sum(axis=1)[:, None]
    if mask is not None:
        trained &= mask != 0
    return trained.sum(axis=1, dtype=np.int64)


def _first_tokens(
    tokens: Int32[np.ndarray, "n S"],
    segments: Int32[np.ndarray, "n M"] | None,
    ends: UInt8[np.ndarray, "n W"] | None,
    eos_id: int | None,
) -> Bool[np.ndarray, "n S"]:
    """Which tokens begin a segment, and are no label; as ``PackedBatch`` has it, without jax."""
    rows = tokens.shape[0]
    length = tokens.shape[1]
    first = np.zeros((rows, length + 1), bool)  # a full row's last segment ends in the last column
    first[:, 0] = True
    if segments is not None:
        first[np.arange(rows)[:, None], segments.cumsum(axis=1)] = True
    elif ends is not None:
        first[:, 1:] = np.unpackbits(ends, axis=1, count=length, bitorder="little")
    elif eos_id is not None:
        first[:, 1:] = tokens == eos_id
    return first[:, :length]


def counted_plan(plan: Plan, components: Mapping[str, AsyncDataset[object]]) -> Plan:
    """A plan that counts individual tokens, with those of the rows of its components.

    Raises:
        ConfigError: tokens of a component cannot be counted.
    """
    if plan.rows or plan.counted_tokens is None:
        return plan
    rows = {
        name: RowTokens(cast(PlannedDataset, dataset.planned), plan.counted_tokens, name)
        for name, dataset in components.items()
    }

    def in_tokens(stage: Stage) -> Stage:
        counts = {name: rows[name] for name in stage.blend.names}
        each = {count.each for count in counts.values()}
        if len(each) == 1 and None not in each:  # shares of tokens are then shares of rows
            return stage
        row_tokens = {name: (count.total, count.rows) for name, count in counts.items()}
        return replace(stage, row_tokens=row_tokens)

    return replace(plan, stages=[in_tokens(stage) for stage in plan.stages], rows=rows)


class MixtureTokens:
    """Tokens along the orders of the components of a mixture that counts individual tokens, and
    what follows from them.

    Args:
        plan: With the tokens of the components' rows.
        components: Components in their orders, pass after pass.

    Attributes:
        of_component: Tokens of each component.
    """

    def __init__(self, plan: Plan, components: Mapping[str, PlannedDataset]) -> None:
        self.of_component = {n: OrderedTokens(d, plan.rows[n]) for n, d in components.items()}

    def bounded(
        self, limits: Mapping[str, int | None], max_tokens: Mapping[str, int]
    ) -> dict[str, int | None]:
        """Largest number of rows of each component that does not exceed its ``max_tokens``.

        Raises:
            ConfigError: the limit is less than one row.
        """
        bounded = dict(limits)
        for name, most in max_tokens.items():
            tokens = self.of_component[name]
            limit = limits[name]
            rows = tokens.fitting(most)
            if rows == 0:
                field = f"components.{name}.max_tokens"
                first = tokens.count_first(1)
                cure = f"Give at least {first} tokens."
                raise ConfigError(
                    f"holds no row: the first has {first}", field=field, value=most, cure=cure
                )
            bounded[name] = rows if limit is None else min(limit, rows)
        return bounded

    def timed(self, plan: Plan) -> Plan:
        """The plan with each stage at the first step before which the previous one had its tokens.
        It ends where those of the last planned stage are used up, unless it says where.

        Raises:
            ConfigError: limits end the mixture before the tokens of a stage are used up; an
                amendment that begins before the last planned stage.
        """
        if any(stage.row_tokens for stage in plan.stages):
            plan = replace(plan, lengths=[*self.of_component.values()])
        if not any(plan.stage_tokens):
            return plan
        last = len(plan.stage_tokens) - 1
        timed = list(plan.stages[: last + 1])
        amendments = plan.stages[last + 1 :]
        first_amended = amendments[0].first_step if amendments else None
        end = None
        for number, tokens in enumerate(plan.stage_tokens):
            stage = timed[number]
            if number == last:
                for amendment in amendments:
                    _check_after(amendment, stage)
            if tokens is None:
                continue
            stop, later = (first_amended, amendments) if number == last else (None, ())
            open_ended = [*timed[:number], _between(stage, stage.first_step, stop), *later]
            # as where amendments end a stage: its draws must not depend on its end, which follows
            # from them
            of_stages = replace(plan, stages=open_ended, planned=1)
            path = f"stages[{number}].tokens"
            end = self._kept_step(of_stages, stage.first_step, tokens, path)
            if number < last:
                timed[number] = _between(stage, stage.first_step, end)
                timed[number + 1] = _between(timed[number + 1], end, None)
                end = None
        timed[-1] = _between(timed[-1], timed[-1].first_step, first_amended)
        num_steps = end if plan.num_steps is None else plan.num_steps
        return replace(plan, stages=[*timed, *amendments], num_steps=num_steps, planned=1)

    def _kept_step(self, plan: Plan, begin: int, tokens: int, path: str) -> int:
        """The step at which the tokens of a plan's stage, which begins at a step, are used up. Far
        steps, which may take long to reach, are saved.
        """
        first = next(iter(self.of_component.values()))
        made_from = {
            "step_after": tokens,
            "counted": plan.counted_tokens,
            "components": {name: one.dataset.describe() for name, one in self.of_component.items()},
            "limits": [*plan.limits],
            "stages": [stage.describe() for stage in plan.stages],
            "batch_size": plan.batch.to_config(),
            **plan.make(replace(plan, stages=plan.stages[:1])).describe(),
            "version": _VERSION,
        }
        step = load_or_add_up(
            _plans_of(first.dataset),
            made_from,
            lambda: np.array([self._step_after(plan, begin, tokens, path)]),
            lambda found: plan.batch.rows_at(int(found[0]))[0] >= _STRETCH * _SAVED_STRETCHES,
        )
        return int(step[0])

    def _step_after(self, plan: Plan, first: int, tokens: int, path: str) -> int:
        """The first step by which this many tokens were drawn since step ``first``."""
        policy = plan.make(plan)
        begin = self._tokens_before(policy, first)

        def is_met(step: int) -> bool:
            try:
                return self._tokens_before(policy, step) - begin >= tokens
            except IndexOutOfRangeError:
                return True

        steps = 1
        while not is_met(first + steps):
            steps *= 2
            if first + steps > MAX_STEP:
                raise ConfigError(
                    "takes more than 2**40 steps",
                    field=path,
                    value=tokens,
                    cure="Give fewer tokens.",
                )
        step = bisect.bisect_left(
            range(first + steps + 1), True, lo=first + steps // 2 + (steps > 1), key=is_met
        )
        try:
            self._tokens_before(policy, step)
        except IndexOutOfRangeError as error:
            most = self._tokens_before(policy, step - 1) - begin
            cure = "Raise max_epochs or max_tokens, or add a source."
            if most:
                cure = f"Lower it to {most} or less, or raise max_epochs or max_tokens."
            problem = f"cannot be met: limits end the mixture after {most} tokens"
            raise ConfigError(problem, field=path, value=tokens, cure=cure) from error
        return step

    def _tokens_before(self, policy: MixingPolicy, step: int) -> int:
        """Tokens of all examples of the steps before ``step``; raises IndexOutOfRangeError if the
        mixture ends before.
        """
        if policy.ends_after is not None and policy.batch.rows_at(step)[0] > policy.ends_after:
            raise IndexOutOfRangeError(
                f"the mixture ends after {policy.ends_after} examples", field="step", value=step
            )
        drawn = policy.starts_at(step).tolist()
        tokens = self.of_component.values()
        return sum(one.count_first(n) for one, n in zip(tokens, drawn, strict=True))


def _between(stage: Stage, first: int, stop: int | None) -> Stage:
    """A stage that begins and ends at other steps."""
    return replace(stage, first_step=first, blend=stage.blend.used(first, stop))


def _check_after(amendment: Stage, stage: Stage) -> None:
    if amendment.first_step <= stage.first_step:
        raise ConfigError(
            f"is not after step {stage.first_step}, where the last stage begins",
            field=f"{amendment.blend.path.removesuffix('.weights')}.step",
            value=amendment.first_step,
            cure=f"Give {stage.first_step + 1} or more.",
        )


def _plans_of(dataset: PlannedDataset) -> str | None:
    """The folder for sums of a dataset: that of its pack plan, or that of its first cache's plans.
    None if nothing can be written there.
    """
    dataset = stored_dataset(dataset)
    if (plan := getattr(dataset, "plan_path", None)) is not None:
        return str(plan).rpartition("/")[0]
    cache = dataset.caches()[0]
    is_there = cache.takes_files and files.exists(cache.path)
    return files.join(cache.path, PLANS_FOLDER) if is_there else None
