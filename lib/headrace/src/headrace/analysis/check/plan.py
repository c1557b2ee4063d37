"""What a config resolves to: sizes, shares, strands, epochs, and the reads of its first steps.

All of it follows from ledgers or declared sizes, without reading a token: the order is a pure
function. Epochs are counted, not estimated by division: the quotas are walked to the last step.

Price: a third of a second of imports, jax not among them; then 1 us per row of the steps examined,
at most 262,144 of them, and 2 us per step of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from headrace.analysis.check.conversations import Conversations, look_at_conversations
from headrace.analysis.excess import SourceExcess, source_excess
from headrace.analysis.resolved import ResolvedRun
from headrace.analysis.simulate.forecast import DEFAULT_ROWS, Examination, Forecast
from headrace.config.component import ComponentConfig
from headrace.data.budgets import OpenBytes
from headrace.data.mixture import MixtureDataset
from headrace.data.rows import ends_by_token, segments_of
from headrace.errors import ConfigError, HeadraceError
from headrace.ingest.tokenize import FileTokenizer, cache_tokenizer
from headrace.store.cache import TokenCache
from headrace.store.replicas import ReplicaState, ReplicatedCache

_LOOKED_PACKS = 1 << 10
_LOOKED_DOCUMENTS = 16
"""Documents whose first token is read."""


@dataclass(frozen=True)
class ComponentPlan:
    """One component of a run.

    Attributes:
        name: Its name.
        cache: Path of its cache.
        leaves: Leaves of the cache besides the tokens.
        exists: Whether the cache exists; if not, sizes are as declared.
        declared_tokens: Tokens declared in the config; None: not declared.
        tokens: Tokens of the cache.
        rows: Rows trained on, in an epoch of the first phase.
        row_tokens: Tokens of these rows.
        chunk_tokens: Tokens of a stored chunk, the unit of reading.
        shuffle: Its order: ``braid``, ``block``, ``full``, ``era``, ..., or ``none``.
        strands: Blocks open at a time, for a braid.
        block_rows: Rows of a block; 0 if the order has none.
        open_blocks: Blocks that its order keeps open at a time by design; 0 if it has no blocks.
        open_bytes: Bytes of rows that its order draws from at a time, summed over hosts.
        mixes_all: Whether each epoch is a shuffle of all its rows, however they lie in blocks.
        held_windows: Multiple of ``open_bytes`` that the loader must be able to hold.
        first_share: Target share of a batch at step 0.
        last_share: The same at the last step of the run, or of the last stage.
        largest_share: The largest seen at stage boundaries and between them.
        drawn_rows: Rows in the whole run; None if its length is unknown.
        epochs: Passes over it in the run; None if the length is unknown, or it has no end.
        replicas: The locations of its cache, if it has several, and their state.
        row_documents: Documents per packed row, from the first thousand rows; None: not packed.
        row_fill: Share of these rows that is not padding.
        conversations: What its rows make of conversations, if it has any.
        unseen_rows: Rows that no step draws, though its limits allow it.
        skipped_tokens: Tokens that changes of the row length leave out.
        missing_bos: Token that its tokenizer would put before a text, and no build did.
        end_token: Token that divides its rows into documents, if the cache stores no documents.
    """

    name: str
    cache: str
    leaves: tuple[str, ...]
    exists: bool
    declared_tokens: int | None
    tokens: int
    rows: int
    row_tokens: int
    chunk_tokens: int
    shuffle: str
    strands: int
    block_rows: int
    open_blocks: int
    open_bytes: int
    mixes_all: bool
    held_windows: int
    first_share: float
    last_share: float
    largest_share: float
    drawn_rows: int | None
    epochs: float | None
    replicas: tuple[ReplicaState, ...] = ()
    row_documents: float | None = None
    row_fill: float = 1.0
    conversations: Conversations | None = None
    unseen_rows: int = 0
    skipped_tokens: int = 0
    missing_bos: str | None = None
    end_token: int | None = None


@dataclass(frozen=True)
class RunPlan(ResolvedRun):
    """A whole run, with answers to the questions of ``config check``, each worked out when it is
    asked.

    Attributes:
        hosts: Numbers of hosts to forecast for.
        max_rows: Most rows whose reads are forecast.
        icc: As in :func:`~headrace.analysis.excess.source_excess`.
        schedule: As there.
        optimizer: As there.

    Example:
        >>> from headrace import ComponentConfig, LmDataConfig
        >>> config = LmDataConfig(
        ...     {"web": ComponentConfig("caches/web", expected_tokens=2e8)}, num_steps=1000
        ... )
        >>> plan = RunPlan.of(config)
        >>> plan.tokens, round(plan.components[0].epochs, 3), plan.first_batch[0]
        (65536000, 0.328, 32)
    """

    hosts: Sequence[int] = (1,)
    max_rows: int = DEFAULT_ROWS
    icc: Mapping[str, float] = field(default_factory=dict[str, float])
    schedule: str = "wsd"
    optimizer: str = "adam"

    @property
    def sources(self) -> Mapping[str, ComponentConfig]:
        """Its components as they are written, with those that amendments bring in."""
        return self.written.components

    @cached_property
    def components(self) -> tuple[ComponentPlan, ...]:
        """Its sources."""
        shares = _shares(self.first, self.steps)
        return tuple(
            _component(name, self, shares[:, d]) for d, name in enumerate(self.first.names)
        )

    @property
    def batch_size(self) -> int:
        """Rows of a batch at step 0."""
        return self.dataset.batch_schedule.rows_at(0)[1]

    @property
    def largest_batch(self) -> int:
        """Rows of the largest batch."""
        return self.dataset.batch_schedule.max_size

    @cached_property
    def first_batch(self) -> tuple[int, int]:
        """Stored chunks that the first batch touches, and their bytes."""
        first = self.rows.of_steps(0, 1)
        blocks = np.unique(first.blocks()[1])
        block_bytes = first.space.block_bytes()[first.space.array_of(blocks)]
        return blocks.size, int(block_bytes.sum())

    @cached_property
    def examined(self) -> Examination:
        """The steps that were looked at."""
        return self.examine(self.hosts, max_rows=self.max_rows)

    @cached_property
    def unlimited(self) -> Forecast:
        """Reads by number of hosts, with unlimited memory."""
        return self.examined.forecast()

    @cached_property
    def limited(self) -> Forecast | ConfigError:
        """The same with the config's memory; or why it cannot hold one batch."""
        try:
            return self.examined.forecast(self.config.prefetch_bytes)
        except ConfigError as error:
            return error

    @property
    def forecast(self) -> Forecast | None:
        """The same; None: it cannot hold one batch."""
        return self.limited if isinstance(self.limited, Forecast) else None

    @property
    def refused(self) -> str | None:
        """Why there is no ``forecast``."""
        error = self.limited
        return (
            f"{error.problem}. {error.cure or ''}".strip()
            if isinstance(error, ConfigError)
            else None
        )

    @property
    def settled(self) -> bool:
        """Whether the steps examined are typical of the run, not just its start."""
        strands = sum(order.strands for order in self.orders.values())
        return self.unlimited.steps * self.batch_size >= 3 * strands

    @cached_property
    def noise(self) -> Mapping[str, SourceExcess]:
        """Similarity of neighbouring rows and its cost, for measured sources."""
        return source_excess(self.dataset, self.steps, self.icc, self.schedule, self.optimizer)

    @cached_property
    def open_bytes(self) -> OpenBytes:
        """What the orders of all components keep open; loaders refuse a budget by this figure."""
        return OpenBytes.of(self.dataset, self.config.exchange_setting)

    @property
    def effective_batch(self) -> tuple[int, int] | None:
        """Approximate documents and tokens of the first batch, if all of it is packed; None
        otherwise.
        """
        drawn = [c for c in self.components if c.first_share > 0]
        documents = [c.row_documents * c.first_share for c in drawn if c.row_documents is not None]
        if len(documents) < len(drawn):
            return None
        fill = sum(c.row_fill * c.first_share for c in drawn)
        return round(self.batch_size * sum(documents)), round(
            self.batch_size * self.config.phases[0][1] * fill
        )

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        chunks, chunk_bytes = self.first_batch
        return {
            "stages": self.stages,
            "phases": self.config.phases,
            "batch_size": self.batch_size,
            "largest_batch": self.largest_batch,
            "steps": self.steps,
            "tokens": self.tokens,
            "data_end": self.data_end and asdict(self.data_end),
            "ends_early": self.ends_early,
            "first_batch_chunks": chunks,
            "first_batch_bytes": chunk_bytes,
            "settled": self.settled,
            "refused": self.refused,
            "noise": {name: noise._asdict() for name, noise in self.noise.items()},
            "row_bytes": self.first.row_bytes,
            "prefetch_bytes": self.config.prefetch_bytes,
            "open_bytes": self.open_bytes._asdict(),
            "unpacked": self.planned.unpacked,
            "micro_batches": self.micro_batches and self.micro_batches._asdict(),
            "components": [asdict(c) for c in self.components],
            "forecast": self.forecast and self.forecast.to_dict(),
            "unlimited": self.unlimited.to_dict(),
        }


def _unseen(name: str, run: RunPlan, rows: int, drawn: int) -> int:
    """Rows that are never drawn, though limits of epochs allow it: less than a batch, or what is
    left where the data end. A run that stops earlier says so with ``num_steps``.
    """
    config = run.config
    component = config.components[name]
    epochs = config.max_epochs if component.max_epochs is None else component.max_epochs
    is_alone = len(config.components) == 1 and config.stop_strategy != "restart"
    if len(config.phases) > 1 or component.max_tokens is not None or not (epochs or is_alone):
        return 0
    missing = max(min(rows, int(rows * (epochs or 1))) - drawn, 0)
    is_less_than_a_batch = missing < run.dataset.batch_schedule.max_size
    return missing if is_less_than_a_batch or config.run_steps is None else 0


def _shares(mixture: MixtureDataset, steps: int | None) -> np.ndarray:
    """Target shares, ``[looks, d]``, at the first step, some in between, and the last."""
    bends = [*mixture.stage_steps]
    breaks = [step for stage in mixture.stages for step in stage.blend.breaks]
    bends += [mixture.skips.step_of(step) for step in breaks]
    end = max(bends) + 1 if steps is None else steps
    looks = np.unique(
        np.clip([0, *bends, *(b - 1 for b in bends), *np.linspace(0, end - 1, 65)], 0, end - 1)
    )
    return mixture.weights_at(looks.astype(np.int64))


def _component(name: str, run: RunPlan, shares: np.ndarray) -> ComponentPlan:
    config = run.config
    cache = run.caches[name]
    trained = run.trained[name]
    mixture = run.first
    planned = run.planned
    drawn = run.drawn.get(name)
    order = run.orders[name]
    row_tokens = mixture.tokens_of_rows(name, len(trained))
    documents = None
    if config.compat is not None:
        row_tokens = min(row_tokens, cache.num_tokens)  # its rows span several passes
    some = trained.locate(np.arange(min(len(trained), _LOOKED_PACKS)))
    if (lengths := segments_of(trained.sources, some.source, some.row)) is not None:
        documents = float((lengths > 0).sum() / len(lengths))
    unseen = 0 if drawn is None else _unseen(name, run, len(trained), drawn.rows)
    skipped = sum(
        change.skipped_tokens for change in run.dataset.changes if change.component == name
    )
    return ComponentPlan(
        name=name,
        cache=config.components[name].shown_cache,
        leaves=tuple(cache.leaves),
        exists=name not in planned.caches,
        declared_tokens=planned.declared.get(name),
        tokens=cache.num_tokens,
        rows=len(trained),
        row_tokens=row_tokens,
        chunk_tokens=cache.layout.chunk_elements,
        shuffle=order.kind,
        strands=order.strands,
        block_rows=order.block_rows,
        open_blocks=order.open_blocks,
        open_bytes=order.open_bytes,
        mixes_all=order.mixes_all,
        held_windows=order.held_windows,
        first_share=float(shares[0]),
        last_share=float(shares[-1]),
        largest_share=float(shares.max()),
        drawn_rows=drawn and drawn.rows,
        epochs=drawn and drawn.epochs,
        replicas=tuple(
            state
            for one in cache.members
            if isinstance(one, ReplicatedCache)
            for state in one.states
        ),
        row_documents=documents,
        row_fill=1.0
        if lengths is None
        else float(lengths.sum()) / (len(lengths) * trained.seq_len),
        conversations=look_at_conversations(trained, cache),
        unseen_rows=unseen,
        skipped_tokens=skipped,
        missing_bos=_missing_bos(cache),
        end_token=next(iter(ends_by_token(trained.sources).values()), None),
    )


def _missing_bos(cache: TokenCache) -> str | None:
    """The token that the tokenizer of a cache puts before a text when it adds special tokens, if
    none of the first documents begins with it; None: there is no such token, or documents have it.
    """
    if cache.is_virtual or not cache.num_documents:
        return None
    try:
        tokenizer = cache_tokenizer(cache)
    except HeadraceError:  # its copy is damaged, which does not concern a run
        return None
    if not isinstance(tokenizer, FileTokenizer) or tokenizer.template_bos is None:
        return None
    token, number = tokenizer.template_bos
    lengths = cache.lengths(0, min(cache.num_documents, _LOOKED_DOCUMENTS))
    filled = np.flatnonzero(lengths).tolist()
    begins = [int(cache.document(document)[0]) == number for document in filled]
    return None if any(begins) or not begins else token
