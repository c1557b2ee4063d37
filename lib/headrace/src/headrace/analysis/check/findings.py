"""Problems of a run, each with the field that causes it and what to write instead.

A rule is a function of a resolved run (:class:`~headrace.analysis.check.plan.RunPlan`) that yields
findings. A ``problem`` keeps a run from starting or from being what was asked for; a ``warning``
makes it slow, costly or worse than necessary, and may be intended.

============================================  ======================================================
rules                                         what they find
============================================  ======================================================
cache_missing, size_differs,                  caches that are planned with declared sizes, or differ
planned_unpacked                              from them
unused_attribute                              attributes that neither ``where``, nor buckets, a
                                              shuffle or columns ask for
bad_source                                    files of a source whose cache is not built yet that
                                              cannot be built from
replica_unreached                             locations of a cache that cannot be read from this
                                              machine
no_tokenizer                                  a tokenizer that cannot be loaded
padding_counts                                units that count the padding of packed rows
untrained_rows                                share of the rows without a token that is trained on;
                                              a problem if it is all of them
cut_conversations, left_out_conversations     conversations that rows cut from their question; those
                                              that are longer than a row
unseen_rows, skipped_tokens                   rows that the last batch leaves unseen, though
                                              ``max_epochs`` allows them; tokens that a change of
                                              ``seq_len`` leaves out
unfilled_rows                                 tokens at the ends of many parts that fill no row
mostly_padding                                batches of more rows than the data have, of which the
                                              last is mostly empty (``last_batch: pad``)
no_bos                                        documents without the token that their tokenizer puts
                                              before a text
ends_by_token                                 documents that are told by a token, because a foreign
                                              cache stores none
no_end, ends_early                            a run of unknown length; limits that end it before
                                              ``num_steps``
random_reads, reads_by_score, not_shuffled,   orders that read a chunk for each row or each step of
small_window, excess_loss                     scores, mix too little, or cost loss compared with a
                                              full shuffle
shared_blocks, more_hosts, small_chunks,      hosts that read the same blocks; more hosts than
uneven_hosts                                  ``max_hosts``; rows that span several chunks; a batch
                                              that does not divide by the hosts
no_memory, little_memory                      a budget that the loader refuses, or with which it
                                              reads blocks repeatedly
scattered_buckets                             buckets that read each other's chunks again; with the
                                              command that groups the cache, or moves what has
                                              changed
many_epochs, capped, never_drawn,             sources that repeat, run out, or are never used
weight_not_reached, weight_before_schedule,
shorter_than_a_batch
============================================  ======================================================
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Literal, TypeAlias

import numpy as np

from headrace.analysis.check.judgments import EPOCHS, EXCESS, SHARED_READS, sharing_cure
from headrace.analysis.check.plan import ComponentPlan, RunPlan
from headrace.analysis.simulate.forecast import HostForecast
from headrace.config.component import ComponentConfig
from headrace.data.attributes import DOCUMENT
from headrace.data.buckets import BucketsConfig
from headrace.data.component import too_many_hosts
from headrace.data.dataset import PlannedDataset
from headrace.data.token_seq import stored_dataset
from headrace.errors import HeadraceError, SourceError, command_line, format_count
from headrace.ingest.first_look import in_words, with_same_fault
from headrace.ingest.tokenize import load_tokenizer
from headrace.mix.blend import without_repeats
from headrace.mix.schedule import weight_from_config, written_steps
from headrace.pack.spec import CUTTING
from headrace.store.layouts import as_option
from headrace.store.ledger import SHUFFLED, read_ledger
from headrace.store.missing import build_cure

_SIZE_OFF = 0.02
_SHARE_OFF = 0.05
_UNTRAINED = 0.01
_SKIPPED = 0.001
_UNFILLED = 0.01
_BLOCK_READS = 1.5


@dataclass(frozen=True)
class Finding:
    """One problem or warning."""

    level: Literal["problem", "warning"]  # ``problem`` or ``warning``
    rule: str  # name of the rule, for filters
    field: str  # the field that causes it
    problem: str  # what is wrong
    cure: str  # what to do

    def __str__(self) -> str:
        return str(HeadraceError(self.problem, field=self.field, cure=self.cure))

    def to_dict(self) -> dict[str, str]:
        """As JSON values."""
        return asdict(self)


_Advice: TypeAlias = tuple[str, str, str]
"""Field, problem and remedy of a finding."""
_RULES: list[Callable[[RunPlan], Iterable[Finding]]] = []


def _rule(
    level: Literal["problem", "warning"], name: str
) -> Callable[[Callable[[RunPlan], Iterator[_Advice]]], None]:
    """Registers a rule, whose findings all have this level and name."""

    def add(find: Callable[[RunPlan], Iterator[_Advice]]) -> None:
        _RULES.append(lambda plan: (Finding(level, name, *advice) for advice in find(plan)))

    return add


def findings(plan: RunPlan) -> list[Finding]:
    """All findings, problems first."""
    all_findings = [finding for rule in _RULES for finding in rule(plan)]
    return sorted(all_findings, key=lambda finding: finding.level)  # stable: rules keep their order


def source_findings(faults: dict[str, list[HeadraceError]]) -> list[Finding]:
    """A finding for each fault of the source of a component whose cache is not built yet, with all
    files that have it. A file that cannot be reached is a warning: other machines may reach it.
    """
    return [
        Finding(
            "problem" if isinstance(alike[0], SourceError) else "warning",
            "bad_source",
            f"components.{name}.source",
            in_words(alike),
            alike[0].cure or "",
        )
        for name, some in faults.items()
        for alike in with_same_fault(some)
    ]


@_rule("warning", "cache_missing")
def _missing_caches(plan: RunPlan) -> Iterator[_Advice]:
    components = plan.sources
    missing = [c for c in plan.components if not c.exists and components[c.name].source is None]
    if missing:
        yield (
            _fields(missing, "cache"),
            f"planned by declared {'size' if len(missing) == 1 else 'sizes'}, without a cache",
            f"Before training: {build_cure('SOURCE', missing[0].cache)}",
        )


@_rule("warning", "replica_unreached")
def _unreached_replicas(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        lost = [replica for replica in c.replicas if replica.state == "unreached"]
        if lost:
            yield (
                f"components.{c.name}.{'cache' if lost[0].path == c.cache else 'replicas'}",
                "; ".join(f"{replica.path} {replica.problem}" for replica in lost),
                "Check its address and the credentials (headrace cache verify names what is"
                " wrong), or leave it out.",
            )


@_rule("warning", "planned_unpacked")
def _planned_as_streams(plan: RunPlan) -> Iterator[_Advice]:
    if plan.planned.unpacked:
        yield (
            _fields([c for c in plan.components if c.name in plan.planned.unpacked], "packing"),
            "follows from the lengths of documents, which are not there yet: planned as streams,"
            " without padding",
            "Check again when the caches are built.",
        )


@_rule("warning", "padding_counts")
def _padding_counts(plan: RunPlan) -> Iterator[_Advice]:
    fields, packed = plan.original.counts_of_padding()
    if fields:
        yield (
            fields[0],
            f"counts the places of packed rows, padding included ({', '.join(packed[:4])})",
            "Write unit: content_tokens, or trained_tokens. A run that has begun goes on as it is.",
        )


@_rule("warning", "unused_attribute")
def _unused_attributes(plan: RunPlan) -> Iterator[_Advice]:
    for name, source in plan.sources.items():
        shuffle = plan.written.shuffle_for(name)
        used = source.asked_numbers(shuffle, plan.original.columns or {})
        unused = sorted(set(source.attributes or ()) - used)
        if unused:
            yield (
                f"components.{name}.attributes",
                f"has {', '.join(unused)}, which neither where nor buckets, shuffle or columns ask"
                " for: not joined",
                "Leave it out, or ask for it, e.g. in where.",
            )


@_rule("warning", "ends_by_token")
def _ends_by_token(plan: RunPlan) -> Iterator[_Advice]:
    by_token = [c for c in plan.components if c.end_token is not None]
    if by_token:
        yield (
            "split_documents",
            f"goes by token {by_token[0].end_token} in {', '.join(c.name for c in by_token[:4])}:"
            f" the rows of {by_token[0].cache} are blocks of one length, so it stores no documents",
            "If that is not meant, write split_documents: false, or build a cache from documents"
            " (headrace build).",
        )


@_RULES.append
def _untrained_rows(plan: RunPlan) -> Iterator[Finding]:
    for c in plan.components:
        talk = c.conversations
        if talk is None or talk.untrained_share < _UNTRAINED:
            continue
        trains_nothing = talk.untrained_rows == talk.looked_rows
        mask = f"components.{c.name}.loss_mask"
        cures = [f"train on every token ({mask}: none)"]
        if talk.longest > plan.original.phases[0][1]:
            cures.insert(0, f"raise seq_len to {talk.longest:,}")
        if plan.sources[c.name].packing is None and not trains_nothing:
            cures.insert(0, f"keep conversations whole (components.{c.name}.packing: {{}})")
        yield Finding(
            "problem" if trains_nothing else "warning",
            "untrained_rows",
            mask,
            f"marks no token in {talk.untrained_rows:,} of {_looked(c)}"
            f" ({talk.untrained_share:.1%}): they train nothing",
            f"Look at some ({command_line('cache inspect', c.cache)}). Then {', or '.join(cures)}.",
        )


@_rule("warning", "cut_conversations")
def _cut_conversations(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        talk = c.conversations
        if talk is None or not talk.begun_inside:
            continue
        how = plan.sources[c.name].packing
        path = f"components.{c.name}.packing"
        what = f"{talk.begun_inside:,} of {talk.pieces:,}"
        if how is None:
            yield (
                path,
                f"is missing: {what} rows begin inside a conversation, without its question",
                f"Pack conversations, each whole: {path}: {{}}.{_longer_ones(talk.longest, plan)}",
            )
        else:
            yield (
                path,
                f"cuts conversations: {what} segments begin inside one, without its question",
                f"Leave {'algorithm' if how.algorithm in CUTTING else 'long'} out: conversations"
                f" then stay whole.{_longer_ones(talk.longest, plan)}",
            )


def _longer_ones(longest: int, plan: RunPlan) -> str:
    """What whole conversations ask of the length of rows; nothing if all fit."""
    if longest <= plan.original.phases[0][1]:
        return ""
    return (
        f" Those longer than seq_len are left out, and counted: raise it to {longest:,} to keep"
        " all."
    )


@_rule("warning", "left_out_conversations")
def _left_out(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        talk = c.conversations
        if talk is None or not talk.left_out_documents:
            continue
        share = talk.left_out_documents / max(talk.documents, 1)
        how = plan.sources[c.name].packing
        pairs = how is not None and talk.unit > 1
        other = (
            ""
            if pairs
            else f", or keep their beginning (components.{c.name}.packing.long: truncate)"
        )
        yield (
            "seq_len",
            f"is less than {talk.left_out_documents:,} of {talk.documents:,} conversations of"
            f" {c.name!r} have ({share:.1%}): they are left out, {talk.left_out_tokens:,} tokens",
            f"Raise it to {talk.longest:,}{other}.",
        )


@_rule("warning", "unfilled_rows")
def _unfilled_rows(plan: RunPlan) -> Iterator[_Advice]:
    seq_len = plan.original.phases[0][1]
    for c in plan.components:
        unfilled = stored_dataset(plan.trained[c.name]).unfilled_tokens
        share = unfilled / max(c.tokens, 1)
        # Of a single part, less than a row is lost
        if not c.exists or unfilled < seq_len or share < _UNFILLED:
            continue
        copy = command_line("cache reshuffle", c.cache, "COPY")
        yield (
            f"components.{c.name}.cache",
            f"has {unfilled:,} tokens ({share:.1%}) that fill no row of"
            f" {seq_len:,}: rows cross neither the ends of its parts nor gaps",
            f"Pack its documents (components.{c.name}.packing: {{plans: FOLDER}}), or train on a"
            f" copy with larger parts: {copy}",
        )


@_rule("warning", "unseen_rows")
def _unseen_rows(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        if not c.unseen_rows:
            continue
        batches = -(-c.unseen_rows // plan.largest_batch)
        cure = (
            "Write last_batch: pad."
            if plan.original.last_batch == "drop"
            else f"Write num_steps: {(plan.steps or 0) + batches}, or leave it out."
        )
        yield (
            "last_batch" if plan.original.last_batch == "drop" else "num_steps",
            f"leaves {c.unseen_rows:,} of {c.rows:,} rows of {c.name!r} unseen"
            f" ({c.unseen_rows / c.rows:.1%}), which"
            f" max_epochs allows: batches of {plan.largest_batch:,} do not divide them",
            cure,
        )


@_rule("warning", "mostly_padding")
def _mostly_padding(plan: RunPlan) -> Iterator[_Advice]:
    end = plan.data_end
    if end is not None and end.padded_rows and end.rows < plan.largest_batch:
        yield (
            "batch_size",
            f"is {plan.largest_batch:,}, and the data have {format_count(end.rows, 'row')}:"
            f" {end.padded_rows:,} rows of the last batch are empty (last_batch: pad)",
            f"Write batch_size: {end.rows}, or leave max_epochs out, so that the data repeat.",
        )


@_rule("warning", "skipped_tokens")
def _skipped_tokens(plan: RunPlan) -> Iterator[_Advice]:
    longest = max(length for _, length in plan.original.phases)
    for c in plan.components:
        if c.skipped_tokens < max(longest, _SKIPPED * c.tokens):
            continue
        share = c.skipped_tokens / c.tokens
        yield (
            "seq_len",
            f"changes, and leaves out {c.skipped_tokens:,} of {c.tokens:,} tokens of {c.name!r}"
            f" ({share:.1%}) in that pass",
            f"Keep one length (seq_len: {longest}), or change it at a step where a pass ends.",
        )


@_rule("warning", "no_bos")
def _no_bos(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        if c.missing_bos is None:
            continue
        token = c.missing_bos
        build = (
            "begin the chat template with it ({{ bos_token }}), and build again"
            if c.conversations is not None
            else f"build again with --bos {shlex.quote(token)} (in a config tokenizer.bos:"
            f" {token!r})"
        )
        yield (
            f"components.{c.name}.cache",
            f"has documents that do not begin with {token!r}, which its tokenizer puts before a"
            " text",
            f"If the model was trained with it, {build}.",
        )


@_rule("problem", "no_tokenizer")
def _no_tokenizer(plan: RunPlan) -> Iterator[_Advice]:
    if plan.original.tokenizer is None:
        return
    try:
        load_tokenizer(plan.original.tokenizer)
    except HeadraceError as error:
        yield ("tokenizer.path", error.problem, error.cure or "Name another.")


@_rule("warning", "size_differs")
def _wrong_sizes(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        if c.exists and c.declared_tokens and abs(c.tokens / c.declared_tokens - 1) > _SIZE_OFF:
            yield (
                f"components.{c.name}.expected_tokens",
                f"is {c.declared_tokens:,}, but the cache has {c.tokens:,}",
                "The cache is what counts; correct or leave out the declared size.",
            )


@_rule("warning", "no_end")
def _no_end(plan: RunPlan) -> Iterator[_Advice]:
    if plan.steps is None:
        yield (
            "num_steps",
            "is not set, so nothing can be said of epochs and budgets",
            "Set num_steps.",
        )


@_rule("problem", "ends_early")
def _ends_early(plan: RunPlan) -> Iterator[_Advice]:
    if plan.ends_early is not None:
        yield (
            "num_steps",
            "is not reached: the sources that may be drawn end the run after step"
            f" {plan.ends_early - 1:,}",
            "Raise max_epochs or max_tokens, add a source, or use stop_strategy: restart.",
        )


@_rule("warning", "random_reads")
def _random_reads(plan: RunPlan) -> Iterator[_Advice]:
    orders = plan.orders
    random = [c for c in plan.components if orders[c.name].reads_rows and c.largest_share > 0]
    if random:
        c = max(random, key=lambda c: c.chunk_tokens)
        times = max(c.chunk_tokens // max(plan.original.phases[0][1], 1), 1)
        what = f"{'an' if c.shuffle == 'era' else 'a'} {c.shuffle} shuffle"
        yield (
            _fields(random, "shuffle"),
            f"{what} reads a chunk of {c.chunk_tokens:,} tokens for each row, up to {times:,} times"
            " what it uses",
            "Leave shuffle out: the braided shuffle mixes batches as well and reads each chunk"
            " about once.",
        )


@_rule("warning", "reads_by_score")
def _reads_by_score(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        reads = plan.orders[c.name].block_reads
        if reads < _BLOCK_READS:
            continue
        of_component = plan.sources[c.name].shuffle is not None
        path = f"components.{c.name}.shuffle" if of_component else "shuffle"
        cure = "Leave it out: the braided shuffle reads each chunk about once."
        if plan.written.shuffle_for(c.name).scored_by is not None:
            path += ".steps"
            cure = f"Fewer steps read less, e.g. {path}=2."
        yield (
            path,
            f"reads each chunk of {c.name!r} about {reads:.1f} times an epoch, as rows of each step"
            " lie in most of them",
            cure,
        )


@_rule("warning", "not_shuffled")
def _unshuffled(plan: RunPlan) -> Iterator[_Advice]:
    plain = [c for c in plan.components if c.shuffle == "none" and c.largest_share > 0]
    if plain and plan.original.compat is None:
        yield (
            _fields(plain, "shuffle"),
            "is false: rows come in stored order, neighbours of one file in one batch",
            "Leave shuffle out, unless the sources were shuffled before they were tokenized.",
        )


@_rule("warning", "excess_loss")
def _excess_loss(plan: RunPlan) -> Iterator[_Advice]:
    for name, noise in plan.noise.items():
        if noise.excess > EXCESS:
            yield (
                f"components.{name}",
                f"is {noise.icc:.0%} between {noise.between}: expect {noise.excess - 1:+.0%} excess"
                " loss over a full shuffle",
                noise.cure(plan.sources[name].caches[0]),
            )


@_rule("warning", "small_window")
def _small_windows(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        rows = plan.largest_batch * c.largest_share
        if (
            c.shuffle == "block"
            and c.open_blocks * c.block_rows < c.rows
            and c.open_blocks < 0.98 * rows
        ):
            yield (
                f"components.{c.name}.shuffle" if plan.sources[c.name].shuffle else "shuffle",
                f"mixes {c.open_blocks:,} blocks at a time, fewer than the {rows:,.0f} rows that"
                f" {c.name!r} gives to a batch, so rows of one block meet in a batch",
                f"Raise window_blocks to {round(rows):,} or more, or leave shuffle out for the"
                " braided one.",
            )


@_rule("warning", "more_hosts")
def _more_hosts(plan: RunPlan) -> Iterator[_Advice]:
    hosts = max(h.hosts for h in plan.unlimited.by_hosts)
    mixture = plan.first
    components = dict(zip(mixture.names, mixture.components, strict=True))
    if problem := too_many_hosts(components, plan.original.max_hosts, hosts):
        yield (
            "max_hosts",
            problem,
            f"Before the run begins, write max_hosts: {hosts}. A run that has begun goes on with"
            " what it has.",
        )


@_rule("warning", "shared_blocks")
def _shared_blocks(plan: RunPlan) -> Iterator[_Advice]:
    setting = plan.original.exchange_setting
    shared = [
        h for h in plan.unlimited.by_hosts if h.hosts > 1 and h.reads_with(setting) > SHARED_READS
    ]
    # Reported by _random_reads.
    is_random = any(order.reads_rows for order in plan.orders.values())
    if shared and plan.settled and not is_random:
        h = max(shared, key=lambda h: h.reads_with(setting))
        blocked = [c.name for c in plan.components if c.shuffle == "block"]
        yield (
            "row_order"
            if plan.original.row_order == "stream"
            else "shuffle"
            if blocked
            else "components",
            f"hosts share blocks: on {h.hosts} hosts each block is read"
            f" {h.reads_with(setting):.1f} times in an epoch",
            sharing_cure(plan.original, plan.orders.values()),
        )


@_rule("warning", "scattered_buckets")
def _scattered_buckets(plan: RunPlan) -> Iterator[_Advice]:
    """Buckets that read each other's chunks, if memory does not hold these until all are done."""
    if plan.forecast is None:
        problem = "need more open chunks than memory holds, as each bucket reads chunks of others"
    else:
        pairs = zip(plan.forecast.by_hosts, plan.unlimited.by_hosts, strict=True)
        repeated = [
            h for h, free in pairs if h.reads_per_block > _BLOCK_READS * free.reads_per_block
        ]
        if not repeated:
            return
        worst = max(repeated, key=lambda h: h.reads_per_block)
        problem = (
            f"read each chunk {worst.reads_per_block:.1f} times on"
            f" {format_count(worst.hosts, 'host')}, as it holds"
            " documents of several buckets"
        )
    datasets = dict(zip(plan.first.names, plan.first.components, strict=True))
    sources: set[str] = set()
    for name, component in plan.sources.items():
        source = name.rpartition("/")[0] or name
        if component.buckets is None or source in sources:
            continue
        sources.add(source)
        of_source = [
            datasets[one] for one in datasets if one == name or one.startswith(f"{source}/")
        ]
        if cure := _grouping_cure(source, component, component.buckets, _share_parts(of_source)):
            yield f"components.{source}.buckets", problem, cure


def _grouping_cure(
    source: str, component: ComponentConfig, buckets: BucketsConfig, share_parts: bool
) -> str:
    """What ends it that buckets share chunks: the commands that group the documents of a source, or
    move those of a store in groups that are in others by now. Empty if its buckets are layers of
    one store in groups, or have parts of their own.
    """
    attribute = (component.attributes or {}).get(buckets.by)
    files = buckets.by if attribute is None else attribute.files
    is_numbered = files.endswith(".npy") or (attribute is not None and attribute.key == DOCUMENT)
    if component.caches[1:] and (is_numbered or buckets.quantiles):
        return (
            "Group each of its caches by itself, and name the copies as cache: that needs edges,"
            " and numbers that a leaf, an id or the length says."
        )
    bounds = ",".join(f"{bound:g}" for bound in buckets.bounds)
    options = {"by": buckets.by, "quantiles" if buckets.quantiles else "edges": bounds}
    if attribute is not None:
        options["attributes"] = f"{buckets.by}={as_option(attribute)}"
    if component.format is not None:
        options["format"] = as_option(component.format)
    is_layered = buckets.levels is not None or buckets.repeats is not None
    commands: list[str] = []
    for number, cache in enumerate(component.caches):
        ledger = read_ledger(cache)
        shuffled = {} if ledger is None else ledger.metadata.get(SHUFFLED, {})
        root = cache.rstrip("/")
        if ledger is None:  # another system's, beside which nothing is written
            root = f"{source}-{number}" if number else source
        output = f"{root}-by-{PurePath(buckets.by).stem}"
        is_update = shuffled.get("by", [])[:2] == ["--by", buckets.by]
        if is_update and (is_layered or not share_parts):
            continue
        paths = (shuffled["cache"], cache) if is_update else (cache, output)
        commands.append(command_line("cache reshuffle", *paths, **options, update=is_update))
    if commands and commands[-1].endswith(" --update"):
        return f"Move the documents that changed: {' && '.join(commands)}"
    if not commands:
        return ""
    return (
        "Write a store in which each bucket has chunks of its own, and name it as cache:"
        f" {' && '.join(commands)}"
    )


def _share_parts(datasets: Sequence[PlannedDataset]) -> bool:
    """Whether a part of a cache has documents of several buckets."""
    return bool((np.sum([stored_dataset(one).parts_left for one in datasets], axis=0) > 1).any())


@_RULES.append
def _memory(plan: RunPlan) -> Iterator[Finding]:
    budget = plan.original.prefetch_bytes
    tested = [h.hosts for h in plan.unlimited.by_hosts]
    short = {
        n: plan.open_bytes.window_bytes(1 / n)
        for n in tested
        if plan.open_bytes.refused(budget, 1 / n)
    }
    listed = ", ".join(f"{needed:,} on {format_count(n, 'host')}" for n, needed in short.items())
    if plan.refused is not None:
        yield Finding(
            "problem", "no_memory", "prefetch_bytes", plan.refused, "Raise prefetch_bytes."
        )
    elif short:
        enough = -(-plan.open_bytes.window_bytes() // budget)
        least = min(short)
        exchange = plan.open_bytes.exchange_cure(budget, 1 / least)
        yield Finding(
            "problem" if len(short) == len(tested) else "warning",
            "no_memory",
            "prefetch_bytes",
            f"{budget:,} bytes do not hold the blocks that the shuffle keeps open,"
            " and the loader refuses"
            f" to start: {listed} (most of them for component {plan.open_bytes.largest!r})",
            f"Use {enough:,} hosts or more, raise it to {short[least] * 5 // 4:,}, or lower"
            f" shuffle.strands (or window_blocks){exchange}.",
        )
    elif plan.forecast is not None:
        for h, free in zip(plan.forecast.by_hosts, plan.unlimited.by_hosts, strict=True):
            if h.reads_per_block > 1.2 * free.reads_per_block:
                yield _read_again(h, free, plan)
                return
        for n in tested:
            shortage = plan.open_bytes.shortage(budget, n)
            if shortage is not None:
                needed = plan.open_bytes.needed(1 / n)
                yield Finding(
                    "warning",
                    "little_memory",
                    "prefetch_bytes",
                    shortage,
                    f"Raise it to {needed:,}.",
                )
                return


def _read_again(h: HostForecast, free: HostForecast, plan: RunPlan) -> Finding:
    return Finding(
        "warning",
        "little_memory",
        "prefetch_bytes",
        f"{plan.original.prefetch_bytes:,} bytes make {format_count(h.hosts, 'host')} read blocks"
        " again:"
        f" {h.reads_per_block:.2f} times in an epoch, and {free.reads_per_block:.2f} with all the"
        " memory that it wants",
        f"Raise it to {free.resident_bytes * 5 // 4:,}.",
    )


@_rule("warning", "many_epochs")
def _many_epochs(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        if c.epochs is not None and c.epochs > EPOCHS:
            yield (
                f"components.{c.name}.weight",
                f"makes {c.epochs:,.1f} passes over {c.row_tokens:,} tokens; beyond {EPOCHS:g} it"
                " helps little",
                f"Lower it, or set components.{c.name}.max_epochs: its share then goes to the"
                " others.",
            )


@_rule("warning", "never_drawn")
def _never_drawn(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        if c.drawn_rows == 0:
            why = (
                f"is never reached: its share stays below one row in {plan.steps:,} steps"
                if c.largest_share
                else "is 0 at every step of the run"
            )
            yield (
                f"components.{c.name}.weight",
                f"{why}, so nothing of it is trained on",
                "Raise it, move its schedule into the run, or leave the component out.",
            )


@_rule("warning", "weight_not_reached")
def _points_behind(plan: RunPlan) -> Iterator[_Advice]:
    if plan.steps is None:
        return
    for name, component in plan.sources.items():
        if not isinstance(component.weight, dict):
            continue
        steps = written_steps(without_repeats({name: component.weight})[name])
        late = [s for s in steps if s > plan.steps]  # a ramp may end where the run ends
        if late:
            yield (
                f"components.{name}.weight",
                f"has a point at step {min(late):,}, and the run ends after step"
                f" {plan.steps - 1:,}: that weight is never reached",
                "Move the point into the run, or prolong the run.",
            )


@_rule("warning", "weight_before_schedule")
def _before_the_first_point(plan: RunPlan) -> Iterator[_Advice]:
    for name, component in plan.sources.items():
        if isinstance(component.weight, dict) and "step" in component.weight:
            step, weight = weight_from_config(component.weight).points[0]
            if step > 0:
                yield (
                    f"components.{name}.weight",
                    f"says nothing of the steps before {step:,}: it is {weight:g} from the start",
                    f"Say so: {{step: {{0: {weight:g}, ...}}}}, or {{step: {{0: 0, {step}:"
                    f" {weight:g}}}}}.",
                )


@_rule("warning", "capped")
def _other_shares(plan: RunPlan) -> Iterator[_Advice]:
    total = sum(c.drawn_rows or 0 for c in plan.components)
    capped = [c for c in plan.components if _is_capped(plan, c)]
    if (
        not total
        or not capped
        or len(plan.stages) > 1
        or any(c.first_share != c.last_share for c in plan.components)
    ):
        return  # the target share of a whole run is well defined only if it is constant
    for c in capped:
        share = (c.drawn_rows or 0) / total
        if c.first_share and share < (1 - _SHARE_OFF) * c.first_share:
            yield (
                f"components.{c.name}",
                f"is used up before the run ends: {share:.2%} of the rows in place of"
                f" {c.first_share:.2%}, and the others take the rest",
                "Raise its max_epochs or max_tokens, or lower its weight to what it can give.",
            )


def _is_capped(plan: RunPlan, c: ComponentPlan) -> bool:
    component = plan.sources[c.name]
    return (
        component.max_tokens is not None
        or component.max_epochs is not None
        or plan.original.max_epochs is not None
    )


@_rule("warning", "shorter_than_a_batch")
def _short_sources(plan: RunPlan) -> Iterator[_Advice]:
    for c in plan.components:
        rows = plan.largest_batch * c.largest_share
        if rows > c.rows:
            yield (
                f"components.{c.name}",
                f"has {c.rows:,} rows and gives {rows:,.0f} to a batch, so rows repeat within one"
                " batch",
                "Lower its weight, or add text to it.",
            )


@_rule("warning", "small_chunks")
def _small_chunks(plan: RunPlan) -> Iterator[_Advice]:
    longest = max(length for _, length in plan.original.phases)
    small = [c for c in plan.components if c.chunk_tokens < longest]
    if small:
        c = min(small, key=lambda c: c.chunk_tokens)
        yield (
            _fields(small, "cache"),
            f"has chunks of {c.chunk_tokens:,} tokens, less than a row of {longest:,}: a row takes"
            f" {-(-longest // c.chunk_tokens)} reads",
            f"Build it with --chunk-tokens {longest * 16}.",
        )


@_rule("problem", "uneven_hosts")
def _uneven_hosts(plan: RunPlan) -> Iterator[_Advice]:
    for h in plan.unlimited.by_hosts:
        if plan.batch_size % h.hosts:
            yield (
                "batch_size",
                f"{plan.batch_size} rows do not divide over {h.hosts} hosts",
                f"Use {-(-plan.batch_size // h.hosts) * h.hosts}, or another number of hosts.",
            )


def _looked(c: ComponentPlan) -> str:
    """The rows of a component that figures about conversations are about."""
    looked = 0 if c.conversations is None else c.conversations.looked_rows
    return f"{c.rows:,} rows" if looked == c.rows else f"{looked:,} rows that were looked at"


def _fields(components: Sequence[ComponentPlan], field: str) -> str:
    names = [c.name for c in components]
    listed = ",".join(names[:4]) + (f",... ({len(names)} in all)" if len(names) > 4 else "")
    return f"components.{listed}.{field}" if len(names) == 1 else f"components.{{{listed}}}.{field}"
