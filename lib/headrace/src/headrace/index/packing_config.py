"""What users write under ``packing``: how the documents of a source share rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from headrace.errors import ConfigError
from headrace.index.packing.items import LongPolicy
from headrace.index.packing.spec import DEFAULT_BLOCK_TOKENS, Algorithm, PackSpec


@dataclass(frozen=True)
class PackingConfig:
    """Static packing: each row holds whole documents, as a plan says that is made once.

    Rows, and with them ``batch_size``, then count packs: a step of 256 rows has 256 packs.

    Attributes:
        algorithm: See :class:`~headrace.index.packing.spec.PackSpec`. ``windowed`` keeps reading local.
        long: What becomes of documents longer than a row: ``split``, ``truncate``, ``drop`` or ``error``.
        min_fill: Packs filled to less than this share are dropped, and counted.
        unit: So many neighbouring documents are never parted: 2 for the pairs of a cache of preferences. ``long`` must
            then be ``drop`` or ``error``.
        plans: Folder or URL for plans; None: ``plans`` in the cache's own folder.

    Raises:
        ConfigError: a value is not usable; ``long`` would need longer rows, or contradicts the algorithm or the unit.

    Example:
        >>> PackingConfig(algorithm="bfd").spec(2048).describe()["long"]
        'split'
    """

    algorithm: str = "windowed"
    long: str = "split"
    min_fill: float = 0.0
    unit: int = 1
    plans: str | None = None

    def __post_init__(self) -> None:
        if self.long == "keep":
            raise ConfigError(
                "would need rows of more than seq_len tokens",
                field="long",
                value=self.long,
                cure="Use split or truncate.",
            )
        policy = self.spec(2).policy
        if self.unit < 1:
            raise ConfigError("must be at least 1", field="unit", value=self.unit, cure="1, or 2 for pairs.")
        if self.unit > 1 and policy not in ("drop", "error"):
            raise ConfigError(
                "would cut documents that belong together",
                field="long",
                value=policy,
                cure="Use drop or error, and an algorithm that cuts none: windowed or bfd.",
            )

    def spec(self, capacity: int, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> PackSpec:
        """How documents are packed into rows of ``capacity`` tokens, stored in blocks of ``block_tokens``."""
        algorithm, long = cast("Algorithm", self.algorithm), cast("LongPolicy", self.long)  # checked there
        return PackSpec(capacity, algorithm, long, self.min_fill, block_tokens)


def check_packing(packing: Mapping[str, PackingConfig | None], *, phases: int, split_documents: bool) -> None:
    """Raises ConfigError if the packing of components, by name, does not go with the rest of a config.

    Args:
        packing: How each component is packed.
        phases: Row lengths of the run, one after the other.
        split_documents: Whether rows that are not packed are split into documents.
    """
    packed = [name for name, how in packing.items() if how is not None]
    if packed and phases > 1:
        raise ConfigError(
            "does not go with a seq_len that changes",
            field=f"components.{packed[0]}.packing",
            cure="Keep one seq_len, or leave packing out: rows of a stream go on where the phase before stopped.",
        )
    if packed and split_documents and len(packed) < len(packing):
        plain = next(name for name, how in packing.items() if how is None)
        raise ConfigError(
            f"is not packed, but {packed[0]!r} is: a batch finds documents by their packs or by end-of-text tokens",
            field=f"components.{plain}.packing",
            cure=f"Pack it too (components.{plain}.packing: {{algorithm: wrap}} leaves no padding), or set"
            " split_documents: false.",
        )
