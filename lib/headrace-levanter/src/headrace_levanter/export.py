"""Writing a cache in Levanter's form, from one of any form.

A cache is built in headrace's format and then converted: its parts have digests and a checksum in
every chunk, can be resumed and repaired one by one, and need only some megabytes to write.
Levanter's format has none of that, and a shard of it is half a gigabyte that must be written at
once. The output is what every release of Levanter opens (some refuse other chunks or codecs):
shards of 134,217,728 elements in chunks of 262,144, blosc with lz4 at level 5, arrays of 2**54
elements that are never resized.

``consolidated`` is one pair of arrays for each leaf, which all releases read; ``sharded`` keeps a
folder for each part, which those since May 2026 read.

Invariant: documents and leaves in order, row by row, without documents that were removed from the
cache; a leaf with one value per document becomes one with rows of one value. Price: one pass over
the cache; memory of about three times one shard of Levanter's (1.5 GiB of int32), less for a
smaller cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.data.documents import stored_documents, value_ranges
from headrace.errors import CacheError, ConfigError
from headrace.order.intervals import Intervals, starts
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS, CacheLayout
from headrace.store.leaf import CacheLeaf, fitting
from headrace.store.lease import LEASE_NAME, check_vacant, lease, remove_tree
from headrace.store.ledger import LEDGER_NAME
from headrace.store.missing import LEVANTERS_LEDGER
from headrace.store.ragged import ArrayWriter
from headrace_levanter.caches import CHUNK, SHARD_CHUNKS, UNBOUNDED

Form: TypeAlias = Literal["consolidated", "sharded"]
SHARD = CHUNK * SHARD_CHUNKS


def write_levanter(
    cache: TokenCache,
    output: str,
    *,
    form: Form = "consolidated",
    dtype: str = "int32",
    advance: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Writes a cache as one of Levanter's.

    Args:
        cache: The cache to write.
        output: Folder or URL: new, empty, or with an interrupted conversion. Levanter looks for the
            caches of its config in folders named ``train`` and ``validation``.
        form: One array for each leaf, or a folder for each part.
        dtype: Dtype of the tokens; Levanter's own is int32.
        advance: Called with the number of tokens and values written since its last call.

    Returns:
        The ledger. If the cache is there already, in this form and dtype, nothing is done.

    Raises:
        CacheError: the output contains something else, cannot be written, or an id does not fit the
            dtype.
        ConfigError: it was written in packs.
    """
    files.check_writable(output)
    if (packs := cache.pack) is not None:
        raise ConfigError(
            "was written in packs, whose padding would be documents there",
            field="cache",
            value=cache.path,
            cure=f"Convert what it was made of: {packs.cache}.",
        )
    left_out = Intervals.union([stored_documents(cache, cache.removed()), cache.moved_away])
    leaves = [_Rows.of(cache, name, left_out) for name in (TOKENS, *cache.leaves)]
    ledger = _ledger(cache, leaves, form, np.dtype(dtype).name)
    is_done = _check_vacant(output, ledger)
    with lease(output) as held_lease:

        def moved(elements: int) -> None:
            held_lease.check()
            if advance is not None:
                advance(elements)

        if not is_done:
            _write(leaves, output, ledger, np.dtype(dtype), moved)
    return ledger


@dataclass(frozen=True)
class _Rows:
    """The rows of a leaf that are written.

    Attributes:
        leaf: The leaf.
        left_out: The documents that are left out.
        left_out_values: Their values.
    """

    leaf: CacheLeaf
    left_out: Intervals
    left_out_values: Intervals

    @classmethod
    def of(cls, cache: TokenCache, name: str, left_out: Intervals) -> _Rows:
        return cls(
            cache.leaf(name), left_out, Intervals.union([value_ranges(cache, left_out, name)])
        )

    @property
    def count(self) -> int:
        return self.leaf.num_documents - self.left_out.total

    @property
    def values(self) -> int:
        return self.leaf.num_elements - self.left_out_values.total

    @cached_property
    def of_parts(self) -> list[_Rows]:
        """Those of each part."""
        parts = [self.leaf.of_part(number) for number in range(len(self.leaf.parts))]
        documents = starts([part.num_documents for part in parts]).tolist()
        values = starts([part.num_elements for part in parts]).tolist()
        return [
            _Rows(part, self.left_out.within(*pairs), self.left_out_values.within(*ends))
            for part, pairs, ends in zip(parts, pairwise(documents), pairwise(values), strict=True)
        ]

    def blocks(self) -> Iterator[np.ndarray]:
        """All values in order, in blocks."""
        first = 0
        for block in self.leaf.blocks():
            yield block[~self.left_out_values.mask(first, first + block.size)]
            first += block.size

    def ends(self) -> Iterator[np.ndarray]:
        """The end of each row in the values, in blocks."""
        gone_before = starts(self.left_out_values.stop - self.left_out_values.start)
        first = 0
        for ends in self.leaf.ends():
            is_left = ~self.left_out.mask(first, first + ends.size)
            first += ends.size
            ends = ends[is_left]
            yield ends - gone_before[np.searchsorted(self.left_out_values.start, ends)]


def _write(
    leaves: Sequence[_Rows],
    output: str,
    ledger: dict[str, Any],
    dtype: np.dtype[Any],
    advance: Callable[[int], None],
) -> None:
    form = ledger["layout"]
    files.write_atomic(
        files.join(output, LEVANTERS_LEDGER), _dump({**ledger, "is_finished": False})
    )
    for name in files.names_in(output):  # what an interrupted conversion left
        if name not in (LEASE_NAME, LEVANTERS_LEDGER):
            remove_tree(files.join(output, name))
    for rows in leaves:
        name = rows.leaf.name
        stored = dtype if name == TOKENS else rows.leaf.dtype
        if form == "consolidated":
            _write_leaf(rows, files.join(output, name), stored, advance)
            continue
        for number, part in enumerate(rows.of_parts):
            _write_leaf(part, files.join(output, _shard_name(number), name), stored, advance)
    if form == "sharded":
        for number in range(len(leaves[0].of_parts)):
            shard = files.join(output, _shard_name(number), LEVANTERS_LEDGER)
            files.write_atomic(shard, _dump(_shard_ledger(ledger, _shard_name(number))))
    files.write_atomic(files.join(output, LEVANTERS_LEDGER), _dump(ledger))


def _write_leaf(
    rows: _Rows, folder: str, dtype: np.dtype[Any], advance: Callable[[int], None]
) -> None:
    data = _writer(files.join(folder, "data"), dtype)
    for block in rows.blocks():
        data.append(fitting(block, dtype, folder))
        advance(block.size)
    data.close()
    offsets = _writer(files.join(folder, "offsets"), np.dtype(np.int64))
    for ends in chain([np.array([rows.count])], rows.ends()):
        offsets.append(ends)
    offsets.close()


def _writer(url: str, dtype: np.dtype[Any]) -> ArrayWriter:
    return ArrayWriter(
        url, CacheLayout(dtype.name, CHUNK, SHARD_CHUNKS, "other"), array_metadata(dtype)
    )


def array_metadata(dtype: np.dtype[Any]) -> dict[str, Any]:
    """``zarr.json`` of an array as Levanter writes it. What is left out is TensorStore's default,
    there as here.

    Example:
        >>> array_metadata(np.dtype("int32"))["chunk_grid"]["configuration"]
        {'chunk_shape': [134217728]}
    """
    inner: dict[str, Any] = {
        "chunk_shape": [CHUNK],
        "codecs": [{"name": "blosc", "configuration": {"clevel": 5}}],
    }
    return {
        "shape": [UNBOUNDED],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [SHARD]}},
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        "fill_value": False if dtype.kind == "b" else 0,
    }


def _ledger(cache: TokenCache, leaves: Sequence[_Rows], form: Form, dtype: str) -> dict[str, Any]:
    tokenizer = cache.ledger.tokenizer
    preprocessor = {
        "tokenizer": tokenizer.get("path", "unknown"),
        "vocab_size": tokenizer["vocab_size"],
    }
    preprocessor |= {
        f"append_{role}": tokenizer.get(f"{role}_id") is not None for role in ("bos", "eos")
    }
    own_fields = {"tokenizer": tokenizer, "fingerprint": cache.fingerprint, "dtype": dtype}
    names = [_shard_name(k) for k in range(len(cache.parts))] if form == "sharded" else [""]
    if leaves[0].left_out.total:
        own_fields["removed"] = leaves[0].left_out.digest()
    parts = leaves[0].of_parts if form == "sharded" else leaves[:1]
    rows = [part.count for part in parts]

    def counts(number: int) -> dict[str, int]:
        return {rows.leaf.name: rows.of_parts[number].values for rows in leaves}

    return {
        "total_num_rows": leaves[0].count,
        "shard_rows": dict(zip(names, rows, strict=True)),
        "is_finished": True,
        "finished_shards": names,
        "field_counts": {rows.leaf.name: rows.values for rows in leaves} if names else {},
        "field_counts_by_shard": {n: counts(k) for k, n in enumerate(names)}
        if form == "sharded"
        else {},
        "layout": form,
        "metadata": {"preprocessor_metadata": {**preprocessor, "headrace": own_fields}},
    }


def _shard_ledger(ledger: dict[str, Any], name: str) -> dict[str, Any]:
    """The ledger that a shard's own folder has."""
    rows = ledger["shard_rows"][name]
    return {
        **ledger,
        "total_num_rows": rows,
        "shard_rows": {"": rows},
        "finished_shards": [""],
        "field_counts": ledger["field_counts_by_shard"][name],
        "field_counts_by_shard": {},
        "layout": "consolidated",
    }


def _shard_name(number: int) -> str:
    return f"part-{number:05d}"


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()


def _is_unfinished(raw: bytes) -> bool:
    """Whether a ledger is one of an interrupted conversion of headrace's."""
    try:
        ledger = json.loads(raw)
        about = ledger["metadata"]["preprocessor_metadata"]
        return "headrace" in about and not ledger["is_finished"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _check_vacant(output: str, planned: dict[str, Any]) -> bool:
    """Whether a folder has the planned conversion already; refuses one with anything but this, or
    an unfinished one.
    """
    url = files.join(output, LEVANTERS_LEDGER)
    raw = files.read_bytes(url)
    if raw is not None:
        if raw == _dump(planned):
            return True
        if not _is_unfinished(raw):
            raise CacheError(
                "holds a cache of Levanter already",
                field="output",
                value=output,
                cure="Choose a new folder.",
            )
        return False
    if files.exists(files.join(output, LEDGER_NAME)):
        cure = "Choose a folder that is new or empty."
        raise CacheError("holds a token cache already", field="output", value=output, cure=cure)
    check_vacant(output, but=f"{LEVANTERS_LEDGER}.tmp")
    return False
