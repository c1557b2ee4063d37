"""The components of a run: from caches to rows in their own orders.

1. :func:`stored_rows`: the rows of a cache.
2. :func:`component_sides` and :func:`subset_side`: what is held out of them, and trained on.
3. :func:`shuffle_components`: all in their orders. The strands of braids depend on all components
   together: on the memory budget of the job, the largest batch, and the largest share that each
   component ever has in a planned stage (:func:`~headrace.mix.stages.plan_shares`); in shuffled
   stores, on the most hosts of the run instead of the budget. A component keeps its strands from
   stage to stage. Components that an amendment adds get their share of the budget in addition,
   because the strands of the others are part of the past.
4. :func:`account`: where each token goes. Everything that is dropped is counted: ``tokens +
   repeated_tokens = train_tokens + validation_tokens + unused_tokens + removed_tokens +
   dropped_tokens``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias, cast

import numpy as np

from headrace.data.async_dataset import AsyncDataset
from headrace.data.columns import Column, ColumnConfig
from headrace.data.dataset import PlannedDataset
from headrace.data.documents import DocumentFilter
from headrace.data.packed import PackedTokenDataset
from headrace.data.packed_store import PackedStoreDataset, StoredDataset
from headrace.data.saved_filters import RemovedDocuments
from headrace.data.token_seq import TokenSeqDataset, is_of_pairs, stored_dataset
from headrace.errors import ConfigError
from headrace.mix.plan import Plan
from headrace.mix.stages import plan_shares
from headrace.order.braid import FEW_BLOCKS
from headrace.order.holdout import HoldOut, ValidationConfig
from headrace.order.intervals import chunks_of
from headrace.order.order import Order, Slice
from headrace.order.seeds import derive
from headrace.order.shuffle_config import (
    MAX_HOSTS,
    BraidShuffleConfig,
    RowsToOrder,
    Scores,
    Shuffle,
    ShuffleConfig,
    Strands,
    resolve_strands,
    shuffle_of,
)
from headrace.order.subset import LEAST_BLOCKS, Subset, SubsetConfig
from headrace.pack.spec import PackingConfig
from headrace.store.cache import TokenCache


def stored_rows(
    cache: TokenCache,
    seq_len: int,
    *,
    name: str,
    split_documents: bool = False,
    packing: PackingConfig | None = None,
    removed: DocumentFilter | RemovedDocuments | None = None,
    loss_mask: str = "auto",
    columns: Mapping[str, ColumnConfig | Column] | None = None,
    pairs: bool | None = None,
) -> StoredDataset:
    """The rows of a component: windows of its cache's token stream, or packs of its documents.

    Arguments are the fields of :class:`~headrace.config.component.ComponentConfig` and of the run's
    config; ``columns`` are those of the run as this component has them.

    Raises:
        ConfigError: as for the dataset; or the cache is only declared, so its documents have no
            lengths to plan with.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=50)
        >>> type(stored_rows(cache, 64, name="a", packing=PackingConfig())).__name__
        'PackedTokenDataset'
    """
    loss_mask = cache.mask_leaf(loss_mask, f"components.{name}.loss_mask") or "none"
    settings: dict[str, Any] = {
        "name": name,
        "removed": removed,
        "loss_mask": loss_mask,
        "columns": columns,
        "pairs": pairs,
    }
    if any(one.pack for one in cache.members):
        return _packed_store(cache, seq_len, packing, settings)
    if packing is None:
        with pairs_of_component(name):
            return TokenSeqDataset(cache, seq_len, split_documents=split_documents, **settings)
    if cache.ledger.tokenizer.get("fingerprint") == "virtual":
        raise ConfigError(
            "needs the lengths of documents, and the cache does not exist yet",
            field=f"components.{name}.packing",
            cure="Build the cache, or leave packing out of the forecast.",
        )
    try:
        with pairs_of_component(name):
            return PackedTokenDataset(cache, seq_len, **settings, **vars(packing))
    except ConfigError as error:
        path = f"components.{name}.packing"
        if error.field == "capacity":
            raise error.but(field=f"{path}.capacity") from error
        if not (error.field or "").startswith("lengths"):
            raise
        unit = packing.resolved(pairs=is_of_pairs(cache, pairs), conversations=False).unit
        raise _about_documents(error, path, unit or 1) from error


_PAIR_FIELDS = {
    "packing": "packing",
    "unit": "packing.unit",
    "long": "packing.long",
    "algorithm": "packing.algorithm",
    "loss_mask": "loss_mask",
}
"""Fields of a component, by the name of the argument that errors of a dataset name."""


@contextmanager
def pairs_of_component(name: str) -> Iterator[None]:
    """Errors about preference pairs and how they are packed name fields of this component of a
    config.
    """
    try:
        yield
    except ConfigError as error:
        path = f"components.{name}"
        field = str(error.field)
        if field not in _PAIR_FIELDS and not field.startswith("chosen["):
            raise
        named = (
            f"{path}.{_PAIR_FIELDS[field]}" if field in _PAIR_FIELDS else f"{field} of {path}.cache"
        )
        cure = (error.cure or "").replace("packing: {}", f"{path}.packing: {{}}")
        cure = cure.replace("pairs: false", f"{path}.pairs: false")
        raise error.but(field=named, cure=cure) from error


def _packed_store(
    cache: TokenCache, seq_len: int, packing: PackingConfig | None, settings: dict[str, Any]
) -> PackedStoreDataset:
    if packing != PackingConfig():
        name = settings["name"]
        raise ConfigError(
            f"is not what {cache.path} needs, whose documents are packed already",
            field=f"components.{name}.packing",
            value=packing,
            cure=f"components.{name}.packing: {{}}",
        )
    del settings["pairs"]  # which are not packed so
    return PackedStoreDataset(cache, seq_len, **settings)


def _about_documents(error: ConfigError, field: str, unit: int = 1) -> ConfigError:
    """An error of a planner, which knows lengths only, in terms of a config; other errors as they
    are.
    """
    if not (error.field or "").startswith("lengths"):
        return error
    number = (error.field or "").removeprefix("lengths").strip("[]")
    subject = ""
    if number:
        document = int(number) * unit
        listed = (
            f"document {document}"
            if unit == 1
            else f"documents {document} to {document + unit - 1}"
        )
        subject = f"{listed}, {error.value:,} tokens, "
    return ConfigError(f"{subject}{error.problem}", field=field, cure=error.cure)


def split_sides(
    dataset: StoredDataset,
    split: ValidationConfig,
    *,
    block_tokens: int | None = None,
    seq_len: int | None = None,
    how: HoldOut | None = None,
) -> tuple[PlannedDataset, PlannedDataset]:
    """Train and validation side, the same tokens whatever the length of rows (of packs: if
    documents are held out).

    Blocks of ``block_tokens`` are held out (None: the split's size), in rows of ``seq_len`` (None:
    the dataset's). ``how`` says which, if that was decided for rows of another length.

    Raises:
        ConfigError: the split does not fit the dataset or the blocks; rows are longer than a block.

    Example:
        >>> import headrace.testing
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=500), seq_len=8)
        >>> short, long = (split_sides(dataset, ValidationConfig(8), seq_len=n)[1] for n in (8, 32))
        >>> len(short) == 4 * len(long), len(long) > 0
        (True, True)
    """
    if split.by == "documents":
        train, validation = dataset.holdout_documents(split.groups_of, seed=split.seed)
        return (
            (train, validation)
            if seq_len is None
            else (train.with_rows(seq_len), validation.with_rows(seq_len))
        )
    if block_tokens is None:
        how = split.holdout(dataset)
        block_tokens = how.block * dataset.seq_len
    elif split.io_block_size not in (None, block_tokens // dataset.seq_len):
        raise ConfigError(
            f"differs from the blocks of {block_tokens // dataset.seq_len} rows in which seq_len"
            " changes",
            field="validation.io_block_size",
            value=split.io_block_size,
            cure="Leave it out.",
        )
    elif how is None:
        how = split.holdout(dataset, block_tokens // dataset.seq_len)
    if seq_len not in (None, dataset.seq_len):
        dataset = dataset.with_rows(seq_len, block_tokens=block_tokens)
    block = block_tokens // dataset.seq_len
    sides = dataset.holdout(how.one_in, seed=split.seed, io_block_size=block, groups=how.groups)
    return cast("tuple[PlannedDataset, PlannedDataset]", sides)


def component_sides(
    name: str,
    dataset: StoredDataset,
    split: ValidationConfig | None,
    *,
    path: str = "validation",
    block_tokens: int | None = None,
    seq_len: int | None = None,
) -> tuple[PlannedDataset, PlannedDataset]:
    """:func:`split_sides` of a component, which errors name; both sides are all of it if nothing is
    held out.

    ``path`` is that of the split in the config.
    """
    if split is None:
        return dataset, dataset
    with naming_split(name, path, split):
        return split_sides(dataset, split, block_tokens=block_tokens, seq_len=seq_len)


@contextmanager
def naming_split(name: str, path: str, split: ValidationConfig) -> Iterator[None]:
    """Within it, errors of a split name the component, its place in the config, and how to hold
    nothing out of it.
    """
    try:
        yield
    except ConfigError as error:
        named = _about_documents(error, "")
        field = (named.field or "").removeprefix("validation.")
        value = {} if named.value is None else {"value": named.value}
        if field == "one_in" and split.fraction is not None:
            field = "fraction"
            value = {"value": split.fraction}
        field = f"{path}.{field}" if field else path
        problem = f"{named.problem.rstrip('.')} (component {name!r})"
        cure = (named.cure or "").rstrip(".")
        cure += (
            f"{'. ' if cure else ''}To hold out nothing of it: components.{name}.validation: none."
        )
        raise ConfigError(problem, field=field, cure=cure, **value) from error


def subset_side(
    name: str, train: PlannedDataset, subset: SubsetConfig | None, path: str
) -> PlannedDataset:
    """The rows of a component's train side that are trained on.

    Args:
        name: Name of the component: subsets of one seed differ by name.
        train: Its train side, in stored order.
        subset: Which part of it to use; None: all.
        path: Path of the subset in the config, for errors.

    Raises:
        ConfigError: the subset is empty, or has more rows than there are.

    Example:
        >>> import headrace.testing
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=500), seq_len=8)
        >>> len(subset_side("a", dataset, SubsetConfig(fraction=0.1), "subset")) == len(
        ...     dataset
        ... ) // 10
        True
    """
    if subset is None:
        return train
    length = len(train)
    rows = subset.rows_of(len(train))
    if rows == 0:
        problem = f"leaves no row of component {name!r}, which has {length}"
        cure = f"Give at least {min(1.01 / length, 1):.3g}"
        cure += f", or leave the component as it is (components.{name}.subset: {{fraction: 1}})."
        raise ConfigError(problem, field=f"{path}.fraction", value=subset.fraction, cure=cure)
    if rows > length:
        problem = f"is more than the {length} rows of component {name!r}"
        cure = "Give fewer, or leave it out."
        raise ConfigError(problem, field=f"{path}.rows", value=rows, cure=cure)
    if rows == length:
        return train
    if subset.by == "start":
        return train.reordered(Slice(length, 0, rows))
    chunk = train.default_io_block_size()
    block = next(
        size for size in range(min(chunk, max(rows // LEAST_BLOCKS, 1)), 0, -1) if chunk % size == 0
    )
    order = Subset(
        length, rows, block=block, seed=derive(subset.seed, name), blocks=train.full_blocks(block)
    )
    return train.block_aligned(block).reordered(order)


RowScores: TypeAlias = Callable[[PlannedDataset], Scores]
"""Computes a score for each row of a component."""


@dataclass(frozen=True)
class Orders:
    """How the rows of each component of a run are split and ordered.

    Attributes:
        seed: Seed of all shuffles, which the name of a component makes its own.
        shuffles: How each component is shuffled. Braids without ``strands`` share one budget;
            others keep their number. If rows change their length, a block has the same tokens in
            all phases, and ``io_block_size`` counts rows of the first phase.
        own_shuffles: Components whose shuffle is set under their own name, for errors.
        validation: What is held out of components, by name, with its path in the config; several
            phases only.
        max_hosts: The most hosts of the run, from which strands of components in shuffled stores
            follow; None: these have strands like others.
        scores: What computes the scores of rows, for components whose shuffle is by a number; one
            phase only.
    """

    seed: int
    shuffles: Mapping[str, ShuffleConfig | Shuffle]
    own_shuffles: Collection[str] = ()
    validation: Mapping[str, tuple[ValidationConfig, str]] = field(
        default_factory=dict[str, tuple[ValidationConfig, str]]
    )
    max_hosts: int | None = MAX_HOSTS
    scores: Mapping[str, RowScores] = field(default_factory=dict[str, RowScores])


def shuffle_components(
    components: Mapping[str, PlannedDataset], plan: Plan, orders: Orders
) -> dict[str, PlannedDataset]:
    """Each component in its own order, keyed by the seed and its name.

    Args:
        components: Datasets in stored order.
        plan: A component's strands depend on its largest share in the planned stages, or in the
            first amendment that uses it, so later amendments do not change its order; and on the
            largest batch.
        orders: How each is shuffled.

    Raises:
        ConfigError: more strands than examples, or a budget that is less than one block of each
            component.
    """
    resolved = {name: shuffle_of(orders.shuffles[name]) for name in components}
    braided = {name: shuffle for name, shuffle in resolved.items() if shuffle.in_strands}
    hosts = {
        name: orders.max_hosts
        if components[name].in_shuffled_store and shuffle.chooses_strands
        else None
        for name, shuffle in braided.items()
    }
    strands = _resolve_braids(components, braided, hosts, plan, orders.own_shuffles)
    result: dict[str, PlannedDataset] = {}
    for name, dataset in components.items():
        shuffle = resolved[name]
        if shuffle.in_strands and name not in strands:
            raise ConfigError(
                "has no weight in any stage", field=f"components.{name}.weight", cure="Give it one."
            )
        with placed([name], orders.own_shuffles, shuffle):
            key = derive(orders.seed, "component", name)
            if hosts.get(name) is not None and stored_dataset(dataset).run_blocks > 1:
                # Few runs would be in nearly the same order in each epoch
                blocks = _length(dataset) // _block_rows(dataset, shuffle)
                most = blocks // max(strands[name].number, FEW_BLOCKS)
                shuffle = shuffle.in_runs(max(min(stored_dataset(dataset).run_blocks, most), 1))
            result[name] = _shuffled(
                dataset, shuffle, key, strands.get(name), orders.scores.get(name)
            )
    return result


def _shuffled(
    dataset: PlannedDataset,
    shuffle: Shuffle,
    seed: int,
    strands: Strands | None,
    scores: RowScores | None,
) -> PlannedDataset:
    block = 0
    if shuffle.in_blocks:
        block = (
            dataset.default_io_block_size()
            if shuffle.io_block_size is None
            else shuffle.io_block_size
        )
        dataset = dataset.block_aligned(block)
    of_rows = None if scores is None else scores(dataset)
    order = shuffle.order(RowsToOrder(_length(dataset), seed, block, strands, of_rows))
    return dataset.reordered(order) if order.reorders else dataset


@contextmanager
def placed(names: Sequence[str], own_shuffles: Collection[str], shuffle: Shuffle) -> Iterator[None]:
    """Renames errors about shuffle fields of these components to their paths in the config."""
    try:
        yield
    except ConfigError as error:
        if error.field not in shuffle.fields:
            raise
        field = f"components.{names[0]}.shuffle" if set(names) <= set(own_shuffles) else "shuffle"
        raise error.but(field=f"{field}.{error.field}") from error


def _resolve_braids(
    components: Mapping[str, PlannedDataset] | Mapping[str, Order],
    braided: Mapping[str, Shuffle],
    hosts: Mapping[str, int | None],
    plan: Plan,
    own_shuffles: Collection[str],
) -> dict[str, Strands]:
    """Strands of each braided component that some stage uses, those of planned stages first:
    strands are numbered through in this order. Orders suffice where no config has a budget of
    bytes.
    """
    orders: dict[str, tuple[int, float]] = {}
    planned = len(plan.stages) if plan.planned is None else plan.planned
    for stages in (plan.stages[:planned], *([stage] for stage in plan.stages[planned:])):
        shares = plan_shares(stages)
        new = [name for name in shares.largest if name in braided and name not in orders]
        by_config: dict[tuple[int | None, int | None, int | None], list[str]] = {}
        for name in new:  # each kind as if it were alone, at its share of the batch
            kind = (braided[name].strands, braided[name].budget_bytes, hosts[name])
            by_config.setdefault(kind, []).append(name)
        resolved: dict[str, tuple[int, float]] = {}
        for (strands, budget, most_hosts), names in by_config.items():
            with placed(names, own_shuffles, braided[names[0]]):
                block_bytes = None
                if budget is not None:
                    block_bytes = np.asarray(
                        [_block_bytes(components[n], braided[n]) for n in names]
                    )
                    # an amendment: its share of the budget, but a block for each component at least
                    if orders:
                        share = sum(shares.largest[n] for n in names)
                        budget = max(int(budget * min(share, 1.0)), int(block_bytes.sum()))
                strand_plan = resolve_strands(
                    np.asarray([_length(components[n]) for n in names], np.int64),
                    np.asarray([shares.largest[n] for n in names]),
                    batch_size=plan.batch.max_size,
                    strands=strands,
                    budget_bytes=budget,
                    block_bytes=block_bytes,
                    usual_shares=None
                    if shares.usual is None
                    else np.asarray([shares.usual[n] for n in names]),
                    hosts=most_hosts,
                    block_rows=1
                    if most_hosts is None
                    else np.asarray([_block_rows(components[n], braided[n]) for n in names]),
                    sources=len(new),
                )
            counts = strand_plan.strands.tolist()
            laps = strand_plan.laps.tolist()
            resolved |= dict(zip(names, zip(counts, laps, strict=True), strict=True))
        orders |= {name: resolved[name] for name in new}
    first = accumulate((count for count, _ in orders.values()), initial=0)
    return {
        name: Strands(count, lap, begin)
        for (name, (count, lap)), begin in zip(orders.items(), first, strict=False)
    }


def _length(dataset: PlannedDataset | Order) -> int:
    assert dataset.length is not None  # a component is repeated after it is shuffled
    return dataset.length


def _block_bytes(dataset: PlannedDataset | Order, shuffle: Shuffle) -> int:
    planned = cast(PlannedDataset, dataset)  # budgets are of configs
    return _block_rows(planned, shuffle) * planned.row_bytes


def _block_rows(dataset: PlannedDataset | Order, shuffle: Shuffle) -> int:
    """Rows of a block; those of an order are known."""
    return shuffle.io_block_size or cast(PlannedDataset, dataset).default_io_block_size()


def too_many_hosts(
    components: Mapping[str, PlannedDataset], max_hosts: int | None, hosts: int
) -> str | None:
    """What more hosts than ``max_hosts`` do to a run; None if they do nothing, as there are no more
    or no component in a shuffled store.
    """
    shuffled = [name for name, dataset in components.items() if dataset.in_shuffled_store]
    if max_hosts is None or hosts <= max_hosts or not shuffled:
        return None
    return (
        f"is less than the {hosts:,} hosts: strands of components in shuffled stores"
        f" ({', '.join(shuffled[:4])}) are for {max_hosts:,}, and hosts share their blocks"
    )


def share_strands(
    components: Mapping[str, AsyncDataset[Any]], plan: Plan
) -> dict[str, AsyncDataset[Any]]:
    """The components of a mixture, with pending orders resolved as in :func:`shuffle_components`.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> from headrace.mix.plan import plan_of
        >>> from headrace.mix.schedule import BatchSchedule
        >>> rows = TokenSeqDataset(
        ...     headrace.testing.tiny_cache(documents=1000), seq_len=8
        ... ).braid_shuffle(seed=0)
        >>> plan = plan_of({"a": 3, "b": 1}, "quota", ["a", "b"], BatchSchedule(16))
        >>> shared = share_strands({"a": rows, "b": rows}, plan)
        >>> [dataset.shuffle_order().strands for dataset in shared.values()]
        [96, 32]
    """
    pending = {
        name: order for name, d in components.items() if (order := d.pending_order) is not None
    }
    if not pending:
        return dict(components)
    braided = {
        n: BraidShuffleConfig(io_block_size=o.io_block_size, run_blocks=o.run_blocks)
        for n, o in pending.items()
    }
    hosts = {n: o.hosts for n, o in pending.items()}
    shared = _resolve_braids(pending, braided, hosts, plan, ())

    def shuffle(name: str, order: Order) -> Order:
        key = derive(pending[name].seed, "component", name)
        return braided[name].order(
            RowsToOrder(order.length, key, order.io_block_size, shared[name])
        )

    return {n: d.settled(partial(shuffle, n)) if n in pending else d for n, d in components.items()}


_CHUNK = 1 << 14  # rows whose segments are read together


@dataclass(frozen=True)
class Account:
    """One component, in rows of the first phase.

    Attributes:
        documents: Documents of its cache.
        tokens: Tokens of its cache.
        listed_documents: Numbers in its filter, repeats included.
        repeated_documents: Repeated numbers in the filter.
        not_found_documents: Numbers in the filter that no document has.
        removed_documents: Documents that the filter leaves out.
        removed_tokens: Tokens of these.
        train_rows: Rows that are trained on, per epoch.
        train_tokens: Tokens of these, without padding.
        validation_rows: Rows that are held out.
        validation_tokens: Tokens of these, without padding.
        unused_rows: Rows of the train side outside the subset that is trained on.
        unused_tokens: Tokens of these, without padding.
        dropped_tokens: Tokens that fill no row on either side.
        padding_tokens: Padding in the rows of both sides: packs are not quite full.
        incomplete_documents: Documents that are not packed because another one of their unit is
            removed or empty.
        incomplete_tokens: Tokens of these; part of ``dropped_tokens``.
        repeated_tokens: Tokens that rows contain more than once: the overlap of Megatron-LM's rows,
            and several passes in a run with ``compat``.
    """

    documents: int
    tokens: int
    listed_documents: int
    repeated_documents: int
    not_found_documents: int
    removed_documents: int
    removed_tokens: int
    train_rows: int
    train_tokens: int
    validation_rows: int
    validation_tokens: int
    dropped_tokens: int
    padding_tokens: int = 0
    incomplete_documents: int = 0
    incomplete_tokens: int = 0
    unused_rows: int = 0
    unused_tokens: int = 0
    repeated_tokens: int = 0

    def to_dict(self) -> dict[str, int]:
        """All figures as JSON values."""
        return asdict(self)


def account(
    dataset: StoredDataset,
    train: PlannedDataset,
    validation: PlannedDataset | None,
    subset: PlannedDataset | None = None,
) -> Account:
    """The account of a component. ``dataset`` has all documents but those to leave out, and
    ``subset`` is the part of the train side to train on (None: all of it).

    Example:
        >>> import headrace.testing
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=100), seq_len=8)
        >>> figures = account(dataset, *dataset.holdout_documents(one_in=10))
        >>> sides = figures.train_tokens + figures.validation_tokens
        >>> sides + figures.dropped_tokens == figures.tokens
        True
    """
    removal = dataset.removal
    repeated = dataset.repeated_tokens
    tokens = dataset.cache.original_tokens
    # what moved to later members of the cache counts once
    moved_tokens = dataset.cache.num_tokens - dataset.cache.padding_tokens - tokens
    removed_tokens = dataset.removed_tokens - moved_tokens
    validation_rows, validation_tokens = (
        (0, 0) if validation is None else (len(validation), _tokens(validation))
    )
    side_tokens = _tokens(train)
    train_tokens = side_tokens if subset is None else _tokens(subset)
    rows = len(train if subset is None else subset)
    return Account(
        documents=dataset.cache.num_originals,
        tokens=tokens,
        listed_documents=removal.listed,
        repeated_documents=removal.repeated,
        not_found_documents=removal.not_found,
        removed_documents=dataset.removed_documents,
        removed_tokens=removed_tokens,
        train_rows=rows,
        train_tokens=train_tokens,
        validation_rows=validation_rows,
        validation_tokens=validation_tokens,
        dropped_tokens=tokens + repeated - removed_tokens - side_tokens - validation_tokens,
        padding_tokens=(rows + validation_rows) * dataset.seq_len
        - train_tokens
        - validation_tokens,
        incomplete_documents=dataset.incomplete_documents,
        incomplete_tokens=dataset.incomplete_tokens,
        unused_rows=len(train) - rows,
        unused_tokens=side_tokens - train_tokens,
        repeated_tokens=repeated,
    )


def _tokens(side: PlannedDataset) -> int:
    """Tokens of all rows, without padding and without what is not trained on in the rows of a store
    in packs.
    """
    if not any(source.max_segments for source in side.sources):
        return len(side) * side.seq_len
    (source,) = side.sources
    return sum(
        int(source.content(side.locate(np.arange(first, stop)).row).size.sum())
        for first, stop in chunks_of(len(side), _CHUNK)
    )
