"""Datasets that Hugging Face's ``datasets`` saved (``save_to_disk``), read in place.

Such a folder has Arrow streams; an Arrow file is one with a header and a footer. A stream has
record batches (of 1,000 rows by default), each with the values of a column end to end, and where
those of each row begin. So a record batch is a part, and its arrays are ranges of a file that is
mapped into memory. Which files belong to the dataset, and in which order, says ``state.json``;
``datasets`` keeps others in the same folder.

``input_ids`` are the tokens. Other columns with a number for each of them are leaves of that name.
``labels`` and ``attention_mask`` say which tokens are trained on, so there is a leaf ``loss_mask``,
too: 1 where the label is not -100 and the mask not 0. Labels other than the ids themselves (shifted
ones, say) are refused where they are read.

Price of opening: the head of each record batch, and where the rows of each column begin, which must
be the same for all: about 10 bytes a row, and .1 ms a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec
import numpy as np

from headrace.errors import CacheMissingError, ConfigError
from headrace.ingest.records import import_extra
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.layout import LEAF_DTYPES, TOKENS, LeafSpec
from headrace.store.layouts import FormatConfig
from headrace.store.plain import ComputedArray, PlainArray, corrupt
from headrace_compat.in_place import (
    FINGERPRINTED,
    NO_CHECKSUMS,
    FileStore,
    TokenFile,
    begins_with,
    check_rising,
    digest_of,
    read_exactly,
    size_of,
    token_paths,
)

_ENDING = ".arrow"
_STATE = "state.json"
_SPLITS = "dataset_dict.json"
_LOSS_MASK = "loss_mask"
_LABELS = "labels"
_ATTENTION = "attention_mask"
_NO_LABEL = -100
_DTYPES = frozenset(LEAF_DTYPES) - {"bool"}  # of which Arrow stores eight in a byte
_FILE_HEAD = b"ARROW1\0\0"
_FOOTER_END = 10
_BUILD = "Build a cache of it: headrace build DATASET -o CACHE."


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """``state.json``, as far as it is read."""

    data_files: list[_DataFile] = msgspec.field(name="_data_files")
    indices: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


class _Splits(msgspec.Struct):
    splits: list[str]


class ArrowFiles(FileStore):
    """A saved dataset: its folder, one of its ``.arrow`` files, or a pattern of them."""

    @classmethod
    def is_at(cls, path: str) -> bool:
        if any(files.exists(files.join(path, name)) for name in (_STATE, _SPLITS)):
            return True
        paths = token_paths(path, (_ENDING,))
        return bool(paths) and files.exists(paths[0])

    @classmethod
    def open(cls, path: str, settings: FormatConfig) -> Self:
        if not files.is_local(path):
            raise ConfigError(
                "is not on a local disk, where Arrow files can be mapped into memory",
                field="cache",
                value=path,
                cure=f"Copy it to a local disk. Or build a cache. {_BUILD}",
            )
        arrow_files = [_ArrowFile.open(file) for file in _data_files(path)]
        parts = [part for file in arrow_files for part in file.parts()]
        if not parts:
            raise CacheMissingError(
                f"has no rows: {len(arrow_files)} Arrow files are empty",
                field="cache",
                value=path,
                cure="Name a dataset with rows, or leave this one out.",
            )
        left_out = sorted({name for file in arrow_files for name in file.left_out})
        limits = [NO_CHECKSUMS, FINGERPRINTED]
        if left_out:
            limits.append(f"columns without a number for each token: {', '.join(left_out)}")
        return cls("arrow", path, parts, settings, limits)


def _data_files(path: str) -> list[str]:
    """The Arrow files that a path names, in order."""
    splits = files.read_bytes(files.join(path, _SPLITS))
    if splits is not None:
        names = _decoded(splits, _Splits, files.join(path, _SPLITS)).splits
        raise ConfigError(
            f"has the splits {', '.join(names)}",
            field="cache",
            value=path,
            cure=f"Name one: {files.join(path, names[0])}" if names else "Save it with a split.",
        )
    state = files.read_bytes(files.join(path, _STATE))
    if state is None:
        return token_paths(path, (_ENDING,))
    saved = _decoded(state, _State, files.join(path, _STATE))
    if saved.indices:  # of old versions; newer ones write the rows themselves
        raise ConfigError(
            "has its rows in the order of a list (_indices_data_files), which is not read",
            field="cache",
            value=path,
            cure="Save it with a newer version of datasets.",
        )
    return [files.join(path, one.filename) for one in saved.data_files]


def _decoded(raw: bytes, kind: Any, url: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise corrupt(url, f"is not what datasets writes ({error})") from error


@dataclass(frozen=True)
class _Column:
    """A column of a record batch: its values, and where those of each row begin and end."""

    values: PlainArray
    starts: np.ndarray
    starts_array: PlainArray | None


class _ArrowFile:
    """An Arrow stream, mapped into memory.

    Attributes:
        url: The file.
        left_out: Columns that are not read: neither the tokens nor a number for each.
    """

    def __init__(self, url: str, size: int, base: int, batches: list[Any], schema: Any) -> None:
        self.url = url
        self._size = size
        self._base = base
        self._batches = batches
        self._names = _columns_of(url, schema)
        self._digest = digest_of("arrow", url, size, 0, str(schema.remove_metadata()).encode())
        self.left_out = sorted(set(schema.names) - {TOKENS, *self._names})

    @classmethod
    def open(cls, url: str) -> Self:
        arrow = import_extra("pyarrow", "parquet", url)
        size = size_of(url)
        mapping = arrow.memory_map(str(files.local_path(url)))
        mapped_bytes = mapping.read_buffer(size)
        is_file = begins_with(url, _FILE_HEAD)
        head = len(_FILE_HEAD) if is_file else 0
        source = arrow.BufferReader(mapped_bytes.slice(head))
        try:
            with arrow.ipc.open_stream(source) as stream:
                batches = [*stream]
                end = head + source.tell()
                opened = cls(url, size, mapped_bytes.address, batches, stream.schema)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise corrupt(url, f"is no whole Arrow stream ({error})") from error
        # Zeros read like the end of a stream: what follows them would be left out
        if end != size - (_footer_bytes(url, size) if is_file else 0):
            problem = f"ends at byte {end:,}, after {len(batches)} record batches, and more follows"
            raise corrupt(url, problem)
        return opened

    def parts(self) -> Iterator[TokenFile]:
        """A part for each record batch with rows."""
        for number, batch in enumerate(self._batches):
            if batch.num_rows:
                yield self._part(number, batch)
            elif len(batch.column(TOKENS).values):
                raise corrupt(self.url, f"has ids but no rows in record batch {number}")

    def _part(self, number: int, batch: Any) -> TokenFile:
        tokens = self._column(batch, TOKENS)
        leaves: dict[str, StoredArray] = {}
        for name in self._names:
            column = self._column(batch, name)
            if not np.array_equal(column.starts, tokens.starts):
                problem = (
                    f"has rows whose {name} are not as many as their {TOKENS}, in record batch"
                    f" {number}"
                )
                raise corrupt(self.url, problem, "Save it without that column.")
            leaves[name] = column.values
        if leaves.keys() & {_LABELS, _ATTENTION} and _LOSS_MASK not in leaves:
            leaves[_LOSS_MASK] = _loss_mask(tokens.values, leaves)
        ids = tokens.values
        offsets = self._offsets(tokens)
        return TokenFile(
            self.url,
            self._size,
            ids.dtype.name,
            ids.first_byte,
            ids.length,
            offsets,
            f"{self._digest}:{number}",
            leaves,
            number,
        )

    def _offsets(self, column: _Column) -> StoredArray:
        """Where documents begin, counted from the first token of the part."""
        first = int(column.starts[0])
        total = column.values.length
        url = self.url
        array = column.starts_array
        if array is None:
            width = int(column.starts[1]) - first
            return _offsets_of_width(url, column.starts.size, width)

        def begin(start: int, stop: int) -> Callable[[], np.ndarray]:
            read = array.read(start, stop)

            def finish() -> np.ndarray:
                offsets = read.result().astype(np.int64) - first
                check_rising(url, offsets, total)
                return offsets

            return finish

        return ComputedArray(url, column.starts.size, begin, (array,))

    def _column(self, batch: Any, name: str) -> _Column:
        column = batch.column(name)
        values = column.values
        if column.null_count or values.null_count:
            raise corrupt(self.url, f"has nothing (null) in its column {name}", _BUILD)
        starts_array = None
        if hasattr(column.type, "list_size"):
            width = column.type.list_size
            starts = np.arange(column.offset, column.offset + len(column) + 1) * width
        else:
            starts_array = self._array(column.offsets)
            # Read, not through the mapping: if the file is cut now, that would end the process
            starts = np.fromfile(
                files.local_path(self.url),
                starts_array.dtype,
                starts_array.length,
                offset=starts_array.first_byte,
            )
            if starts.size != len(column) + 1:
                raise corrupt(self.url, "was cut off while it was opened")
            if starts[0] < 0 or starts[-1] > len(values) or (np.diff(starts) < 0).any():
                raise corrupt(self.url, f"has rows of {name} that overlap")
        every = self._array(values)
        first = int(starts[0])
        length = int(starts[-1]) - first
        first_byte = every.first_byte + first * every.dtype.itemsize
        own_values = PlainArray(self.url, length, every.dtype.name, first_byte, self._size)
        return _Column(own_values, starts, starts_array)

    def _array(self, values: Any) -> PlainArray:
        """The numbers of an Arrow array, where they lie in the file."""
        dtype = np.dtype(values.type.to_pandas_dtype())
        if len(values) == 0:
            return PlainArray(self.url, 0, dtype.name, 0, self._size)
        first_byte = values.buffers()[-1].address - self._base + values.offset * dtype.itemsize
        if not 0 <= first_byte <= self._size:  # decompressed into memory of its own
            raise corrupt(self.url, "is compressed, and cannot be mapped into memory", _BUILD)
        return PlainArray(self.url, len(values), dtype.name, first_byte, self._size)


def _footer_bytes(url: str, size: int) -> int:
    """Bytes behind the stream in an Arrow file: a footer, its length, and a magic number."""
    length = read_exactly(url, max(size - _FOOTER_END, 0), size)[:4]
    return int.from_bytes(length, "little", signed=True) + _FOOTER_END


def _columns_of(url: str, schema: Any) -> list[str]:
    """The columns that may have a number for each token.

    Raises:
        CacheMissingError: there are no tokens.
    """
    dtypes = {field.name: _dtype_of(field.type) for field in schema}
    if dtypes.get(TOKENS) not in _DTYPES:
        raise CacheMissingError(
            f"has no column {TOKENS} of ids, but {', '.join(schema.names)}",
            field="file",
            value=url,
            cure=f"Tokenize it first, or build a cache. {_BUILD}",
        )
    for name in (_LABELS, _ATTENTION, _LOSS_MASK):
        if dtypes.get(name) is not None and dtypes[name] not in _DTYPES:
            raise ConfigError(
                f"has {dtypes[name]} in its column {name}, which says what is trained on",
                field="cache",
                value=url,
                cure=f'Save dataset.cast_column("{name}", Sequence(Value("int32"))), or save it'
                " without that column.",
            )
    names = [name for name, dtype in dtypes.items() if dtype in _DTYPES and name != TOKENS]
    for name in names:
        try:
            LeafSpec(name, "uint8")
        except ConfigError as error:
            raise ConfigError(
                f"has the column {name!r}, which {error.problem}",
                field="cache",
                value=url,
                cure=f"Save dataset.remove_columns({name!r}), or one with another name.",
            ) from error
    return names


def _dtype_of(kind: Any) -> str | None:
    """The dtype of the numbers of a column of lists; None if it is none."""
    if kind.num_fields != 1 or not str(kind).startswith(
        ("list<", "large_list<", "fixed_size_list<")
    ):
        return None
    name = str(kind.value_type)
    return {"float": "float32", "double": "float64"}.get(name, name)


def _offsets_of_width(url: str, length: int, width: int) -> ComputedArray:
    """Offsets of rows of one width."""

    def begin(start: int, stop: int) -> Callable[[], np.ndarray]:
        return partial(np.multiply, np.arange(start, stop, dtype=np.int64), width)

    return ComputedArray(url, length, begin)


def _loss_mask(ids: PlainArray, leaves: Mapping[str, StoredArray]) -> ComputedArray:
    """1 for each token that is trained on by labels and attention mask, uint8."""
    labels = leaves.get(_LABELS)
    attention = leaves.get(_ATTENTION)

    def begin(start: int, stop: int) -> Callable[[], np.ndarray]:
        ids_read = None if labels is None else ids.read(start, stop)
        labels_read = None if labels is None else labels.read(start, stop)
        attention_read = None if attention is None else attention.read(start, stop)

        def finish() -> np.ndarray:
            mask = np.ones(stop - start, np.uint8)
            if labels_read is not None and ids_read is not None:
                values = labels_read.result()
                mask &= values != _NO_LABEL
                if (mask.view(bool) & (values != ids_read.result())).any():
                    problem = f"has {_LABELS} that are neither {_NO_LABEL} nor the id itself"
                    cure = "Save them unshifted, as transformers takes them; or leave them out."
                    raise corrupt(ids.url, problem, cure)
            if attention_read is not None:
                mask &= attention_read.result() != 0
            return mask

        return finish

    return ComputedArray(ids.url, ids.length, begin, (ids,), "uint8")
