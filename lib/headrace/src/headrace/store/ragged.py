"""Writes one part of a ragged store: documents of any length as ``data`` + ``offsets``, for each
leaf.

``<root>/parts/<name>/input_ids/data`` has the tokens of all documents end to end, and ``offsets``
(int64, documents + 1 values) their borders: ``offsets[0] = 0`` and document i is
``data[offsets[i]:offsets[i+1]]``. Other leaves are stored next to it in the same form; a leaf with
one value per document has only ``data``. A part is an idempotent unit of work: written from the
start or not at all, by one writer, the same bytes for the same input.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import tensorstore as ts

from headrace.errors import CacheError, ConfigError
from headrace.store import files, remote, retry
from headrace.store.array import check_same_process
from headrace.store.layout import (
    MOST_NAMED_CHUNKS,
    TOKENS,
    CacheLayout,
    LeafSpec,
    StoredLayout,
    attributes_of,
    chunk_checksums,
    open_in_memory,
    owner_of,
)
from headrace.store.lease import remove_tree
from headrace.store.ledger import part_folder, write_part_record
from headrace.store.ledger_table import LeafRecord, PartRecord

_UNBOUNDED = 1 << 54  # an array grows shard by shard; its true length is set when the writer closes

_PARTS_KEPT = ": finished parts are kept"

LeafValues: TypeAlias = "tuple[np.ndarray, np.ndarray | None]"
"""Values of some documents end to end, and the number of each (int64); None if each has one."""


def data_url(root: str, part: str, leaf: str = TOKENS) -> str:
    """Folder of the array with a leaf's elements."""
    return f"{part_folder(root, part)}/{leaf}/data"


def offsets_url(root: str, part: str, leaf: str = TOKENS) -> str:
    """Folder of the array with a leaf's offsets."""
    return f"{part_folder(root, part)}/{leaf}/offsets"


class PartWriter:
    """Writes one part. The rest of an interrupted writer of the same part is deleted first.

    Memory: one shard of each leaf, and 8 bytes per document for each ragged leaf.

    Args:
        root: Folder or URL of the cache.
        name: Name of the part, e.g. ``"00017"``.
        layout: Layout of the token leaf.
        leaves: Leaves other than the tokens.

    Raises:
        CacheError: the store cannot be written.
        ConfigError: two leaves have the same name, or the layout is not one of tokens.
    """

    def __init__(
        self, root: str, name: str, layout: CacheLayout, leaves: Sequence[LeafSpec] = ()
    ) -> None:
        layout.check_tokens()
        names = [spec.name for spec in leaves]
        if len(set(names)) < len(names):
            raise ConfigError(
                "names a leaf twice", field="leaves", value=names, cure="Give each its own name."
            )
        self.root = root
        self.name = name
        self.layout = layout
        remove_tree(part_folder(root, name))
        self._tokens = LeafWriter(root, name, TOKENS, layout, ragged=True)
        self._leaves = {
            spec.name: LeafWriter(
                root, name, spec.name, layout.leaf(spec), ragged=spec.kind == "ragged"
            )
            for spec in leaves
        }
        self._widths = {spec.name: spec.width for spec in leaves}
        self._documents = 0

    def append(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        leaves: Mapping[str, LeafValues] | None = None,
    ) -> None:
        """Adds documents.

        Args:
            tokens: Integer array ``[total]``, the documents end to end.
            lengths: Integer array ``[documents]``; zeros are empty documents.
            leaves: For each other leaf by name: its values, the documents end to end, and an
                integer array ``[documents]`` with the number of each; None instead of it for a leaf
                with one value per document.

        Raises:
            CacheError: lengths do not add up, a value does not fit the dtype, a leaf is missing or
                unknown, or its number of values does not match its tokens
                (:attr:`~headrace.store.layout.LeafSpec.width`).
        """
        leaves = leaves or {}
        if leaves.keys() != self._leaves.keys():
            problem = f"has the leaves {sorted(self._leaves)}, but {sorted(leaves)} were given"
            raise CacheError(problem, field="part", value=self.name)
        # All is checked before anything is written.
        checked = [(self._tokens, tokens, self._tokens.checked(tokens, lengths, len(lengths)))]
        for name, (values, counts) in leaves.items():
            writer = self._leaves[name]
            checked.append((writer, values, writer.checked(values, counts, len(lengths))))
            width = self._widths.get(name)
            if width is not None and (
                counts is None or not np.array_equal(counts, width * np.asarray(lengths))
            ):
                problem = f"values of leaf {name} are not {width} for each token"
                raise CacheError(problem, field="part", value=self.name)
        for writer, values, counts in checked:
            writer.append(values, counts)
        self._documents += len(lengths)

    def close(self, **extra: Any) -> PartRecord:
        """Writes the rest, then the part's record, with additional JSON values; this makes the part
        complete.
        """
        tokens = self._tokens.close()
        leaves = {name: writer.close() for name, writer in self._leaves.items()}
        record = PartRecord(
            self.name, self._documents, tokens.elements, tokens.digest, extra=extra, leaves=leaves
        )
        write_part_record(self.root, record)
        return record

    def abort(self) -> None:
        """Deletes what was written so far."""
        remove_tree(part_folder(self.root, self.name))


class LeafWriter:
    """Writes the arrays of one leaf of one part.

    Args:
        root: Folder or URL of the cache.
        part: Name of the part.
        leaf: Name of the leaf.
        layout: Its layout.
        ragged: Whether documents have any number of values.
        size: Elements and documents of a leaf that may be there in part: its finished files are
            kept. None: a new leaf, as long as what is appended.
    """

    def __init__(
        self,
        root: str,
        part: str,
        leaf: str,
        layout: CacheLayout,
        *,
        ragged: bool,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._part = part
        self._leaf = leaf
        self._layout = layout
        self._offsets_url = offsets_url(root, part, leaf)
        self._size = size
        self._data = self._array(data_url(root, part, leaf), layout, size and size[0])
        self._lengths: list[np.ndarray] | None = [np.zeros(1, np.int64)] if ragged else None
        self._digest = hashlib.sha256()

    def _array(self, url: str, layout: CacheLayout, length: int | None) -> ArrayWriter:
        if length is None:
            return ArrayWriter(url, layout)
        return ArrayWriter(url, layout, layout.zarr_metadata(length), resume=True)

    def checked(
        self, values: np.ndarray, lengths: np.ndarray | None, documents: int
    ) -> np.ndarray | None:
        """A copy of the lengths. Raises CacheError if they or the values do not match the
        documents, or a value does not fit the dtype.
        """
        what = "tokens" if self._leaf == TOKENS else f"values of leaf {self._leaf}"
        if lengths is not None:
            lengths = np.array(lengths, np.int64)  # a copy: it is kept until the part is closed
        if (lengths is None) != (self._lengths is None):
            problem = (
                "no lengths were given"
                if lengths is None
                else "lengths were given for one value per document"
            )
            raise CacheError(f"{what}: {problem}", field="part", value=self._part)
        if lengths is not None and (
            int(lengths.sum()) != values.size or (lengths.size and int(lengths.min()) < 0)
        ):
            problem = f"lengths add up to {int(lengths.sum())}, not to the {values.size} {what}"
            raise CacheError(problem, field="part", value=self._part)
        described = values.size if lengths is None else lengths.size
        if described != documents:
            raise CacheError(
                f"{what} are of {described} documents, not {documents}",
                field="part",
                value=self._part,
            )
        self._check_range(values)
        return lengths

    def append(self, values: np.ndarray, lengths: np.ndarray | None = None) -> None:
        """Adds values that fit, and the lengths of their documents, unless :meth:`close` is told
        where these end.
        """
        dtype = np.dtype(self._layout.dtype)
        stored = np.ascontiguousarray(values, dtype.newbyteorder("<"))
        self._digest.update(stored.data)
        self._data.append(stored)
        if self._lengths is not None and lengths is not None:
            self._lengths.append(lengths)

    def close(self, offsets: Iterable[np.ndarray] = ()) -> LeafRecord:
        """Writes the rest, and the ``offsets`` of a ragged leaf; default: those that follow from
        the lengths.
        """
        self._data.close()
        arrays = {self._data.url: self._data.checksums}
        if self._lengths is not None:
            length = self._size and self._size[1] + 1
            writer = self._array(self._offsets_url, self._layout.offsets(), length)
            for block in offsets or [np.cumsum(np.concatenate(self._lengths))]:
                writer.append(block)
                self._digest.update(block.astype("<i8").data)
            writer.close()
            arrays[writer.url] = writer.checksums
        digest = f"sha256:{self._digest.hexdigest()}"
        name_owner(digest, arrays)
        return LeafRecord(self._data.length, digest)

    def _check_range(self, values: np.ndarray) -> None:
        dtype = np.dtype(self._layout.dtype)
        if not values.size or dtype.kind == "f" or (values.dtype == dtype and dtype.kind == "u"):
            return
        # Ids are never negative; values of other leaves may be.
        low, high = (
            (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        )
        what = f"a value of leaf {self._leaf}"
        cure = f"Give the leaf a wider dtype than {dtype.name}."
        if self._leaf == TOKENS:
            what = "an id"
            low = 0
            cure = (
                "The tokenizer's vocab_size is wrong, or the dtype too narrow: leave layout.dtype"
                " out."
            )
        if values.dtype.kind not in "iub" or int(values.max()) > high or int(values.min()) < low:
            raise CacheError(
                f"holds {what} outside {low} .. {high}", field="part", value=self._part, cure=cure
            )


class ArrayWriter:
    """Appends to a new array, one whole shard at a time, in bounded memory, and keeps the checksum
    of each chunk.

    TensorStore encodes a shard in memory, so that its file can be inspected before it is written.
    Price: memory of three shards, 50 ms of CPU for one of 32 MB (16 million tokens).

    Args:
        url: Folder to create; there must be no array.
        layout: Dtype, chunks and codecs.
        metadata: ``zarr.json`` of an array that keeps its nominal length when it is closed.
        resume: Whether there may be a part of the same array already, whose shards are kept.
    """

    def __init__(
        self,
        url: str,
        layout: CacheLayout,
        metadata: Mapping[str, Any] | None = None,
        *,
        resume: bool = False,
    ) -> None:
        self.url = url
        self.layout = layout
        self.length = 0
        # The system gives pages as they are written.
        self._shard = np.empty(layout.shard_elements, layout.dtype)
        self._filled = 0
        self._written = 0
        self._resizes = metadata is None
        metadata = layout.zarr_metadata(_UNBOUNDED) if metadata is None else metadata
        self._array = created_array(url, metadata, resume=resume)
        self._there = shard_sizes(url, 0) if resume else {}
        self._kept = ": finished files are kept" if resume else _PARTS_KEPT
        self._files: Any = ts.KvStore.open(
            files.kvstore_spec(url), context=_writing_context()
        ).result()
        self._encode, self._encoded = open_in_memory(metadata)
        self._checksums = [np.zeros(0, np.uint32)]
        self._index_bytes = 0
        codecs = metadata["codecs"][0]["configuration"]
        if codecs["codecs"][-1]["name"] == "crc32c" and codecs.get("index_location") == "end":
            self._index_bytes = StoredLayout.parse(dict(metadata)).index_bytes

    @property
    def checksums(self) -> np.ndarray | None:
        """The crc32c of each chunk written so far, uint32; None of arrays whose chunks have
        none.
        """
        return np.concatenate(self._checksums) if self._index_bytes else None

    def append(self, values: np.ndarray) -> None:
        """Adds a one-dimensional array of the layout's dtype. It is copied: the caller may write to
        it again.

        Raises:
            CacheError: a shard cannot be written.
        """
        self.length += values.size
        while values.size:
            piece = values[: self._shard.size - self._filled]
            self._shard[self._filled : self._filled + piece.size] = piece
            self._filled += piece.size
            values = values[piece.size :]
            if self._filled == self._shard.size:
                self._flush()

    def close(self) -> None:
        """Writes the last, partial shard and the true length."""
        if self._filled:
            self._flush()
        self._shard = self._shard[:0].copy()
        if self._resizes:
            shorter = self._array.resize(
                exclusive_max=[self.length], resize_metadata_only=True, shrink_only=True
            )
            written(shorter, self.url)

    def _flush(self) -> None:
        is_there = self._written // self.layout.shard_elements in self._there
        begin = self._written
        self._written = begin + self._filled
        self._encode[begin : self._written].write(self._shard[: self._filled]).result()
        self._filled = 0
        for key in self._encoded.list().result():
            if key == b"zarr.json":
                continue
            file = self._encoded.read(key).result().value
            self._encoded.write(key, None).result()
            if self._index_bytes:
                self._checksums.append(chunk_checksums(file, self._index_bytes))
            if not is_there:
                written(self._files.write(key, file), self.url, self._kept)


def name_owner(digest: str, arrays: Mapping[str, np.ndarray | None]) -> None:
    """Writes the owner of a leaf's arrays, once its digest is known, and the checksums of their
    chunks, by folder.
    """
    for url, checksums in arrays.items():
        if checksums is not None and checksums.size > MOST_NAMED_CHUNKS:
            checksums = None
        file = files.join(url, "zarr.json")
        metadata = json.loads(files.read_bytes(file) or b"{}")
        metadata["attributes"] = attributes_of(metadata, owner_of(url, digest), checksums)
        files.write_atomic(
            file, json.dumps(metadata, separators=(",", ":"), sort_keys=True).encode()
        )


def created_array(url: str, metadata: Mapping[str, Any], *, resume: bool) -> Any:
    """A TensorStore array to write to, under the policy of the process; an existing one is opened
    to ``resume`` it.

    Raises:
        CacheError: it cannot be written.
        ReadError: this process was forked from one that has used TensorStore.
    """
    check_same_process()
    spec = {"driver": "zarr3", "kvstore": files.kvstore_spec(url), "metadata": metadata}
    future = ts.open(spec, create=True, open=resume, context=_writing_context())
    return written(future, url)


def _writing_context() -> Any:
    policy = retry.policy()
    return ts.Context(policy.tensorstore_context(policy.retries))


def written(future: Any, url: str, kept: str = _PARTS_KEPT) -> Any:
    """The result of a write; CacheError, with a cure that ends with ``kept``, if it failed."""
    try:
        return future.result()
    except (ValueError, OSError) as error:
        why = str(remote.store_error(error, url))
        if "No space left" in why and files.is_local(url):
            size = re.search(r"write (\d+)", why)
            missing = f"{int(size[1]):,} bytes to write, " if size else ""
            why = f"No space left on device: {missing}{files.free_bytes(files.local_path(url))}"
        cure = f"Check permissions and free space, then run the same command again{kept}."
        raise CacheError(
            f"cannot be written ({why})", field="array", value=url, cure=cure
        ) from error


def shard_sizes(url: str, shards: int) -> dict[int, int]:
    """Bytes of each existing shard file of an array, by its number; there should be ``shards`` of
    them.
    """
    if files.is_local(url):
        try:
            with os.scandir(files.local_path(files.join(url, "c"))) as listed:
                return {
                    int(entry.name): entry.stat().st_size
                    for entry in listed
                    if entry.name.isdigit()
                }
        except (FileNotFoundError, NotADirectoryError):
            return {}
    folder = files.join(url, "c")
    if files.is_web(url):  # no listings
        sizes: dict[int, int] = {}
        for number in range(shards):
            with suppress(FileNotFoundError):
                sizes[number] = int(remote.info(files.join(folder, str(number)))["size"])
        return sizes
    start = len(remote.filesystem(folder)[1].rstrip("/")) + 1
    named = ((path[start:], size) for path, size in remote.sizes_below(folder).items())
    return {int(name): size for name, size in named if name.isdigit()}
