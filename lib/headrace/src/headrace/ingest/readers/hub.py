"""Datasets of the Hugging Face hub, or in its form on this machine, through the library ``datasets``.

``hf://OWNER/NAME?name=CONFIG&split=SPLIT&revision=REV``; the split is ``train`` unless told. ``hf://./FOLDER`` is a
folder that ``save_to_disk`` wrote, or one of files. A dataset is read from the library's copy on disk and can be cut at
any row; with ``&streaming=true`` it is read from afar without one, and is cut at its shards.

Only data is ever loaded: no dataset script is run.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qs

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.ingest.readers.columnar import column_values, import_extra
from headrace.ingest.records import Reader, Row, Slice, reading

_ROWS = 512
_OPTIONS = ("name", "split", "revision", "streaming")


@dataclass(frozen=True)
class HubAddress:
    """A dataset, as a path says it.

    Attributes:
        dataset: ``OWNER/NAME``, or a folder.
        name: Its configuration, if it has several.
        split: Which split.
        revision: Branch, tag or commit.
        streaming: Read without a copy on disk.
    """

    dataset: str
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    streaming: bool = False

    @classmethod
    def parse(cls, path: str) -> HubAddress:
        """Reads a path.

        Raises:
            ConfigError: it is none of a dataset.

        Example:
            >>> HubAddress.parse("hf://acme/poems?split=test&streaming=true")
            HubAddress(dataset='acme/poems', name=None, split='test', revision=None, streaming=True)
        """
        dataset, _, query = path.removeprefix("hf://").partition("?")
        options = {k: v[-1] for k, v in parse_qs(query, keep_blank_values=True).items()}
        for key in options:
            if key not in _OPTIONS:
                raise ConfigError("is no option of a dataset", field=path, value=key, cure=did_you_mean(key, _OPTIONS))
        if not dataset:
            raise ConfigError("names no dataset", field="source", value=path, cure="Write hf://OWNER/NAME.")
        streaming = options.pop("streaming", "false").lower() in ("true", "1", "yes", "")
        return cls(dataset, **options, streaming=streaming)

    def open(self, path: str) -> Any:
        """The dataset: ``datasets.Dataset``, or ``IterableDataset`` if it is streamed.

        Raises:
            SourceError: there is no such dataset or split, or it cannot be loaded.
        """
        library = import_extra("datasets", "hf", path)
        with reading(path):
            if any(os.path.exists(os.path.join(self.dataset, f)) for f in ("dataset_dict.json", "state.json")):
                loaded = library.load_from_disk(self.dataset)
                if isinstance(loaded, dict):
                    if self.split not in loaded:
                        raise SourceError(
                            f"has no split {self.split!r}", field=path, cure=did_you_mean(self.split, loaded)
                        )
                    loaded = loaded[self.split]
                return loaded.to_iterable_dataset() if self.streaming else loaded
            return library.load_dataset(
                self.dataset, self.name, split=self.split, revision=self.revision, streaming=self.streaming
            )


class HubReader(Reader):
    """The rows of a dataset, or some of them; numbered from 0 (in a slice of a streamed one: within its shards)."""

    unit: ClassVar[str] = "row"

    def __iter__(self) -> Iterator[Row]:
        address = HubAddress.parse(self.path)
        with reading(self.path):
            dataset = address.open(self.path)
            rows = self._streamed(dataset) if address.streaming else self._mapped(dataset)
            yield from rows

    def _mapped(self, dataset: Any) -> Iterator[Row]:
        start, stop = (0, None) if self.part is None else (self.part.start, self.part.stop)
        stop = len(dataset) if stop is None else min(stop, len(dataset))
        names = self.columns_of(dataset.column_names)
        dataset = dataset.select_columns(names).with_format("arrow")
        for row in range(start, stop, _ROWS):
            table = dataset[row : min(row + _ROWS, stop)]
            self.stored_bytes += table.nbytes
            columns = [column_values(table.column(n).combine_chunks()) for n in names]
            for i, values in enumerate(zip(*columns, strict=True)):
                yield row + i, dict(zip(names, values, strict=True))

    def _streamed(self, dataset: Any) -> Iterator[Row]:
        row = 0
        start, stop = (0, 1) if self.part is None else (self.part.start, self.part.stop)
        shards = dataset.num_shards
        for i in range(start, shards if stop is None or self.part is None else min(stop, shards)):
            shard = dataset if shards == 1 else dataset.shard(num_shards=shards, index=i, contiguous=True)
            for record in shard:
                yield row, record
                row += 1


def describe(path: str, target_bytes: int) -> tuple[int | None, str, list[Slice]]:
    """Size, version and slices of a dataset."""
    address = HubAddress.parse(path)
    dataset = address.open(path)
    if address.streaming:
        shards = int(dataset.num_shards)
        slices = [Slice(i, i + 1 if i + 1 < shards else None, target_bytes) for i in range(shards)]
        return None, f"revision:{address.revision or 'unpinned'}", slices if shards > 1 else []
    rows, size = len(dataset), int(dataset.data.nbytes)
    # Two datasets with the same features, rows and files are the same; the library's fingerprint says so.
    version = "hf:" + hashlib.sha256(str(getattr(dataset, "_fingerprint", "")).encode()).hexdigest()[:16]
    count = max(1, min(rows, -(-size // max(1, target_bytes))))
    cuts = [rows * i // count for i in range(count + 1)]
    slices = [Slice(a, b if b < rows else None, size * (b - a) // max(1, rows)) for a, b in itertools.pairwise(cuts)]
    return size, version, slices if count > 1 else []
