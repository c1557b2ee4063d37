"""``PackSpec``: how documents are packed. With their lengths it determines the plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from headrace.errors import ConfigError, did_you_mean
from headrace.index.packing.items import LongPolicy, check_long

Algorithm: TypeAlias = Literal["bfd", "wfd", "ffd", "next_fit", "bfd_split", "wrap", "windowed"]

PACK_VERSION = 1
"""Version of all plans: it moves when any algorithm gives another plan for the same lengths."""

DEFAULT_BLOCK_TOKENS = 65_536

CUTTING = ("bfd_split", "wrap")
_IN_ORDER = ("next_fit", "wrap", "windowed")


@dataclass(frozen=True)
class PackSpec:
    """How documents are packed.

    ============  ====================================================================================================
    ``bfd``       best fit decreasing: the longest document first, into the fullest pack that it fits. Fullest packs
    ``windowed``  packs of neighbours, which keep reading local; nearly as full. For shuffled training
    ``wfd``       worst fit decreasing: into the emptiest pack; what ``binpacking`` does since 2.0
    ``ffd``       first fit decreasing: into the first pack
    ``next_fit``  in order; a document that does not fit closes the pack
    ``bfd_split`` ``bfd`` with long documents split
    ``wrap``      in order, end to end, cut where packs end: no padding, but documents are cut
    ============  ====================================================================================================

    Attributes:
        capacity: Tokens of a pack.
        algorithm: See above.
        long: What becomes of documents longer than a pack: ``keep`` (a pack of its own that exceeds the capacity),
            ``drop``, ``split`` (full packs, and what remains is packed as a document), ``truncate``, ``error``. None:
            ``keep``, but ``split`` where the algorithm cuts documents anyway.
        min_fill: Packs filled to less than this share are dropped, and counted.
        block_tokens: Tokens of a stored block, for ``windowed``.

    Raises:
        ConfigError: a value is not usable, or ``long`` contradicts the algorithm.
    """

    capacity: int
    algorithm: Algorithm = "bfd"
    long: LongPolicy | None = None
    min_fill: float = 0.0
    block_tokens: int = DEFAULT_BLOCK_TOKENS

    def __post_init__(self) -> None:
        for name in ("capacity", "block_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError("must be a whole number of tokens, at least 1", field=name, value=value)
        known = get_args(Algorithm)
        if self.algorithm not in known:
            cure = did_you_mean(str(self.algorithm), known)
            raise ConfigError("is not a packing algorithm", field="algorithm", value=self.algorithm, cure=cure)
        if self.long is not None and check_long(self.long) != "split" and self.algorithm in CUTTING:
            raise ConfigError(
                f"contradicts {self.algorithm}, which cuts documents",
                field="long",
                value=self.long,
                cure='Leave it out, or use algorithm="bfd".',
            )
        if not 0 <= self.min_fill <= 1:
            raise ConfigError(
                "must be a share of the capacity", field="min_fill", value=self.min_fill, cure="E.g. 0.5."
            )

    @property
    def policy(self) -> LongPolicy:
        """What becomes of long documents."""
        return self.long or ("split" if self.algorithm in CUTTING else "keep")

    @property
    def in_order(self) -> bool:
        """Whether documents are planned as they arrive, in bounded memory; otherwise all lengths are needed at once."""
        return self.algorithm in _IN_ORDER

    def describe(self) -> dict[str, Any]:
        """As JSON values: specs that may give other plans describe themselves differently."""
        values = asdict(self) | {"long": self.policy, "version": PACK_VERSION}
        if self.algorithm != "windowed":
            del values["block_tokens"]
        return values
