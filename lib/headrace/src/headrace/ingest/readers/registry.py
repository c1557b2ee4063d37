"""Which reader reads which file, and how a file is cut into slices.

A new container is a :class:`~headrace.ingest.records.Reader` and one line in each function here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace.errors import ConfigError
from headrace.ingest.listing import stat_file
from headrace.ingest.readers import function, hub
from headrace.ingest.readers.columnar import ArrowReader, ParquetReader
from headrace.ingest.readers.lines import BlockReader, JsonlReader, TextReader
from headrace.ingest.readers.shards import MegatronReader, NmoeReader, index_path
from headrace.ingest.readers.warc import WarcReader
from headrace.ingest.records import Reader, Slice
from headrace.ingest.source import SourceFile

_OF_BLOCKS: dict[str, type[BlockReader]] = {"jsonl": JsonlReader, "text": TextReader, "warc": WarcReader}
_OTHERS: dict[str, type[Reader]] = {
    "parquet": ParquetReader,
    "arrow": ArrowReader,
    "megatron": MegatronReader,
    "nmoe": NmoeReader,
    "hf": hub.HubReader,
    "python": function.FunctionReader,
}


MIN_SLICE_BYTES = 1 << 20
"""Smaller slices are not worth a reader: it reads that much at once."""


def open_reader(file: SourceFile, columns: Sequence[str], optional: Collection[str] = ()) -> Reader:
    """The reader of a file or slice.

    Args:
        file: What is read.
        columns: Fields that are asked for.
        optional: Those of them that need not be there.

    Raises:
        ConfigError: the file is compressed as a whole, and such files cannot be.
    """
    reader = _reader_of(file, columns)
    reader.optional = optional
    return reader


def _reader_of(file: SourceFile, columns: Sequence[str]) -> Reader:
    if file.format in _OF_BLOCKS:
        return _OF_BLOCKS[file.format](file.path, file.part, columns, file.compression)
    if file.compression != "none":
        raise ConfigError(
            f"is a {file.format} file packed with {file.compression}", field=file.path, cure="Unpack it first."
        )
    return _OTHERS[file.format](file.path, file.part, columns)


def split_file(file: SourceFile, target_bytes: int) -> list[SourceFile]:
    """The slices of a file that is larger than ``target_bytes`` (1 MiB at least), in order; or the file.

    A function of the file and of ``target_bytes`` alone. Opens large files of formats that have an index in them.
    """
    target_bytes = max(target_bytes, MIN_SLICE_BYTES)
    slices: list[Slice] = []
    large = file.size is not None and file.size > target_bytes
    if file.format in ("hf", "python"):
        _, _, slices = (hub if file.format == "hf" else function).describe(file.path, target_bytes)
    elif large and file.compression == "none" and file.size is not None:
        if file.format == "jsonl":
            slices = JsonlReader.split(file.size, target_bytes)
        elif file.format == "parquet":
            slices = ParquetReader.split(file.path, target_bytes)
        elif file.format == "arrow":
            slices = ArrowReader.split(file.path, target_bytes)
        elif file.format in ("megatron", "nmoe"):
            reader = MegatronReader if file.format == "megatron" else NmoeReader
            slices = reader(file.path, None, ()).split(target_bytes)
    return [replace(file, part=s) for s in slices] if len(slices) > 1 else [file]


def described(file: SourceFile) -> SourceFile:
    """A listed file with what its name alone does not tell: the size of a dataset, the version of an index."""
    if file.format in ("hf", "python"):
        size, version, _ = (hub if file.format == "hf" else function).describe(file.path, 1 << 62)
        return replace(file, size=size, version=version)
    if file.format in ("megatron", "nmoe"):
        size, version = stat_source(file)
        return replace(file, size=size, version=version)
    return file


def stat_source(file: SourceFile) -> tuple[int | None, str]:
    """Size and version of a file as it is now.

    Raises:
        FileNotFoundError: it is gone.
    """
    if file.format in ("hf", "python"):
        return file.size, file.version
    size, version = stat_file(file.path)
    if file.format in ("megatron", "nmoe"):
        try:
            version = f"{version} idx {stat_file(index_path(file.path))[1]}"
        except FileNotFoundError:
            return size, version  # the reader says it better
    return size, version
