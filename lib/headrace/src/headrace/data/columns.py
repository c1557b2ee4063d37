"""Columns: values that a cache stores for its tokens or documents, delivered with each token of a
batch.

A **column** is a leaf or an attribute of a cache under its name in batches. A leaf with one value
per token arrives as ``[B, S]``, one with K values per token as ``[B, S, K]``, and one with a value
per document, as every attribute has, as ``[B, S]`` too, with the document's value at each of its
tokens. A value stays with its token through packing, shuffles, filters, splits, mixtures and
meshes. Padding has zeros.

One is not stored: ``document_number`` is the number that the token's document has in its cache, as
``headrace cache remove`` and ``headrace run cat`` name it. A leaf or an attribute of this name goes
first.

The mask of chats (``loss_mask``) is a column. So are weights: the column ``weight`` is the loss
weight of each token; multiplied by the mask, it becomes
:attr:`~headrace.batch.packed_batch.PackedBatch.token_mask`. Other columns are the batch's
``extras``.

Price: a column of tokens is read in blocks that match those of the tokens, one more request for
each. A column of documents is read whole, part by part as parts are used, and takes 12 to 16 bytes
of memory per document. A leaf that no column names is not opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from headrace.data.document_numbers import DocumentNumbers
from headrace.errors import ConfigError, check_choice, did_you_mean
from headrace.order.intervals import cut_ranges, starts
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS
from headrace.store.leaf import ArrayList, CacheLeaf, MadeList
from headrace.store.plain import ComputedArray, array_in_memory

MASK = "token_mask"
WEIGHT = "weight"
"""Names of the columns for the loss mask and the loss weight."""
NO_LEAF = "none"
DOCUMENT = "document_number"
"""What a column names for the number of each token's document; every cache has it."""
_RESERVED = (
    MASK,
    "loss_mask",
    "weights",
    "tokens",
    "labels",
    "position_ids",
    "segment_ids",
    "token_weights",
)


@dataclass(frozen=True)
class ColumnConfig:
    """A column of the batches.

    Attributes:
        leaf: The leaf or the attribute of the caches, or ``document_number``.
        default: The value for components without the leaf; None: every component must have it.

    Example:
        >>> ColumnConfig("loss_weights", default=1.0)
        ColumnConfig(leaf='loss_weights', default=1.0)
    """

    leaf: str
    default: float | None = None


class DocumentRuns(NamedTuple):
    """Runs of tokens with one value, in order: their piece, where they begin in it, and how many
    they are.
    """

    piece: Int64[np.ndarray, " r"]
    column: Int64[np.ndarray, " r"]
    size: Int64[np.ndarray, " r"]
    value: np.ndarray


class DocumentValues:
    """One number per document of one part of a cache, read when the first of them is needed."""

    def __init__(self, values: StoredArray, offsets: StoredArray, dtype: np.dtype[Any]) -> None:
        self.values = values
        self._offsets = offsets
        self._dtype = dtype

    @cached_property
    def _loaded(self) -> tuple[np.ndarray, np.ndarray]:
        values, offsets = (
            np.empty(array.length, array.dtype) for array in (self.values, self._offsets)
        )
        self.values.fill(values, 0)
        self._offsets.fill(offsets, 0)
        if not np.can_cast(values.dtype, self._dtype) and values.size:
            limits = np.finfo(self._dtype) if self._dtype.kind == "f" else np.iinfo(self._dtype)
            if values.min() < limits.min or values.max() > limits.max:
                raise ConfigError(
                    f"holds numbers outside {limits.min} .. {limits.max}, which devices do not"
                    " take",
                    field="columns",
                    value=self.values.url,
                    cure="Keep smaller numbers in this leaf, such as those of the documents.",
                )
        return offsets, values.astype(self._dtype)

    def runs(self, start: Int64[np.ndarray, " p"], size: Int64[np.ndarray, " p"]) -> DocumentRuns:
        """Some runs of tokens of the part, cut where documents end."""
        offsets, values = self._loaded
        run, document, begin, end = cut_ranges(start, start + size, offsets[:-1], offsets[1:])
        return DocumentRuns(run, begin - start[run], end - begin, values[document])

    def of_tokens(
        self, start: Int64[np.ndarray, " p"], size: Int64[np.ndarray, " p"]
    ) -> np.ndarray:
        """The value at each token of some runs of tokens of the part, end to end."""
        runs = self.runs(start, size)
        return np.repeat(runs.value, runs.size)


@dataclass(frozen=True, eq=False)
class Column:
    """A column of one source: of tokens, or of documents.

    Attributes:
        leaf: The leaf.
        dtype: Dtype in batches.
        default: The value for sources without it; None: every source must have it.
        width: Values per token.
        arrays: For a column of tokens: its array for each array of the source, in chunks that match
            those of the tokens.
        documents: For a column of documents: the values of the documents in each array of the
            source.
        digest: For an attribute: of its values, which the fingerprint of the cache does not cover.
    """

    leaf: str
    dtype: np.dtype[Any]
    default: float | None
    width: int = 1
    arrays: Sequence[StoredArray] = ()
    documents: Sequence[DocumentValues] = ()
    digest: str | None = None

    @property
    def stored(self) -> Iterator[StoredArray]:
        """All arrays that the column is read from."""
        yield from self.arrays
        yield from (part.values for part in self.documents)

    def describe(self) -> dict[str, Any]:
        """As JSON values, for fingerprints."""
        further = {"default": self.default, "digest": self.digest}
        return {"leaf": self.leaf, **{k: v for k, v in further.items() if v is not None}}


@dataclass(frozen=True, eq=False)
class RunColumn:
    """A column over all sources of a run, by array.

    Attributes:
        name: Its name in batches.
        width: Values per token.
        dtype: Dtype in batches.
        default: The value where neither an array nor documents have one.
        arrays: The column's array for each array of tokens; a placeholder where there is none.
        sources: For each source, its number of arrays of tokens, and the values of their documents,
            if any.
        fill: The value where a row has no piece.
    """

    name: str
    width: int
    dtype: np.dtype[Any]
    default: float
    arrays: ArrayList
    sources: Sequence[tuple[int, Sequence[DocumentValues]]] = ()
    fill: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether any of it is stored in chunks that match those of the tokens."""
        return any(run.dtype is not None for run in self.arrays.runs)

    @cached_property
    def has_documents(self) -> bool:
        """Whether any of it has values per document."""
        return any(documents for _, documents in self.sources)

    def documents(self, array: int) -> DocumentValues | None:
        """The values of the documents of an array of tokens, if it has any."""
        source = int(np.searchsorted(self._ends, array, side="right"))
        count, documents = self.sources[source]
        return documents[array - int(self._ends[source]) + count] if documents else None

    @cached_property
    def _ends(self) -> Int64[np.ndarray, " s"]:
        return np.cumsum([count for count, _ in self.sources])


def run_columns(sources: Sequence[Any]) -> list[RunColumn]:
    """The columns of the batches of some sources: the mask first, the others by name.

    Raises:
        ConfigError: a source lacks a column that has no default; a default that does not fit the
            column's dtype; columns of one name with different numbers of values per token.
    """
    names = {name for source in sources for name in source.columns}
    return [
        _run_column(name, sources) for name in sorted(names, key=lambda name: (name != MASK, name))
    ]


def _run_column(name: str, sources: Sequence[Any]) -> RunColumn:
    of_sources = [(source, source.columns.get(name)) for source in sources]
    having = [(source, column) for source, column in of_sources if column is not None]
    first = having[0][1]
    field = f"columns.{name}"
    for source, column in having:
        if column.width != first.width:
            problem = (
                f"has {column.width} values per token in {source.name}, and {first.width} in"
                f" {having[0][0].name}"
            )
            raise ConfigError(
                problem, field=field, cure="Build these leaves alike, or name two columns."
            )
    default = next((column.default for _, column in having if column.default is not None), None)
    lacking = next((source.name for source, column in of_sources if column is None), None)
    dtype = np.result_type(*{column.dtype for _, column in having})
    if lacking is not None and default is None:
        cure = f"Give it a default: {_with_default(name, first.leaf)}."
        raise ConfigError(f"is not in {lacking}", field=field, value=first.leaf, cure=cure)
    if (
        default is not None
        and dtype.kind != "f"
        and (default != int(default) or not _holds(dtype, int(default)))
    ):
        cure = f"Give a value of {dtype.name}."
        problem = f"is no value of {dtype.name}, as the column is"
        raise ConfigError(problem, field=f"{field}.default", value=default, cure=cure)
    lists = [
        ArrayList.of(c.arrays) if c and c.arrays else ArrayList.missing(len(s.arrays))
        for s, c in of_sources
    ]
    documents = [(len(s.arrays), c.documents if c else ()) for s, c in of_sources]
    return RunColumn(name, first.width, dtype, default or 0, ArrayList.join(lists), documents)


def _holds(dtype: np.dtype[Any], value: int) -> bool:
    low, high = (
        (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    )
    return low <= value <= high


def open_columns(
    cache: TokenCache, mask: str | None, columns: Mapping[str, str | ColumnConfig | Column]
) -> dict[str, Column]:
    """The columns of a cache. A column whose leaf it lacks is left out if it has a default.

    Args:
        cache: The cache.
        mask: Leaf that marks the tokens to train on; None: all.
        columns: Leaves by their names in batches.

    Raises:
        ConfigError: there is no such leaf; it has neither a fixed number of values per token nor
            one per document; its dtype is not one that devices accept; a name that a batch already
            uses.

    Example:
        >>> import headrace.testing
        >>> open_columns(
        ...     headrace.testing.tiny_cache(), None, {"score": ColumnConfig("score", default=0)}
        ... )
        {}
    """
    opened: dict[str, Column] = {}
    if mask is not None:
        opened[MASK] = _mask_column(cache, mask)
    for name, spec in columns.items():
        check_column_name(name)
        if isinstance(spec, Column):  # the default everywhere
            opened[name] = spec
            continue
        config = _config_of(spec)
        if config.leaf in _names(cache):
            opened[name] = _column(cache, name, config)
        elif config.default is None:
            raise ConfigError(
                f"is not a leaf of {cache.path}",
                field=f"columns.{name}",
                value=config.leaf,
                cure=f"{did_you_mean(config.leaf, _names(cache))} Or give it a value where there is"
                f" no such leaf: {_with_default(name, config.leaf)}.",
            )
    return opened


def check_column_name(name: str) -> None:
    """Raises ConfigError if a column cannot have this name in a batch."""
    if name in _RESERVED or not name.isidentifier():
        cure = (
            "Batches have a field of this name: use another."
            if name in _RESERVED
            else "Use letters, digits and _."
        )
        cure = "Say which tokens are trained on with loss_mask." if name in _RESERVED[:2] else cure
        cure = (
            f"Write {WEIGHT} if these are loss weights, else use another."
            if name == "weights"
            else cure
        )
        raise ConfigError("cannot be the name of a column", field="columns", value=name, cure=cure)


def component_columns(
    numbers: DocumentNumbers,
    columns: Mapping[str, str | ColumnConfig],
    own: Mapping[str, str],
    path: str,
) -> dict[str, ColumnConfig]:
    """The columns of a run for a component whose ``own`` leaves have other names (``none``: it has
    none).

    Raises:
        ConfigError: it names a column that the run does not have, or lacks one that has no default.
    """
    configs: dict[str, ColumnConfig] = {}
    for name, spec in columns.items():
        config = _config_of(spec)
        configs[name] = ColumnConfig(own.get(name, config.leaf), config.default)
    for name, leaf in own.items():
        if name not in columns:
            cure = f"Name it for the run first: columns: {{{name}: {leaf}}}."
            raise ConfigError(
                "is no column of the run", field=f"{path}.columns.{name}", value=leaf, cure=cure
            )
        if leaf != NO_LEAF:
            check_choice(
                f"{path}.columns.{name}",
                leaf,
                [*_names(numbers.cache), *numbers.attributes, NO_LEAF],
                f"is neither a leaf nor an attribute of {numbers.cache.path}",
            )
        elif configs[name].default is None:
            cure = f"Give it a default: {_with_default(name, _config_of(columns[name]).leaf)}."
            raise ConfigError(
                "leaves the column without values",
                field=f"{path}.columns.{name}",
                value=leaf,
                cure=cure,
            )
    return configs


def leaves_of(columns: Mapping[str, str | ColumnConfig], own: Mapping[str, str]) -> set[str]:
    """The leaves that a component has the columns of a run from.

    Example:
        >>> leaves_of({"score": ColumnConfig("score")}, {"score": "other"})
        {'other'}
    """
    return {own.get(name, _config_of(column).leaf) for name, column in columns.items()}


def _config_of(given: str | ColumnConfig) -> ColumnConfig:
    return ColumnConfig(given) if isinstance(given, str) else given


def _with_default(name: str, leaf: str) -> str:
    """A column with a default, as a config has it."""
    return f"columns.{name}: {{leaf: {leaf}, default: {int(name == WEIGHT)}}}"


def of_batch(
    columns: Mapping[str, np.ndarray],
) -> tuple[np.ndarray | None, dict[str, np.ndarray] | None]:
    """Columns in the form of a batch: its ``token_mask`` and its ``extras``, or None.

    Example:
        >>> mask, extras = of_batch(
        ...     {"weight": np.ones((1, 2), np.float32), "score": np.zeros((1, 2), np.float32)}
        ... )
        >>> mask.tolist(), [*extras]
        ([[1.0, 1.0]], ['score'])
    """
    mask = columns.get(MASK)
    weight = columns.get(WEIGHT)
    if mask is not None and mask.dtype != np.uint8:  # as Levanter's caches have it
        mask = (mask != 0).view(np.uint8)
    if weight is not None:
        mask = weight if mask is None else weight * (mask != 0)
    return mask, {n: v for n, v in columns.items() if n not in (MASK, WEIGHT)} or None


def columns_by_component(
    numbers: Mapping[str, DocumentNumbers],
    columns: Mapping[str, str | ColumnConfig],
    own: Mapping[str, Mapping[str, str]],
) -> dict[str, dict[str, ColumnConfig | Column]]:
    """The columns of a run for each of its components, whose ``own`` leaves have other names. A
    component without the leaf has the default, in the dtype and the width of the others, also in
    its own batches. Components with equal numbers share the columns of their attributes.

    Raises:
        ConfigError: as :func:`component_columns`; no component has the leaf.
    """
    by_component: dict[str, dict[str, ColumnConfig | Column]] = {name: {} for name in numbers}
    configs = {
        n: component_columns(one, columns, own.get(n, {}), f"components.{n}")
        for n, one in numbers.items()
    }
    for column in columns:
        leaves = {name: configs[name][column].leaf for name in numbers}
        names = {name: [*_names(one.cache), *one.attributes] for name, one in numbers.items()}
        having = [name for name, leaf in leaves.items() if leaf in names[name]]
        if not having:
            leaf = _config_of(columns[column]).leaf
            cure = f"{did_you_mean(leaf, {n for some in names.values() for n in some})}"
            raise ConfigError(
                "is a leaf of no component",
                field=f"columns.{column}",
                value=leaf,
                cure=f"{cure} Or leave the column out.",
            )
        opened: list[tuple[DocumentNumbers, ColumnConfig, Column]] = []
        for name in having:
            one = numbers[name]
            config = configs[name][column]
            if config.leaf not in one.attributes:
                by_component[name][column] = config
                continue
            same = [c for n, other, c in opened if n.same_as(one) and other == config]
            of_attribute = same[0] if same else _attribute_column(one, column, config)
            opened.append((one, config, of_attribute))
            by_component[name][column] = of_attribute
        for name in numbers.keys() - having:
            config = configs[name][column]
            by_component[name][column] = config
            if config.default is None:  # its dataset reports a missing leaf
                continue
            like = by_component[having[0]][column]
            if not isinstance(like, Column):
                like = _column(numbers[having[0]].cache, column, like)
            by_component[name][column] = Column(config.leaf, like.dtype, config.default, like.width)
    return by_component


def describe_columns(columns: Mapping[str, Column]) -> dict[str, Any]:
    """What columns add to the description of a dataset: nothing if there are none."""
    described = {name: column.describe() for name, column in columns.items() if name != MASK}
    return {"columns": described} if described else {}


def _mask_column(cache: TokenCache, leaf: str) -> Column:
    stored = cache.leaf(leaf)
    field = f"leaf {leaf!r} of {cache.path}"
    if stored.dtype.kind == "f":
        raise ConfigError(
            f"holds {stored.dtype.name} numbers, and a mask says 0 or 1",
            field="loss_mask",
            value=leaf,
            cure=f"Weigh tokens with it: columns: {{{WEIGHT}: {leaf}}}, with loss_mask: none.",
        )
    if cache.values_per_token(stored.name) != 1:
        cure = "Name another leaf as loss_mask, or none."
        raise ConfigError(
            "has not one number per token", field=field, value=stored.num_elements, cure=cure
        )
    cure = (
        "Build the cache again, as chunks of tokens and of their mask are read together; or set"
        " loss_mask: none."
    )
    return Column(leaf, stored.dtype, 1, arrays=_token_arrays(cache, stored, 1, field, cure))


def _attribute_column(numbers: DocumentNumbers, name: str, config: ColumnConfig) -> Column:
    values = numbers.attribute(config.leaf)
    dtype = _document_dtype(values.dtype, name)
    documents = MadeList(
        len(numbers.cache.parts),
        partial(_attribute_values, numbers.cache, config.leaf, values, dtype),
    )
    digest = hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
    return Column(config.leaf, dtype, config.default, documents=documents, digest=digest)


def _attribute_values(
    cache: TokenCache, name: str, values: np.ndarray, dtype: np.dtype[Any], part: int
) -> DocumentValues:
    first, stop = starts(cache.part_documents)[part : part + 2].tolist()
    array = array_in_memory(f"attribute {name}", values[first:stop])
    return DocumentValues(array, cache.parts[part].borders, dtype)


def _document_dtype(stored: np.dtype[Any], name: str) -> np.dtype[Any]:
    """The dtype in batches of a column of documents."""
    if stored == np.float64 or name == WEIGHT:
        return np.dtype("float32")
    return np.dtype(f"{stored.kind}4") if stored.kind in "iu" and stored.itemsize == 8 else stored


def _names(cache: TokenCache) -> tuple[str, ...]:
    """What a column can be of."""
    return (*cache.leaves, DOCUMENT)


def _number_column(cache: TokenCache, name: str, config: ColumnConfig) -> Column:
    dtype = np.dtype("float32" if name == WEIGHT else "int32")
    if cache.num_originals > np.iinfo(np.int32).max:
        raise ConfigError(
            f"are more than {np.iinfo(np.int32).max:,} numbers in {cache.path}, which devices do"
            " not take",
            field=f"columns.{name}",
            value=config.leaf,
            cure="Leave the column out.",
        )
    documents = MadeList(len(cache.parts), partial(_number_values, cache, dtype))
    return Column(config.leaf, dtype, config.default, documents=documents)


def _number_values(cache: TokenCache, dtype: np.dtype[Any], part: int) -> DocumentValues:
    first, stop = starts(cache.part_documents)[part : part + 2].tolist()

    def begin(start: int, end: int) -> Callable[[], np.ndarray]:
        return lambda: cache.originals(np.arange(first + start, first + end))

    numbers = ComputedArray(f"{DOCUMENT} of {cache.path}", stop - first, begin)
    return DocumentValues(numbers, cache.parts[part].borders, dtype)


def _column(cache: TokenCache, name: str, config: ColumnConfig) -> Column:
    if config.leaf not in cache.leaves:
        return _number_column(cache, name, config)
    stored = cache.leaf(config.leaf)
    field = f"columns.{name}"
    if stored.kind == "fixed":
        dtype = _document_dtype(stored.dtype, name)
        documents = MadeList(len(cache.parts), partial(_document_values, cache, stored, dtype))
        return Column(config.leaf, dtype, config.default, documents=documents)
    dtype = np.dtype("float32") if stored.dtype == np.float64 or name == WEIGHT else stored.dtype
    width = cache.values_per_token(stored.name)
    if width is None or (name == WEIGHT and width != 1):
        raise ConfigError(
            f"has not {'one value' if name == WEIGHT else 'as many values'} for each token:"
            f" {stored.num_elements:,} values, {cache.num_tokens:,} tokens in {cache.path}",
            field=field,
            value=config.leaf,
            cure="Build it with a value for each token (--leaf"
            f" {config.leaf}=FIELD:{stored.dtype.name}:token), or one"
            f" for each document (--leaf {config.leaf}=FIELD:{stored.dtype.name}).",
        )
    if stored.dtype.kind in "iu" and stored.dtype.itemsize == 8:
        cure = f"Build it as --leaf {config.leaf}=FIELD:int32:token."
        problem = f"holds {stored.dtype.name}, which devices do not take"
        raise ConfigError(problem, field=field, value=config.leaf, cure=cure)
    cure = (
        "Build it again: --leaf"
        f" {config.leaf}=FIELD:{stored.dtype.name}:token{f':{width}' if width > 1 else ''}."
    )
    return Column(
        config.leaf, dtype, config.default, width, _token_arrays(cache, stored, width, field, cure)
    )


def _document_values(
    cache: TokenCache, leaf: CacheLeaf, dtype: np.dtype[Any], part: int
) -> DocumentValues:
    return DocumentValues(leaf.parts[part].data, cache.parts[part].borders, dtype)


def _token_arrays(
    cache: TokenCache, leaf: CacheLeaf, width: int, field: str, cure: str
) -> ArrayList:
    for run, tokens in zip(leaf.arrays.runs, cache.leaf(TOKENS).arrays.runs, strict=True):
        if run.chunk != width * tokens.chunk:
            problem = (
                f"lies in chunks of {run.chunk} elements, the tokens in chunks of {tokens.chunk}"
            )
            raise ConfigError(problem, field=field, cure=cure)
    return leaf.arrays
