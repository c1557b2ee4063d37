"""How a leaf is stored: dtype, chunk, shard, codecs; and the zarr3 metadata for it.

A **leaf** has one value, or a run of values, for each document: the tokens (``input_ids``), and any
others (loss masks, lengths of turns, scores, ids), each in its own array.

One **chunk** is one I/O block, the smallest unit of reading (default 65,536 tokens; 16 to 32
training examples). Chunks are stored in **shards**, one file each (default 256 chunks), so that a
trillion tokens are some tens of thousands of files. Every chunk and every shard index has a crc32c.
Uncompressed by default: in the narrowest dtype tokens take 2 bytes, zstd saves about a quarter of
that and halves the speed of reading (docs/performance.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorstore as ts

from headrace.errors import ConfigError, check_at_least, check_choice, did_you_mean

Compression: TypeAlias = Literal["none", "zstd", "other"]
LeafKind: TypeAlias = Literal["ragged", "fixed"]

TOKENS = "input_ids"
_DTYPE_CURE = (
    "Use uint16, or uint32 for more than 65,536 ids; left out, the narrowest that holds them."
)
FILTERS_FOLDER = "filters"
"""Folder of saved filters, within a cache."""
ATTRIBUTES_FOLDER = "attributes"
"""Folder of saved attributes, within a cache."""
TOKEN_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
LEAF_DTYPES = (*TOKEN_DTYPES, "bool", "int8", "int16", "uint64", "float32", "float64")
DEFAULT_CHUNK = 65_536
DEFAULT_SHARD_CHUNKS = 256
OFFSETS_CHUNK = 16_384
LARGEST_WIDTH = 1024
# elements and chunks: anything larger is damaged or malicious
LARGEST_CHUNK = 1 << 30
LARGEST_SHARD = 1 << 24
_LITTLE: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC: dict[str, Any] = {"name": "crc32c"}
_INDEX_ENTRY = 16
CRC_BYTES = 4
NO_CHUNK = (1 << 64) - 1
"""Offset of a chunk in an index if it was never written."""


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest unsigned dtype that holds every id of a vocabulary.

    Args:
        vocab_size: Number of ids, 1 to 2**32.

    Raises:
        ConfigError: ``vocab_size`` is out of range.

    Example:
        >>> token_dtype(257), token_dtype(65536), token_dtype(128_256)
        (dtype('uint16'), dtype('uint16'), dtype('uint32'))
    """
    for dtype in (np.uint8, np.uint16, np.uint32):
        if 1 <= vocab_size <= int(np.iinfo(dtype).max) + 1:
            return np.dtype(dtype)
    raise ConfigError("must lie in 1 .. 2**32", field="vocab_size", value=vocab_size)


@dataclass(frozen=True)
class LeafSpec:
    """A leaf other than the tokens.

    Attributes:
        name: Its folder within a part: letters, digits, ``_``, ``-`` and ``.``; not ``input_ids``.
        dtype: Name of its dtype: bool, an integer type, ``float32`` or ``float64``.
        kind: ``ragged``: any number of values per document; ``fixed``: one value per document.
        width: For a ragged leaf, the number of values per token (1, or K as for a teacher's K most
            likely tokens): chunk k then matches chunk k of the tokens. None: any number.

    Raises:
        ConfigError: a value is not usable.

    Example:
        >>> LeafSpec("loss_mask", "uint8", "ragged").kind, LeafSpec("topk", "int32", width=8).width
        ('ragged', 8)
    """

    name: str
    dtype: str
    kind: LeafKind = "ragged"
    width: int | None = None

    def __post_init__(self) -> None:
        if self.name in (TOKENS, "part.json") or not re.fullmatch(
            r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name
        ):
            cure = f"Use letters, digits and _ - . and not {TOKENS}, which are the tokens."
            raise ConfigError(
                "cannot be the name of a leaf", field="leaf", value=self.name, cure=cure
            )
        check_choice(f"leaf {self.name}", self.dtype, LEAF_DTYPES, "is not a dtype of leaves")
        if self.kind not in ("ragged", "fixed"):
            cure = "ragged: any number of values per document; fixed: one value per document."
            raise ConfigError(
                "is not a kind of leaf", field=f"leaf {self.name}", value=self.kind, cure=cure
            )
        if self.width is not None and (
            self.kind == "fixed" or not 1 <= self.width <= LARGEST_WIDTH
        ):
            cure = f"A leaf of kind ragged may have 1 to {LARGEST_WIDTH:,} values per token."
            raise ConfigError(
                "is not a number of values per token",
                field=f"leaf {self.name}",
                value=self.width,
                cure=cure,
            )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class CacheLayout:
    """Layout of the token leaf, which determines that of the other leaves (:meth:`leaf`).

    Attributes:
        dtype: Name of the dtype; for tokens the narrowest unsigned integer type (``uint8``,
            ``uint16``, ``uint32``).
        chunk_elements: Tokens in a chunk, the unit of reading. Best a multiple of the sequence
            lengths in use.
        shard_chunks: Chunks in a shard, the unit of writing (one file).
        compression: ``none`` or ``zstd`` (level 1); ``other``: another program's choice, for
            reading only.

    Raises:
        ConfigError: a value is not usable.
    """

    dtype: str = "uint16"
    chunk_elements: int = DEFAULT_CHUNK
    shard_chunks: int = DEFAULT_SHARD_CHUNKS
    compression: Compression = "none"

    def __post_init__(self) -> None:
        if self.dtype not in LEAF_DTYPES:
            raise ConfigError(
                "is not a dtype of tokens", field="dtype", value=self.dtype, cure=_DTYPE_CURE
            )
        for name, largest in (("chunk_elements", LARGEST_CHUNK), ("shard_chunks", LARGEST_SHARD)):
            check_at_least(
                f"layout.{name}", getattr(self, name), cure="Leave it out for the default."
            )
            if getattr(self, name) > largest:
                cure = f"Use at most {largest:,}."
                raise ConfigError(
                    "is too large to be read",
                    field=f"layout.{name}",
                    value=getattr(self, name),
                    cure=cure,
                )
        if self.compression not in ("none", "zstd", "other"):
            cure = did_you_mean(str(self.compression), ["none", "zstd"])
            raise ConfigError(
                "is not a compression",
                field="layout.compression",
                value=self.compression,
                cure=cure,
            )

    @property
    def shard_elements(self) -> int:
        return self.chunk_elements * self.shard_chunks

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def check_tokens(self) -> None:
        """Raises ConfigError unless the dtype is one of token ids."""
        if self.dtype not in TOKEN_DTYPES:
            raise ConfigError(
                "is not a dtype of tokens", field="dtype", value=self.dtype, cure=_DTYPE_CURE
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ConfigError if an id below ``vocab_size`` does not fit the dtype."""
        self.check_tokens()
        if vocab_size - 1 > int(np.iinfo(self.dtype).max):
            cure = (
                f"Use {token_dtype(vocab_size).name}, or leave it out: the narrowest that fits is"
                " chosen."
            )
            raise ConfigError(
                f"cannot hold a vocabulary of {vocab_size}",
                field="layout.dtype",
                value=self.dtype,
                cure=cure,
            )

    def offsets(self) -> CacheLayout:
        """Layout of the offsets that go with this leaf."""
        return CacheLayout("int64", OFFSETS_CHUNK, self.shard_chunks, self.compression)

    def leaf(self, spec: LeafSpec) -> CacheLayout:
        """Layout of the values of another leaf: chunks have as many elements as those of the
        tokens, times its values per token, so that chunk k of a leaf with values per token matches
        chunk k of the tokens.
        """
        width = spec.width or 1
        chunk = width * self.chunk_elements if spec.kind == "ragged" else OFFSETS_CHUNK
        return CacheLayout(spec.dtype, chunk, max(self.shard_chunks // width, 1), self.compression)

    def zarr_metadata(self, length: int) -> dict[str, Any]:
        """``zarr.json`` for a one-dimensional array of ``length`` elements."""
        if self.compression == "other":
            raise ConfigError(
                "cannot be written",
                field="layout.compression",
                value="other",
                cure="Use none or zstd.",
            )
        zstd: dict[str, Any] = {"name": "zstd", "configuration": {"level": 1}}
        sharding: dict[str, Any] = {
            "chunk_shape": [self.chunk_elements],
            "codecs": [_LITTLE, zstd, _CRC] if self.compression == "zstd" else [_LITTLE, _CRC],
            "index_codecs": [_LITTLE, _CRC],
            "index_location": "end",
        }
        return {
            "shape": [length],
            "data_type": self.dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [self.shard_elements]},
            },
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "fill_value": False if self.dtype == "bool" else 0,
        }


OWNER = "headrace_owner"
CHUNKS = "headrace_chunks"
_DIGEST = "headrace_digest"
MOST_NAMED_CHUNKS = 1 << 20
"""Largest number of chunks that ``zarr.json`` lists, with 5.3 bytes each. A larger array does not
list them.
"""


def attributes_of(
    metadata: dict[str, Any], owner: str, checksums: np.ndarray | None = None
) -> dict[str, str]:
    """Attributes in ``zarr.json``: the owner of the array (the digest of its leaf in its part, and
    ``data`` or ``offsets``), the crc32c of each of its chunks, and a digest of the whole. Older
    arrays have none of them, or not the second.
    """
    named = (
        {}
        if checksums is None
        else {CHUNKS: base64.b64encode(checksums.astype("<u4").tobytes()).decode()}
    )
    content = json.dumps(
        {**metadata, "attributes": [owner, *named.values()] if named else owner}, sort_keys=True
    )
    return {OWNER: owner, **named, _DIGEST: hashlib.sha256(content.encode()).hexdigest()[:32]}


def owner_of(url: str, digest: str) -> str:
    """The owner in the ``zarr.json`` of an array of a leaf with this digest."""
    return f"{digest} {url.rstrip('/').rsplit('/', 1)[-1]}"


def named_in(metadata: dict[str, Any]) -> tuple[str, np.ndarray | None]:
    """The owner of an array according to its ``zarr.json``, and the crc32c of each of its chunks,
    uint32; empty and None if they are missing. ValueError if they are damaged.
    """
    attributes = metadata.get("attributes") or {}
    if not {OWNER, CHUNKS, _DIGEST} & attributes.keys():
        return "", None
    owner = str(attributes.get(OWNER, ""))
    named = attributes.get(CHUNKS)
    checksums = (
        None if named is None else np.frombuffer(base64.b64decode(str(named), validate=True), "<u4")
    )
    if attributes != attributes_of(metadata, owner, checksums):
        raise ValueError("it is not as it was written: its digest is of another text")
    return owner, checksums


def chunk_checksums(shard_file: bytes, index_bytes: int) -> np.ndarray:
    """The crc32c, uint32, with which each chunk of a shard file of headrace's ends, in order."""
    content = np.frombuffer(shard_file, np.uint8)
    entries = np.frombuffer(shard_file[-index_bytes:-CRC_BYTES], "<u8").reshape(-1, 2)
    ends = entries[entries[:, 0] != NO_CHUNK].sum(1).astype(np.int64)
    return content[ends[:, None] + np.arange(-CRC_BYTES, 0)].copy().view("<u4")[:, 0]


def check_place(checksum: bytes, named: int) -> None:
    """Raises ValueError if the checksum at the end of a chunk differs from the one listed for its
    position.
    """
    if int.from_bytes(checksum, "little") != named:
        raise ValueError(
            "DATA_LOSS: the chunk is not the one that was written here: it is of another place or"
            " cache"
        )


@dataclass(frozen=True)
class StoredLayout:
    """The description of a one-dimensional array in ``zarr.json``, whichever program wrote it."""

    length: int
    dtype: str
    shard: int  # elements in a file
    chunk: int  # elements in a chunk; without sharding those in a file
    codecs: list[dict[str, Any]]
    index_codecs: list[dict[str, Any]]  # of the index of a file; empty without sharding
    index_last: bool  # the index ends the file; else it begins it
    # sharded in whole chunks and nothing else: keys, grid, and zeros where nothing is stored
    plain: bool
    owner: str = ""  # what it is a part of: see :func:`attributes_of`
    # Of each chunk; None: it does not name them.
    checksums: np.ndarray | None = field(default=None, compare=False)

    @classmethod
    def read(cls, raw: bytes) -> StoredLayout:
        """The description in a ``zarr.json``. Raises ValueError for whatever else is in it."""
        try:
            return cls.parse(json.loads(raw))
        except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    @classmethod
    def parse(cls, metadata: dict[str, Any]) -> StoredLayout:
        """Raises ValueError, KeyError, TypeError or IndexError if it does not describe an array of
        one dimension.
        """
        (length,) = metadata["shape"]
        (shard,) = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        dtype = str(metadata["data_type"])
        codecs = metadata["codecs"]
        sharding = next(
            (c["configuration"] for c in codecs if c["name"] == "sharding_indexed"), None
        )
        owner, checksums = named_in(metadata)
        if not all(type(n) is int and n >= least for n, least in ((length, 0), (shard, 1))):
            raise ValueError("its sizes are no whole numbers")
        if sharding is None:
            return cls(length, dtype, shard, shard, codecs, [], False, False, owner)
        (chunk,) = sharding["chunk_shape"]
        index_codecs = sharding.get("index_codecs", [_LITTLE, _CRC])
        for inner in (sharding["codecs"], index_codecs):
            checksum_bytes(inner, 8)  # raises what it cannot read
        if type(chunk) is not int or chunk < 1:
            raise ValueError("its chunks are none")
        keys = metadata.get("chunk_key_encoding", {"name": "default"})
        plain = (
            not metadata.get("storage_transformers")
            and metadata["chunk_grid"]["name"] == "regular"
            and keys["name"] == "default"
            and keys.get("configuration", {}).get("separator", "/") == "/"
            and len(codecs) == 1
            and metadata.get("fill_value") == 0
            and shard % chunk == 0
        )
        index_last = sharding.get("index_location", "end") == "end"
        if checksums is not None and checksums.size != -(-length // chunk):
            raise ValueError(f"it names {checksums.size} chunks instead of {-(-length // chunk)}")
        codecs = sharding["codecs"]
        return cls(
            length, dtype, shard, chunk, codecs, index_codecs, index_last, plain, owner, checksums
        )

    @property
    def index_bytes(self) -> int:
        """Length of the index of a file; 0 without sharding."""
        if not self.index_codecs:
            return 0
        return self.shard // self.chunk * _INDEX_ENTRY + CRC_BYTES * any(
            c["name"] == "crc32c" for c in self.index_codecs
        )


def checksum_bytes(codecs: list[dict[str, Any]], itemsize: int) -> int | None:
    """Length of the checksum after elements that are stored as in memory; None for other encodings.

    Example:
        >>> (
        ...     checksum_bytes([{"name": "bytes"}, {"name": "crc32c"}], 1),
        ...     checksum_bytes([{"name": "zstd"}], 1),
        ... )
        (4, None)
    """
    names = [c["name"] for c in codecs]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        return None
    little = itemsize == 1 or codecs[0].get("configuration", {}).get("endian") == "little"
    return CRC_BYTES * (len(names) - 1) if little else None


MASKS = ("loss_mask", "assistant_masks")
"""Leaves with 1 for the tokens of a chat to train on, 0 for others: headrace's own, and that of
Levanter's chat caches.
"""


def open_in_memory(metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    """A TensorStore array with chunks in a memory of its own, and the store with these: what is
    written to one of them is encoded, or decoded, by reading the other.
    """
    memory = {"driver": "memory", "path": ""}
    context = ts.Context()
    spec = {
        "driver": "zarr3",
        "kvstore": memory,
        "metadata": metadata,
        "fill_missing_data_reads": False,
        "store_data_equal_to_fill_value": True,
    }
    array: Any = ts.open(spec, create=True, context=context).result()
    kvstore: Any = ts.KvStore.open(memory, context=context).result()
    return array, kvstore
