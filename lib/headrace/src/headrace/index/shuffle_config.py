"""What users write under ``shuffle``: plain, checked values that name an order.

``False`` is the stored order, ``True`` a full shuffle, a number an era shuffle of that length; or one of the two
configs here. data/shuffle.py turns them into orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.errors import ConfigError, did_you_mean
from headrace.index.permutation import PERMUTATIONS


@dataclass(frozen=True)
class BraidShuffleConfig:
    """Braided shuffle (index/braid.py): mixes like a full shuffle, reads each block about once on any number of hosts.

    Attributes:
        strands: Blocks open at a time, over all components and hosts; None: 8 x the batch size.
        budget_bytes: Instead of ``strands``: memory for open blocks over all hosts, in bytes.
        io_block_size: Examples in a block; None: one stored chunk.
        kind: Tells this config from a block shuffle's.
    """

    strands: int | None = None
    budget_bytes: int | None = None
    io_block_size: int | None = None
    kind: Literal["braid"] = "braid"

    def __post_init__(self) -> None:
        for name in ("strands", "budget_bytes", "io_block_size"):
            _check_positive(f"shuffle.{name}", getattr(self, name))
        if self.strands is not None and self.budget_bytes is not None:
            raise ConfigError("is given beside strands", field="shuffle.budget_bytes", cure="Give one of them.")


@dataclass(frozen=True)
class BlockShuffleConfig:
    """Hierarchical block shuffle (seed 004).

    Attributes:
        io_block_size: Examples in a block; None: one stored chunk.
        window_blocks: Blocks that are mixed together. As good as a full shuffle from about the batch size on.
        perm_type: ``feistel`` or ``linear``.
        cache_windows: Windows of each component that the loader's memory must hold; checked before a run.
        kind: Tells this config from a braid's.
    """

    io_block_size: int | None = None
    window_blocks: int = 512
    perm_type: str = "feistel"
    cache_windows: int = 1
    kind: Literal["block"] = "block"

    def __post_init__(self) -> None:
        for name in ("io_block_size", "window_blocks", "cache_windows"):
            _check_positive(f"shuffle.{name}", getattr(self, name))
        if self.perm_type not in PERMUTATIONS:
            cure = did_you_mean(str(self.perm_type), PERMUTATIONS)
            raise ConfigError("is not a permutation family", field="shuffle.perm_type", value=self.perm_type, cure=cure)


ShuffleConfig: TypeAlias = bool | int | BraidShuffleConfig | BlockShuffleConfig


def check_shuffle(shuffle: ShuffleConfig, path: str) -> None:
    """Raises ConfigError unless a shuffle is one of those that there are."""
    if isinstance(shuffle, int) and not isinstance(shuffle, bool) and shuffle < 1:
        raise ConfigError(
            "is not an era length", field=path, value=shuffle, cure="false: no shuffle; true: full; N > 0: era of N."
        )


def _check_positive(field: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError("must be at least 1", field=field, value=value, cure="Leave it out for the default.")
