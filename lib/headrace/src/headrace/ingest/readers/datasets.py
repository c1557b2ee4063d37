"""Records that are not in listed files: datasets of the Hugging Face Hub, and those that a Python
function yields.

``hf://OWNER/NAME?name=CONFIG&split=SPLIT&revision=REV`` uses the library ``datasets``; the default
split is ``train``. ``hf://./FOLDER`` is a folder written by ``save_to_disk``, or a folder of files.
A dataset is read from the library's copy on disk and can be cut at any row; with
``&streaming=true``, it is read remotely without a copy, and cut at its shards. Only data is loaded:
no dataset script is run.

``module:function`` is the user's own code, named by the user; data can never name one. It takes no
argument and yields texts or mappings of fields; or it has an attribute ``num_shards`` and takes the
number of a shard, 0 to ``num_shards - 1``, so that different workers can build the shards. It must
yield the same at every call, so that a resumed build has the same result.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs

from headrace.errors import ConfigError, SourceError, check_at_least, check_choice, did_you_mean
from headrace.ingest.readers.columnar import record_of, rows_of
from headrace.ingest.records import (
    BadRecordError,
    Reader,
    Row,
    Slice,
    SourceFile,
    import_extra,
    reading,
    slices_of,
    type_name,
)

_ROWS = 512
_OPTIONS = ("name", "split", "revision", "streaming")


@dataclass(frozen=True)
class HubAddress:
    """The dataset in a path."""

    dataset: str
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    streaming: bool = False

    @classmethod
    def parse(cls, path: str) -> HubAddress:
        """Reads a path.

        Raises:
            ConfigError: it does not name a dataset.

        Example:
            >>> HubAddress.parse("hf://acme/poems?split=test&streaming=true")
            HubAddress(dataset='acme/poems', name=None, split='test', revision=None, streaming=True)
        """
        dataset, _, query = path.removeprefix("hf://").partition("?")
        options = {k: v[-1] for k, v in parse_qs(query, keep_blank_values=True).items()}
        for key in options:
            check_choice(path, key, _OPTIONS, "is no option of a dataset")
        if not dataset:
            raise ConfigError(
                "names no dataset", field="source", value=path, cure="Write hf://OWNER/NAME."
            )
        streaming = options.pop("streaming", "false").lower() in ("true", "1", "yes", "")
        return cls(dataset, **options, streaming=streaming)

    def open(self, path: str) -> Any:
        """The dataset: ``datasets.Dataset``, or ``IterableDataset`` if it is streamed.

        Raises:
            SourceError: there is no such dataset or split, or it cannot be loaded.
        """
        library = import_extra("datasets", "hf", path)
        with reading(path):
            if any(
                os.path.exists(os.path.join(self.dataset, f))
                for f in ("dataset_dict.json", "state.json")
            ):
                loaded = library.load_from_disk(self.dataset)
                if isinstance(loaded, dict):
                    if self.split not in loaded:
                        raise SourceError(
                            f"has no split {self.split!r}",
                            field=path,
                            cure=did_you_mean(self.split, loaded),
                        )
                    loaded = loaded[self.split]
                return loaded.to_iterable_dataset() if self.streaming else loaded
            return library.load_dataset(
                self.dataset,
                self.name,
                split=self.split,
                revision=self.revision,
                streaming=self.streaming,
            )


class DatasetReader(Reader):
    """A reader of records that are not in a file."""

    @classmethod
    def stat(cls, file: SourceFile) -> tuple[int | None, str]:
        """Those that it was listed with: nothing but opening it tells others."""
        return file.size, file.version


class HubReader(DatasetReader):
    """The rows of a dataset, or some of them; numbered from 0 (in a slice of a streamed dataset:
    within its shards).
    """

    def __iter__(self) -> Iterator[Row]:
        address = HubAddress.parse(self.path)
        with reading(self.path):
            dataset = address.open(self.path)
            rows = self._streamed(dataset) if address.streaming else self._mapped(dataset)
            yield from rows

    def _mapped(self, dataset: Any) -> Iterator[Row]:
        rows = self.units(len(dataset))
        names = self.columns_of(dataset.column_names)
        dataset = dataset.select_columns(names).with_format("arrow")
        for row in rows[::_ROWS]:
            table = dataset[row : min(row + _ROWS, rows.stop)]
            self.stored_bytes += table.nbytes
            for batch in table.combine_chunks().to_batches():
                yield from rows_of(batch, row)

    def _streamed(self, dataset: Any) -> Iterator[Row]:
        row = 0
        shards = dataset.num_shards
        for i in self.units(shards):
            shard = (
                dataset
                if shards == 1
                else dataset.shard(num_shards=shards, index=i, contiguous=True)
            )
            for record in shard:
                yield row, record_of(list(record), list(record.values()), has_bytes=True)
                row += 1

    @classmethod
    def described(cls, file: SourceFile) -> SourceFile:
        address = HubAddress.parse(file.path)
        dataset = address.open(file.path)
        if address.streaming:
            return replace(file, version=f"revision:{address.revision or 'unpinned'}")
        # Two datasets with the same features, rows and files are the same; the library's
        # fingerprint says so.
        version = f"hf:{_short_hash(str(getattr(dataset, '_fingerprint', '')))}"
        return replace(file, size=int(dataset.data.nbytes), version=version)

    @classmethod
    def split(cls, file: SourceFile, target_bytes: int) -> list[Slice]:
        """Runs of rows; of a dataset that is streamed, its shards."""
        address = HubAddress.parse(file.path)
        dataset = address.open(file.path)
        if address.streaming:
            return _shards(dataset.num_shards, target_bytes)
        rows = len(dataset)
        size = file.size or 0
        count = max(1, min(rows, -(-size // target_bytes)))
        cuts = [rows * i // count for i in range(count + 1)]
        sizes = [size * (b - a) // max(1, rows) for a, b in itertools.pairwise(cuts)]
        return slices_of(cuts, sizes)


def load_function(path: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

    Raises:
        ConfigError: there is none.

    Example:
        >>> load_function("json:dumps").__name__
        'dumps'
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError(
            "names no function", field="source", value=path, cure="Write module:function."
        )
    try:
        attribute: Any = importlib.import_module(module)
        for part in name.split("."):
            attribute = getattr(attribute, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cannot be imported ({error})",
            field="source",
            value=path,
            cure="Check the name and PYTHONPATH.",
        ) from error
    if not callable(attribute):
        raise ConfigError(
            f"is a {type(attribute).__name__}, no function", field="source", value=path
        )
    return attribute


class FunctionReader(DatasetReader):
    """The records that a function yields, or some of its shards; numbered from 0 (in a slice:
    within it).
    """

    unit = "record"

    def __iter__(self) -> Iterator[Row]:
        function = load_function(self.path)
        shards = getattr(function, "num_shards", None)
        row = 0
        with reading(self.path):
            for arguments in [()] if shards is None else [(i,) for i in self.units(shards)]:
                for record in function(*arguments):
                    yield row, self._fields(record)
                    row += 1

    def _fields(self, record: Any) -> Any:
        if isinstance(record, str):
            return {self.only_field("text"): record}
        if isinstance(record, Mapping):
            return record
        return BadRecordError(f"is a {type_name(record)}, neither a text nor a mapping of fields")

    @classmethod
    def described(cls, file: SourceFile) -> SourceFile:
        """With the version of the function's source file."""
        function = load_function(file.path)
        try:
            source = inspect.getsource(inspect.getmodule(function) or function)
        except (OSError, TypeError):
            source = ""
        return replace(file, version=f"code:{_short_hash(source)}")

    @classmethod
    def split(cls, file: SourceFile, target_bytes: int) -> list[Slice]:
        shards = int(getattr(load_function(file.path), "num_shards", 1))
        check_at_least(f"{file.path}.num_shards", shards)
        return _shards(shards, target_bytes)


def _shards(count: int, num_bytes: int) -> list[Slice]:
    """A slice for each shard, of so many bytes as far as anybody knows."""
    return slices_of(range(count + 1), [num_bytes] * count)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
