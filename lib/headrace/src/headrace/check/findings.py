"""What will hurt in a run, each with the field that it comes from and what to write instead.

A rule is a function of a resolved run (:class:`~headrace.check.plan.RunPlan`) and yields what it finds. ``problem`` is
what keeps a run from starting or from being what was asked for; ``warning`` is what makes it slow, costly or worse than
it need be, and may be meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from headrace.check.plan import ComponentPlan, RunPlan
from headrace.data.pairs import CHOSEN
from headrace.errors import HeadraceError
from headrace.index.schedule import weight_from_config
from headrace.index.shuffle_config import BlockShuffleConfig
from headrace.ingest.tokenize import load_tokenizer
from headrace.simulate import HostForecast

EPOCHS = 4.0
"""Passes over a source that are about as good as new text (Muennighoff et al. 2023, Scaling Data-Constrained Language
Models)."""
SHARED_READS = 1.5
"""Reads of a block in an epoch from which on hosts are said to share it."""
_SIZE_OFF = 0.02
_SHARE_OFF = 0.05


@dataclass(frozen=True)
class Finding:
    """One thing that will hurt.

    Attributes:
        level: ``problem`` or ``warning``.
        rule: Its name, for filters.
        field: Where it comes from.
        problem: What is wrong.
        cure: What to do.
    """

    level: Literal["problem", "warning"]
    rule: str
    field: str
    problem: str
    cure: str

    def __str__(self) -> str:
        return str(HeadraceError(self.problem, field=self.field, cure=self.cure))

    def to_json(self) -> dict[str, str]:
        """As JSON values."""
        return asdict(self)


def findings(plan: RunPlan) -> list[Finding]:
    """All that will hurt, problems first."""
    found = [finding for rule in _RULES for finding in rule(plan)]
    return sorted(found, key=lambda finding: finding.level)  # stable: rules keep their order


def _missing_caches(plan: RunPlan) -> Iterator[Finding]:
    components = plan.config.components
    missing = [c for c in plan.components if not c.exists and components[c.name].source is None]
    if missing:
        yield Finding(
            "warning",
            "cache_missing",
            _fields(missing, "cache"),
            f"planned by declared {'size' if len(missing) == 1 else 'sizes'}, without a cache",
            f"Before training, build what is not there: headrace build SOURCE -t TOKENIZER -o {missing[0].cache}",
        )


def _planned_as_streams(plan: RunPlan) -> Iterator[Finding]:
    if plan.unpacked:
        yield Finding(
            "warning",
            "planned_unpacked",
            _fields([c for c in plan.components if c.name in plan.unpacked], "packing"),
            "follows from the lengths of documents, which are not there yet: planned as streams, without padding",
            "Check again when the caches are built.",
        )


def _parted_pairs(plan: RunPlan) -> Iterator[Finding]:
    for c in plan.components:
        packing = plan.config.components[c.name].packing
        if CHOSEN in c.leaves and (packing is None or packing.unit != 2):
            yield Finding(
                "warning",
                "parted_pairs",
                f"components.{c.name}.packing",
                "parts preference pairs: rejected answers are trained on as chosen ones are",
                "Set packing: {unit: 2, long: drop}, which makes each pair a unit whose rejected side weighs -1.",
            )


def _no_tokenizer(plan: RunPlan) -> Iterator[Finding]:
    if plan.config.tokenizer is None:
        return
    try:
        load_tokenizer(plan.config.tokenizer)
    except HeadraceError as error:
        yield Finding("problem", "no_tokenizer", "tokenizer.path", error.problem, error.cure or "Name another.")


def _wrong_sizes(plan: RunPlan) -> Iterator[Finding]:
    for c in plan.components:
        if c.exists and c.declared_tokens and abs(c.tokens / c.declared_tokens - 1) > _SIZE_OFF:
            yield Finding(
                "warning",
                "size_differs",
                f"components.{c.name}.expected_tokens",
                f"is {c.declared_tokens:,}, but the cache has {c.tokens:,}",
                "The cache is what counts; correct or leave out the declared size.",
            )


def _no_end(plan: RunPlan) -> Iterator[Finding]:
    if plan.steps is None:
        yield Finding(
            "warning",
            "no_end",
            "num_steps",
            "is not set, so nothing can be said of epochs and budgets",
            "Set num_steps, or check with --steps N.",
        )


def _ends_early(plan: RunPlan) -> Iterator[Finding]:
    if plan.ends_early is not None:
        yield Finding(
            "problem",
            "ends_early",
            "num_steps",
            f"is not reached: the sources that may be drawn end the run after step {plan.ends_early - 1:,}",
            "Raise max_epochs or max_tokens, add a source, or use stop_strategy: restart.",
        )


def _random_reads(plan: RunPlan) -> Iterator[Finding]:
    random = [c for c in plan.components if c.shuffle in ("full", "era") and c.largest_share > 0]
    if random:
        c = max(random, key=lambda c: c.chunk_tokens)
        times = max(c.chunk_tokens // max(plan.phases[0][1], 1), 1)
        what = "a full shuffle reads" if c.shuffle == "full" else "an era shuffle reads"
        yield Finding(
            "warning",
            "random_reads",
            _fields(random, "shuffle"),
            f"{what} a chunk of {c.chunk_tokens:,} tokens for each row, up to {times:,} times what it uses",
            "Leave shuffle out: the braided shuffle mixes as well and reads each chunk about once.",
        )


def _unshuffled(plan: RunPlan) -> Iterator[Finding]:
    plain = [c for c in plan.components if c.shuffle == "none" and c.largest_share > 0]
    if plain:
        yield Finding(
            "warning",
            "not_shuffled",
            _fields(plain, "shuffle"),
            "is false: rows come in stored order, neighbours of one file in one batch",
            "Leave shuffle out, unless the sources were shuffled before they were tokenized.",
        )


def _small_windows(plan: RunPlan) -> Iterator[Finding]:
    for c in plan.components:
        window = _window(plan, c)
        wanted = plan.largest_batch * c.largest_share
        if c.shuffle == "block" and window * c.block_rows < c.rows and window < 0.98 * wanted:
            yield Finding(
                "warning",
                "small_window",
                f"components.{c.name}.shuffle" if plan.config.components[c.name].shuffle else "shuffle",
                f"mixes {window:,} blocks at a time, fewer than the {wanted:,.0f} rows that {c.name!r} gives to a"
                " batch, so rows of one block meet in a batch",
                f"Raise window_blocks to {round(wanted):,} or more, or leave shuffle out for the braided one.",
            )


def _shared_blocks(plan: RunPlan) -> Iterator[Finding]:
    shared = [h for h in plan.unlimited.by_hosts if h.hosts > 1 and h.reads_per_block > SHARED_READS]
    known = any(c.shuffle in ("full", "era") for c in plan.components)  # said by _random_reads
    if shared and plan.settled and not known:
        h = max(shared, key=lambda h: h.reads_per_block)
        blocked = [c.name for c in plan.components if c.shuffle == "block"]
        cure = "Use more rows a host, smaller chunks, or fewer components."
        if plan.config.row_order == "stream":
            cure = "Use row_order: locality, which leaves each batch as it is and orders the rows within it."
        elif blocked:
            cure = "Leave shuffle out: the braided shuffle keeps hosts at blocks of their own."
        yield Finding(
            "warning",
            "shared_blocks",
            "row_order" if plan.config.row_order == "stream" else "shuffle" if blocked else "components",
            f"hosts share blocks: on {h.hosts} hosts each block is read {h.reads_per_block:.1f} times in an epoch",
            cure,
        )


def _memory(plan: RunPlan) -> Iterator[Finding]:
    tested = [h.hosts for h in plan.unlimited.by_hosts]
    short = [n for n in tested if plan.held_bytes(n) > plan.prefetch_bytes]
    if plan.refused is not None:
        yield Finding("problem", "no_memory", "prefetch_bytes", plan.refused, "Raise prefetch_bytes.")
    elif short:
        enough = -(-plan.held_bytes(1) // plan.prefetch_bytes)
        largest = max(plan.components, key=lambda c: c.open_bytes * c.held_windows)
        yield Finding(
            "problem" if short == tested else "warning",
            "no_memory",
            "prefetch_bytes",
            f"{plan.prefetch_bytes:,} bytes do not hold the blocks that the shuffle keeps open, and the loader refuses"
            f" to start: {', '.join(f'{plan.held_bytes(n):,} on {_hosts(n)}' for n in short)} (most of them for"
            f" component {largest.name!r})",
            f"Use {enough:,} hosts or more, raise it to {plan.held_bytes(min(short)) * 5 // 4:,}, or lower"
            " shuffle.strands (or window_blocks).",
        )
    elif plan.forecast is not None:
        for h, free in zip(plan.forecast.by_hosts, plan.unlimited.by_hosts, strict=True):
            if h.reads_per_block > 1.2 * free.reads_per_block:
                yield _read_again(h, free, plan)
                return


def _read_again(h: HostForecast, free: HostForecast, plan: RunPlan) -> Finding:
    return Finding(
        "warning",
        "little_memory",
        "prefetch_bytes",
        f"{plan.prefetch_bytes:,} bytes make {_hosts(h.hosts)} read blocks again: {h.reads_per_block:.2f} times in an"
        f" epoch, and {free.reads_per_block:.2f} with all the memory that it wants",
        f"Raise it to {free.resident_bytes * 5 // 4:,}.",
    )


def _many_epochs(plan: RunPlan) -> Iterator[Finding]:
    for c in plan.components:
        if c.epochs is not None and c.epochs > EPOCHS:
            yield Finding(
                "warning",
                "many_epochs",
                f"components.{c.name}.weight",
                f"makes {c.epochs:,.1f} passes over {c.row_tokens:,} tokens; beyond {EPOCHS:g} it helps little",
                f"Lower it, or set components.{c.name}.max_epochs: its share then goes to the others.",
            )


def _never_drawn(plan: RunPlan) -> Iterator[Finding]:
    for c in plan.components:
        if c.drawn_rows == 0:
            why = (
                f"is never reached: its share stays below one row in {plan.steps:,} steps"
                if c.largest_share
                else "is 0 at every step of the run"
            )
            yield Finding(
                "warning",
                "never_drawn",
                f"components.{c.name}.weight",
                f"{why}, so nothing of it is trained on",
                "Raise it, move its schedule into the run, or leave the component out.",
            )


def _points_behind(plan: RunPlan) -> Iterator[Finding]:
    if plan.steps is None:
        return
    for name, component in plan.config.components.items():
        if not isinstance(component.weight, dict):
            continue
        steps = weight_from_config(component.weight).breaks
        late = [s for s in steps if s > plan.steps]  # a ramp may end where the run ends
        if late:
            yield Finding(
                "warning",
                "weight_not_reached",
                f"components.{name}.weight",
                f"has a point at step {min(late):,}, and the run ends after step {plan.steps - 1:,}: that weight is"
                " never reached",
                "Move the point into the run, or prolong the run.",
            )


def _other_shares(plan: RunPlan) -> Iterator[Finding]:
    total = sum(c.drawn_rows or 0 for c in plan.components)
    capped = [c for c in plan.components if _is_capped(plan, c)]
    if not total or not capped or len(plan.stages) > 1 or any(c.first_share != c.last_share for c in plan.components):
        return  # the wanted share of a whole run is plain only where it is constant
    for c in capped:
        share = (c.drawn_rows or 0) / total
        if c.first_share and share < (1 - _SHARE_OFF) * c.first_share:
            yield Finding(
                "warning",
                "capped",
                f"components.{c.name}",
                f"is used up before the run ends: {share:.2%} of the rows in place of {c.first_share:.2%}, and the"
                " others take the rest",
                "Raise its max_epochs or max_tokens, or lower its weight to what it can give.",
            )


def _is_capped(plan: RunPlan, c: ComponentPlan) -> bool:
    own = plan.config.components[c.name]
    return own.max_tokens is not None or own.max_epochs is not None or plan.config.max_epochs is not None


def _short_sources(plan: RunPlan) -> Iterator[Finding]:
    for c in plan.components:
        wanted = plan.largest_batch * c.largest_share
        if wanted > c.rows:
            yield Finding(
                "warning",
                "shorter_than_a_batch",
                f"components.{c.name}",
                f"has {c.rows:,} rows and gives {wanted:,.0f} to a batch, so rows repeat within one batch",
                "Lower its weight, or add text to it.",
            )


def _small_chunks(plan: RunPlan) -> Iterator[Finding]:
    longest = max(length for _, length in plan.phases)
    small = [c for c in plan.components if c.chunk_tokens < longest]
    if small:
        c = min(small, key=lambda c: c.chunk_tokens)
        yield Finding(
            "warning",
            "small_chunks",
            _fields(small, "cache"),
            f"has chunks of {c.chunk_tokens:,} tokens, less than a row of {longest:,}: a row takes"
            f" {-(-longest // c.chunk_tokens)} reads",
            f"Build it with --chunk-tokens {longest * 16}.",
        )


def _uneven_hosts(plan: RunPlan) -> Iterator[Finding]:
    for h in plan.unlimited.by_hosts:
        if plan.batch_size % h.hosts:
            yield Finding(
                "problem",
                "uneven_hosts",
                "batch_size",
                f"{plan.batch_size} rows do not divide over {h.hosts} hosts",
                f"Use {-(-plan.batch_size // h.hosts) * h.hosts}, or another number of hosts.",
            )


_RULES = (
    _missing_caches,
    _planned_as_streams,
    _parted_pairs,
    _no_tokenizer,
    _wrong_sizes,
    _no_end,
    _ends_early,
    _random_reads,
    _unshuffled,
    _small_windows,
    _shared_blocks,
    _memory,
    _many_epochs,
    _never_drawn,
    _points_behind,
    _other_shares,
    _short_sources,
    _small_chunks,
    _uneven_hosts,
)


def _window(plan: RunPlan, c: ComponentPlan) -> int:
    """Blocks that a block shuffle mixes together; 0 for another."""
    own = plan.config.components[c.name].shuffle
    shuffle = plan.config.shuffle if own is None else own
    return shuffle.window_blocks if isinstance(shuffle, BlockShuffleConfig) else 0


def _fields(components: Sequence[ComponentPlan], field: str) -> str:
    names = [c.name for c in components]
    shown = ",".join(names[:4]) + (f",... ({len(names)} in all)" if len(names) > 4 else "")
    return f"components.{shown}.{field}" if len(names) == 1 else f"components.{{{shown}}}.{field}"


def _hosts(n: int) -> str:
    return "1 host" if n == 1 else f"{n:,} hosts"
