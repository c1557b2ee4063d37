"""Attributes: a number for each document of a cache, from tables that other programs wrote.

Scores of a classifier, clusters, marks of duplicates come as Parquet, JSONL, CSV or Arrow files
with an id (or a document's number) and a value in each row. They are joined to the cache once, and
the result is saved in its folder (``attributes/``) under a name that depends on the cache and on
the files' names, sizes and versions. Buckets divide by it, conditions (``where``) ask for it,
batches have it as a column, and ``headrace cache inspect`` shows it.

The join, step by step:

1. The ids of all documents are hashed into an index (:mod:`headrace.data.id_index`). If rows say
   numbers of documents, there is nothing to index.
2. Each batch of rows is looked up, and its values are stored at the documents found.
3. A document that gets two values is an error. Rows of no document are counted, and documents
   without a value are listed.
4. What was joined is saved. Only then it is asked how many documents may have no value, and what
   these get, so another answer needs no other join.

Price: 13 bytes a document and its value, 170 MiB, and 1.5 us of CPU a document and as much time a
row, once; later starts read the result, 1 to 8 bytes a document.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int64, Num, UInt64

from headrace.data.documents import count_documents
from headrace.data.filter_files import read_npy
from headrace.data.id_index import IdIndex, hashes_of_numbers, hashes_of_texts
from headrace.errors import ConfigError, did_you_mean, errors_at
from headrace.ingest.records import import_extra
from headrace.ingest.source import list_path
from headrace.order.intervals import Intervals, chunks_of
from headrace.store import files, remote
from headrace.store.cache import TokenCache
from headrace.store.layout import ATTRIBUTES_FOLDER
from headrace.store.leaf import CacheLeaf
from headrace.store.records import RecordKind
from headrace.store.remote import Entry
from headrace.store.saved_results import ResultRecord, SavedResults
from headrace.store.vectors import PiecedVector, write_vector

DOCUMENT = "document"
"""The key of rows that say a document's number."""
_LOG = logging.getLogger(__name__)
_WHAT = "attribute"
_VALUES = "values.bin"
_WITHOUT = "without_value.bin"
_FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".arrow": "ipc",
    ".feather": "ipc",
}
_DOCUMENTS = 1 << 16  # whose ids are hashed together
_ROWS = 1 << 16  # that are looked up together
_PAGE_BYTES = 1 << 20  # of a column, read at once
_CURE_OF_FILES = f"Name files that end in {', '.join(_FORMATS)} or .npy."


@dataclass(frozen=True)
class AttributeConfig:
    """Where a number for each document comes from. In a config, the files are enough.

    Attributes:
        files: Path, URL or pattern of tables (Parquet, JSONL, CSV, Arrow), or a ``.npy`` file with
            a number for each document in the order of the cache.
        key: The column that says which document a row is of: its id, or, if it is ``document``, its
            number, from 0.
        value: The column of the value; None: the one with the attribute's name.
        id_leaf: The leaf of the cache with the ids of its documents.
        missing: Largest share of documents without a value.
        default: The value of these.

    Raises:
        ConfigError: a share outside 0 .. 1; no value for documents that may have none.

    Example:
        >>> AttributeConfig("scores/*.parquet").key
        'id'
    """

    SHORTHAND: ClassVar[str] = "files"

    files: str
    key: str = "id"
    value: str | None = None
    id_leaf: str = "id"
    missing: float = 0.0
    default: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.missing <= 1:
            raise ConfigError(
                "is no share", field="missing", value=self.missing, cure="Give one from 0 to 1."
            )
        if self.missing and self.default is None:
            raise ConfigError(
                "is missing, and documents may have no value",
                field="default",
                cure="Say what they have, e.g. default: 0.",
            )


@dataclass(frozen=True, eq=False)
class Attribute:
    """A number for each document.

    Attributes:
        values: The numbers, in the order of the cache.
        rows: Rows of the tables.
        not_found: Rows of no document.
        without_value: The stored positions of documents without a value of their own, rising.
        missing: How many documents these are.
    """

    values: Num[np.ndarray, " documents"]
    rows: int
    not_found: int
    without_value: Int64[np.ndarray, " missing"]
    missing: int = 0


class _Record(ResultRecord):
    dtype: str
    values: dict[str, Any]
    without_value: dict[str, Any]
    counts: tuple[int, int]  # rows, rows of no document


def _write(folder: str, made_from: dict[str, Any], attribute: Attribute) -> _Record:
    values = np.ascontiguousarray(attribute.values)
    unsigned = values.view(f"u{values.dtype.itemsize}")
    return _Record(
        made_from,
        values.dtype.newbyteorder("<").str,
        write_vector(files.join(folder, _VALUES), unsigned, _WHAT),
        write_vector(files.join(folder, _WITHOUT), attribute.without_value, _WHAT),
        (attribute.rows, attribute.not_found),
    )


def _read(folder: str, record: _Record) -> Attribute:
    values = PiecedVector(files.join(folder, _VALUES), record.values, _WHAT).loaded()
    without = PiecedVector(files.join(folder, _WITHOUT), record.without_value, _WHAT).loaded()
    return Attribute(values.view(record.dtype), *record.counts, without)


_ATTRIBUTES = SavedResults(RecordKind(_WHAT, 2, _Record), "attribute.json", _write, _read)


def open_attribute(
    cache: TokenCache, name: str, config: AttributeConfig, path: str = "attributes"
) -> Attribute:
    r"""An attribute of a cache: loaded from its folder, or joined and saved there. Documents
    without a value have the default.

    Args:
        cache: The cache.
        name: Name of the attribute.
        config: Where its values come from.
        path: Place of ``config`` in a run's config, for errors.

    Raises:
        ConfigError: there are no files; a column or a leaf is missing or holds no numbers; a
            document has two values, or too many have none.

    Example:
        >>> import pathlib, tempfile
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=3)
        >>> rows = pathlib.Path(tempfile.mkdtemp(), "scores.jsonl")
        >>> lines = [f'{{"document": {k}, "score": {k * k}}}' for k in (2, 0, 1)]
        >>> _ = rows.write_text("\n".join(lines))
        >>> config = AttributeConfig(str(rows), key="document")
        >>> open_attribute(cache, "score", config).values.tolist()
        [0, 1, 4]
    """
    with errors_at(f"{path}.{name}."):
        return _completed(cache, joined_attribute(cache, name, config), config)


def joined_attribute(cache: TokenCache, name: str, config: AttributeConfig) -> Attribute:
    r"""An attribute as the tables have it: documents without a value have 0, however many they are.

    Args:
        cache: The cache.
        name: Name of the attribute.
        config: Where its values come from.

    Raises:
        ConfigError: as :func:`open_attribute`, but not for documents without a value.

    Example:
        >>> import pathlib, tempfile
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=3)
        >>> rows = pathlib.Path(tempfile.mkdtemp(), "scores.jsonl")
        >>> _ = rows.write_text('{"document": 1, "score": 7}\n')
        >>> joined = joined_attribute(cache, "score", AttributeConfig(str(rows), key="document"))
        >>> joined.values.tolist(), joined.without_value.tolist()
        ([0, 7, 0], [0, 2])
    """
    entries = _listed(config.files)
    made_from = {
        "cache": cache.fingerprint,
        "files": [[one.path, one.size, one.version] for one in entries],
        "key": config.key,
        "value": config.value or name,
        "id_leaf": config.id_leaf,
    }

    def join() -> Attribute:
        joined = _with_documents_counted(cache, _joined(cache, name, config, entries))
        _LOG.info(
            "%s: attribute %s joined from %d files: %d rows, of which %d are of no document; %d of"
            " %d documents have no value",
            cache.path,
            name,
            len(entries),
            joined.rows,
            joined.not_found,
            joined.missing,
            cache.num_originals,
        )
        return joined

    root = files.join(cache.path, ATTRIBUTES_FOLDER)
    joined, _ = _ATTRIBUTES.found_or_made(root, made_from, join, lambda _: cache.takes_files)
    return _with_documents_counted(cache, joined)


def _with_documents_counted(cache: TokenCache, joined: Attribute) -> Attribute:
    missing = count_documents(cache, Intervals.of_numbers(joined.without_value))
    return replace(joined, missing=missing)


def _completed(cache: TokenCache, joined: Attribute, config: AttributeConfig) -> Attribute:
    """An attribute whose documents without a value have the default, if there may be so many."""
    missing = joined.missing
    documents = cache.num_originals
    if missing > config.missing * documents:
        first = int(cache.originals(joined.without_value).min())
        share = missing / documents
        raise ConfigError(
            f"is less than {share:.3g}: {missing:,} of {documents:,} documents have no value,"
            f" the first is document {first:,}; {joined.not_found:,} of {joined.rows:,} rows are of"
            " no document",
            field="missing",
            value=config.missing,
            cure=f"Allow it, with a value for these: {{missing: {_rounded_up(share)}, default:"
            " 0}.",
        )
    if not missing or config.default is None:
        return joined
    # The narrowest type, but for fractions among whole numbers: float16 may round either. And a
    # whole default leaves whole numbers as they are: fractions hold none beyond 2**53.
    number = config.default
    if joined.values.dtype.kind != "f" and float(number).is_integer() and abs(number) < 2**63:
        number = int(number)
    is_mixed = joined.values.dtype.kind != "f" and isinstance(number, float)
    default = np.array([number], np.float64 if is_mixed else np.min_scalar_type(number))
    values = _as_one_type(joined.values, default, field="default", value=config.default)
    values[joined.without_value] = default
    return replace(joined, values=values)


def _as_one_type(
    values: Num[np.ndarray, " n"], others: Num[np.ndarray, " m"], **said: Any
) -> Num[np.ndarray, " n"]:
    """A copy of ``values`` in a type that holds both, or ConfigError with these fields if it would
    round some.
    """
    dtype = np.result_type(values, others)
    for before in (values, others):
        with np.errstate(invalid="ignore"):  # 2**63 is no int64
            rounded = before.astype(dtype).astype(before.dtype)
        if before.dtype.kind != "f" and (rounded != before).any():
            raise ConfigError(
                f"would round whole numbers beyond 2**53: {before.dtype} and {dtype} meet",
                cure="Give whole numbers everywhere, in columns of the type int64.",
                **said,
            )
    return values.astype(dtype)


def _listed(pattern: str) -> list[Entry]:
    listed = list_path(pattern)
    entries = [] if listed is None else [*listed[1]]
    if not entries:
        raise ConfigError(
            "names no file", field="files", value=pattern, cure="Check the path or the pattern."
        )
    return sorted(entries, key=lambda one: one.path)


def _joined(
    cache: TokenCache, name: str, config: AttributeConfig, entries: list[Entry]
) -> Attribute:
    if entries[0].path.endswith(".npy"):
        return _numbered(cache, entries)
    column = config.value or name
    if config.key == DOCUMENT:
        join = _Join(cache.num_originals, column)
        for url, keys, values in _rows(entries, DOCUMENT, column):
            join.add(values, *_documents_of_numbers(keys, cache.num_originals, url), url)
        has_value = cache.in_stored_order(join.has_value)
        return join.finish(cache.in_stored_order(join.values), has_value)
    join = _Join(cache.num_documents, column, cache.originals)
    leaf = _id_leaf(cache, config.id_leaf)
    are_texts = leaf.kind == "ragged"
    index = IdIndex(_hashes_of_documents(cache, leaf), cache.num_documents)
    for url, keys, values in _rows(entries, config.key, column, are_texts=are_texts):
        hashes = _hashes_of_keys(keys, config.key, url, are_texts=are_texts)
        join.add(values, *index.find(hashes), url)
    return join.finish(join.values, join.has_value)


def _numbered(cache: TokenCache, entries: list[Entry]) -> Attribute:
    """The numbers in a ``.npy`` file, one for each document of the original."""
    url = entries[0].path
    if len(entries) > 1:
        cure = "Name one file with a number for each document."
        raise ConfigError("is a second file", field="files", value=entries[1].path, cure=cure)
    numbers = read_numbers(cache, url, "files")
    _check_finite(numbers, "files", url, url, "Write finite numbers, e.g. 0 where there is none.")
    return Attribute(_storable(numbers), cache.num_originals, 0, np.zeros(0, np.int64))


def read_numbers(cache: TokenCache, url: str, field: str) -> np.ndarray:
    """The numbers in a ``.npy`` file, which has one for each document of the original, in the order
    of the cache. ConfigError if it has not.
    """
    cure = "Write it with numpy.save: one number for each document, in the order of the cache."
    raw = files.read_bytes(url)
    if raw is None:
        raise ConfigError("does not exist", field=field, value=url, cure=cure)
    numbers = read_npy(raw, field, url, cure)
    if numbers.shape != (cache.num_originals,) or numbers.dtype.kind not in "iufb":
        problem = (
            f"holds {numbers.dtype} of shape {numbers.shape}, and {cache.path} has"
            f" {cache.num_originals:,} documents"
        )
        raise ConfigError(problem, field=field, value=url, cure=cure)
    return cache.in_stored_order(numbers)


def _storable(values: np.ndarray) -> np.ndarray:
    """Numbers in a dtype that is stored: no bool, no fractions of 2 or 16 bytes, no big-endian."""
    if values.dtype.kind == "f":
        return values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32, copy=False)
    if values.dtype == np.bool_:
        return values.view(np.uint8)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _check_finite(values: np.ndarray, field_name: str, value: str, url: str, cure: str) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        problem = "holds NaN or infinity" + ("" if value == url else f" in {url}")
        raise ConfigError(problem, field=field_name, value=value, cure=cure)


def _rows(
    entries: list[Entry], key: str, value: str, *, are_texts: bool = False
) -> Iterator[tuple[str, Any, Any]]:
    """Batches of rows of all files: the file, and the two columns as Arrow arrays. Formats without
    types would take ids that look like numbers or dates for such, so these are read as texts.
    """
    arrow = import_extra("pyarrow", "parquet", entries[0].path)
    for entry in entries:
        unpacked = entry.path.removesuffix(".gz").removesuffix(".zst")
        ending = f".{unpacked.rpartition('.')[2]}"
        if ending not in _FORMATS:
            raise ConfigError(
                "is of no format that is read",
                field="files",
                value=entry.path,
                cure=_CURE_OF_FILES,
            )
        format_name = _FORMATS[ending]
        has_types = format_name not in ("json", "csv")
        if entry.size == 0 and not has_types:
            continue  # a shard without rows
        key_is_text = are_texts and not has_types
        try:
            yield from _rows_of_file(entry.path, format_name, key, value, key_is_text=key_is_text)
        except arrow.ArrowException as error:
            raise ConfigError(
                f"cannot be read as {format_name} ({error})",
                field="files",
                value=entry.path,
                cure="Write it anew: each column with values of one type, 1.0 and not 1 among"
                " fractions.",
            ) from error


def _rows_of_file(
    url: str, format_name: str, key: str, value: str, *, key_is_text: bool
) -> Iterator[tuple[str, Any, Any]]:
    if format_name == "parquet":
        yield from _rows_of_parquet(url, key, value)
        return
    arrow = import_extra("pyarrow", "parquet", url)
    dataset = import_extra("pyarrow.dataset", "parquet", url)
    filesystem, file_path = remote.filesystem(url)
    file_format: Any = format_name
    if format_name == "json":  # else a single line without a line feed would be read as nothing
        json_reader = import_extra("pyarrow.json", "parquet", url)
        parsing = json_reader.ParseOptions(newlines_in_values=True)
        file_format = dataset.JsonFileFormat(parse_options=parsing)
    opened = partial(dataset.dataset, file_path, filesystem=filesystem, format=file_format)
    table = opened()
    _check_columns(url, table.schema.names, key, value)
    if key_is_text:
        as_text = arrow.field(key, arrow.string())
        table = opened(schema=table.schema.set(table.schema.get_field_index(key), as_text))
    batches = table.to_batches(
        columns=[key, value], batch_size=_ROWS, batch_readahead=1, fragment_readahead=1
    )
    for batch in batches:
        yield url, batch.column(0), batch.column(1)


def _rows_of_parquet(url: str, key: str, value: str) -> Iterator[tuple[str, Any, Any]]:
    """Page by page: a dataset would hold a whole group of rows, unpacked, and the next one."""
    parquet = import_extra("pyarrow.parquet", "parquet", url)
    with files.open_source(url) as stream:
        file = parquet.ParquetFile(stream, buffer_size=_PAGE_BYTES, pre_buffer=False)
        _check_columns(url, file.schema_arrow.names, key, value)
        for batch in file.iter_batches(_ROWS, columns=[key, value]):
            yield url, batch.column(key), batch.column(value)


def _check_columns(url: str, names: list[str], key: str, value: str) -> None:
    for field_name, column in (("key", key), ("value", value)):
        if column not in names:
            raise ConfigError(
                f"is no column of {url}",
                field=field_name,
                value=column,
                cure=did_you_mean(column, names),
            )


def _id_leaf(cache: TokenCache, name: str) -> CacheLeaf:
    """The leaf with the ids of a cache: texts, or whole numbers."""
    if name not in cache.leaves:
        leaves = ", ".join(cache.leaves) or "none"
        raise ConfigError(
            f"is not a leaf of {cache.path}, which has {leaves}",
            field="id_leaf",
            value=name,
            cure="Build the cache with --leaf id=FIELD, or give rows with a document's number:"
            f" key: {DOCUMENT}.",
        )
    leaf = cache.leaf(name)
    holds_texts = leaf.kind == "ragged" and leaf.dtype == np.uint8
    holds_numbers = leaf.kind == "fixed" and leaf.dtype.kind in "iu"
    if not (holds_texts or holds_numbers):
        raise ConfigError(
            f"is no leaf of ids in {cache.path}: it holds {leaf.dtype}",
            field="id_leaf",
            value=name,
            cure=f"Build the cache with ids as texts or whole numbers: --leaf {name}=FIELD:text.",
        )
    return leaf


def _hashes_of_documents(cache: TokenCache, leaf: CacheLeaf) -> Iterator[UInt64[np.ndarray, "2 n"]]:
    for first, stop in chunks_of(cache.num_documents, _DOCUMENTS):
        values = leaf.values(first, stop)
        if leaf.kind == "ragged":
            hashes = hashes_of_texts(values, leaf.lengths(first, stop))
        else:
            hashes = hashes_of_numbers(values.astype(np.int64))
        if cache.pack is not None:  # padding has an empty text or 0, which may be an id
            numbers = cache.originals(np.arange(first, stop))
            padding = numbers >= cache.num_originals
            hashes[:, padding] = ~hashes_of_numbers(numbers[padding])
        yield hashes


def _hashes_of_keys(keys: Any, key: str, url: str, *, are_texts: bool) -> UInt64[np.ndarray, "2 n"]:
    """The hashes of a column of ids, which must be texts or whole numbers as the cache has them."""
    arrow = import_extra("pyarrow", "parquet", url)
    _refuse_nothing(keys, "key", url)
    id_kind = "texts" if are_texts else "whole numbers"
    refused = ConfigError(
        f"holds {keys.type} in {url}, and the ids of the cache are {id_kind}",
        field="key",
        value=key,
        cure=f"Write the column as {id_kind}, or name another with key: COLUMN.",
    )
    if not are_texts:
        if not arrow.types.is_integer(keys.type):
            raise refused
        return hashes_of_numbers(keys.to_numpy().astype(np.int64))
    try:
        texts = keys.cast(arrow.large_binary())
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        raise refused from None
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return hashes_of_texts(data, np.diff(offsets))


def _documents_of_numbers(
    keys: Any, documents: int, url: str
) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
    """Rows that say the number of a document, and that number."""
    arrow = import_extra("pyarrow", "parquet", url)
    _refuse_nothing(keys, "key", url)
    if not arrow.types.is_integer(keys.type):
        cure = f"Write whole numbers, or name the column with ids: key: id, in place of {DOCUMENT}."
        raise ConfigError(f"holds {keys.type} in {url}", field="key", value=DOCUMENT, cure=cure)
    numbers = keys.to_numpy().astype(np.int64)
    rows = np.flatnonzero((numbers >= 0) & (numbers < documents))
    return rows, numbers[rows]


def _refuse_nothing(column: Any, field_name: str, url: str) -> None:
    if column.null_count:
        raise ConfigError(
            f"has nothing (null) in some rows of {url}",
            field=field_name,
            cure="Leave these rows out.",
        )


class _Join:
    """Values by document, as they come.

    Args:
        documents: How many documents there are.
        column: The column of the values, for errors.
        numbers_of: Converts documents to the numbers that users know.
    """

    def __init__(
        self,
        documents: int,
        column: str,
        numbers_of: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> None:
        self.column = column
        self.values = np.zeros(documents, np.uint8)
        self.has_value = np.zeros(documents, bool)
        self.rows = 0
        self.not_found = 0
        self._numbers_of = numbers_of

    def add(
        self,
        column: Any,
        rows: Int64[np.ndarray, " m"],
        documents: Int64[np.ndarray, " m"],
        url: str,
    ) -> None:
        """Stores the values of some rows at the documents that were found for them."""
        numbers = self._numbers(column, url)
        is_given = np.asarray(column.is_valid())
        self.rows += len(column)
        self.not_found += len(column) - np.unique(rows).size
        documents = documents[is_given[rows]]
        numbers_given = numbers[rows[is_given[rows]]]
        if not self.has_value.any():
            self.values = np.zeros(self.has_value.size, numbers_given.dtype)
        if self.values.dtype != numbers_given.dtype:
            self.values = _as_one_type(self.values, numbers_given, field="value", value=self.column)
        documents_again = documents[self.has_value[documents]]
        contradicts = self.values[documents_again] != numbers_given[self.has_value[documents]]
        self.values[documents] = numbers_given
        self.has_value[documents] = True
        differs = self.values[documents] != numbers_given
        if contradicts.any() or differs.any():
            wrong = documents_again[contradicts] if contradicts.any() else documents[differs]
            number = int(self._numbers_of(wrong[:1])[0])
            raise ConfigError(
                f"has two values of document {number:,}, the second in {url}",
                field="value",
                value=self.column,
                cure="Leave one of them out of the files.",
            )

    def _numbers(self, column: Any, url: str) -> Num[np.ndarray, " n"]:
        arrow = import_extra("pyarrow", "parquet", url)
        kind = column.type
        if arrow.types.is_null(kind):  # a file without a value
            return np.zeros(len(column), np.uint8)
        is_bool = arrow.types.is_boolean(kind)
        if not (is_bool or arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
            raise ConfigError(
                f"holds {kind} in {url}, and not numbers",
                field="value",
                value=self.column,
                cure="Name a column of numbers, or write them so.",
            )
        nothing = arrow.scalar(0).cast(kind)
        values = column.fill_null(nothing).to_numpy(zero_copy_only=False)
        _check_finite(values, "value", self.column, url, "Write finite numbers, or nothing (null).")
        return _storable(values)

    def finish(
        self, values: Num[np.ndarray, " documents"], has_value: Bool[np.ndarray, " documents"]
    ) -> Attribute:
        """The attribute, given the values in the order of the cache."""
        return Attribute(values, self.rows, self.not_found, np.flatnonzero(~has_value))


def _rounded_up(share: float) -> float:
    """A share of two digits that is not below this one.

    Example:
        >>> _rounded_up(0.1234), _rounded_up(1.0)
        (0.13, 1.0)
    """
    digits = 2 - int(np.floor(np.log10(share))) - 1
    scale = 10.0**digits
    return round(min(float(np.ceil(share * scale) / scale), 1.0), digits)


def attribute_findings(cache: str) -> list[tuple[str, str]]:
    """Checks the attributes saved with a cache by reading them: (file, problem) pairs.

    Example:
        >>> attribute_findings("nowhere")
        []
    """
    return _ATTRIBUTES.findings(files.join(cache, ATTRIBUTES_FOLDER))
