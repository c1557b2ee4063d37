"""How a leaf lies on disk: dtype, chunk, shard, codecs; and the zarr3 metadata that says so.

A **leaf** is one value, or a run of values, for each document: the tokens (``input_ids``), and beside them any others
(loss masks, lengths of turns, scores, ids), each an array of its own.

One **chunk** is one I/O block: the smallest thing that is read (default 65,536 tokens; 16 to 32 training examples).
Chunks lie in **shards**, one file each (default 256 chunks), so that a trillion tokens are some tens of thousands of
files. Every chunk and every shard index carries a crc32c. Uncompressed by default: in the narrowest dtype tokens take 2
bytes, zstd saves about a quarter of that and halves the speed of reading (docs/performance.md).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.errors import ConfigError, did_you_mean

Compression: TypeAlias = Literal["none", "zstd", "other"]
LeafKind: TypeAlias = Literal["ragged", "fixed"]

TOKENS = "input_ids"
TOKEN_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
LEAF_DTYPES = (*TOKEN_DTYPES, "bool", "int8", "int16", "uint64", "float32", "float64")
DEFAULT_CHUNK = 65_536
DEFAULT_SHARD_CHUNKS = 256
OFFSETS_CHUNK = 16_384
_LITTLE: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC: dict[str, Any] = {"name": "crc32c"}


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
    """A leaf beside the tokens.

    Attributes:
        name: Its folder within a part: letters, digits, ``_``, ``-`` and ``.``; not ``input_ids``.
        dtype: Name of its dtype: bool, an integer type, ``float32`` or ``float64``.
        kind: ``ragged``: any number of values a document; ``fixed``: one value a document.

    Raises:
        ConfigError: a value is not usable.

    Example:
        >>> LeafSpec("loss_mask", "uint8", "ragged").kind
        'ragged'
    """

    name: str
    dtype: str
    kind: LeafKind = "ragged"

    def __post_init__(self) -> None:
        if self.name in (TOKENS, "part.json") or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name):
            raise ConfigError(
                "cannot be the name of a leaf",
                field="leaf",
                value=self.name,
                cure=f"Use letters, digits and _ - . and not {TOKENS}, which are the tokens.",
            )
        if self.dtype not in LEAF_DTYPES:
            raise ConfigError(
                "is not a dtype of leaves",
                field=f"leaf {self.name}",
                value=self.dtype,
                cure=did_you_mean(str(self.dtype), LEAF_DTYPES),
            )
        if self.kind not in ("ragged", "fixed"):
            raise ConfigError(
                "is not a kind of leaf",
                field=f"leaf {self.name}",
                value=self.kind,
                cure="ragged: any number of values a document; fixed: one value a document.",
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CacheLayout:
    """Layout of the token leaf, from which that of the other leaves follows (:meth:`leaf`).

    Attributes:
        dtype: Name of the dtype; for tokens the narrowest unsigned integer type (``uint8``, ``uint16``, ``uint32``).
        chunk_elements: Tokens in a chunk, the unit of reading. Best a multiple of the sequence lengths in use.
        shard_chunks: Chunks in a shard, the unit of writing (one file).
        compression: ``none`` or ``zstd`` (level 1); ``other``: what another program chose, to be read only.

    Raises:
        ConfigError: a value is not usable.
    """

    dtype: str = "uint16"
    chunk_elements: int = DEFAULT_CHUNK
    shard_chunks: int = DEFAULT_SHARD_CHUNKS
    compression: Compression = "none"

    def __post_init__(self) -> None:
        if self.dtype not in LEAF_DTYPES:
            raise ConfigError("is not a token dtype", field="layout.dtype", value=self.dtype, cure="Use uint16.")
        for name in ("chunk_elements", "shard_chunks"):
            if getattr(self, name) < 1:
                raise ConfigError("must be at least 1", field=f"layout.{name}", value=getattr(self, name))
        if self.compression not in ("none", "zstd", "other"):
            raise ConfigError(
                "is not a compression",
                field="layout.compression",
                value=self.compression,
                cure=did_you_mean(str(self.compression), ["none", "zstd"]),
            )

    @property
    def shard_elements(self) -> int:
        return self.chunk_elements * self.shard_chunks

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def check_tokens(self) -> None:
        """Raises ConfigError unless the dtype is one of token ids."""
        if self.dtype not in TOKEN_DTYPES:
            raise ConfigError("is not a token dtype", field="layout.dtype", value=self.dtype, cure="Use uint16.")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ConfigError if an id below ``vocab_size`` does not fit the dtype."""
        self.check_tokens()
        if vocab_size - 1 > int(np.iinfo(self.dtype).max):
            raise ConfigError(
                f"cannot hold a vocabulary of {vocab_size}",
                field="layout.dtype",
                value=self.dtype,
                cure=f"Use {token_dtype(vocab_size).name}, or leave it out: the narrowest that fits is chosen.",
            )

    def offsets(self) -> CacheLayout:
        """Layout of the offsets that go with this leaf."""
        return CacheLayout("int64", OFFSETS_CHUNK, self.shard_chunks, self.compression)

    def leaf(self, spec: LeafSpec) -> CacheLayout:
        """Layout of the values of another leaf: chunks of as many elements as those of the tokens, so that chunk k of a
        leaf with one value a token goes with chunk k of the tokens.
        """
        chunk = self.chunk_elements if spec.kind == "ragged" else OFFSETS_CHUNK
        return CacheLayout(spec.dtype, chunk, self.shard_chunks, self.compression)

    def zarr_metadata(self, length: int) -> dict[str, Any]:
        """``zarr.json`` for a one-dimensional array of ``length`` elements."""
        if self.compression == "other":
            raise ConfigError("cannot be written", field="layout.compression", value="other", cure="Use none or zstd.")
        codecs: list[dict[str, Any]] = [_LITTLE]
        if self.compression == "zstd":
            codecs.append({"name": "zstd", "configuration": {"level": 1}})
        codecs.append(_CRC)
        sharding: dict[str, Any] = {
            "chunk_shape": [self.chunk_elements],
            "codecs": codecs,
            "index_codecs": [_LITTLE, _CRC],
            "index_location": "end",
        }
        return {
            "shape": [length],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.shard_elements]}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "fill_value": False if self.dtype == "bool" else 0,
        }
