"""``PackSpec``: how documents are packed (with their lengths, it determines the plan); and
``PackingConfig``, the ``packing`` of a config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from headrace.errors import ConfigError, check_at_least, check_choice, check_whole
from headrace.pack.items import LongPolicy

Algorithm: TypeAlias = Literal["bfd", "wfd", "ffd", "next_fit", "bfd_split", "wrap", "windowed"]

PACK_VERSION = 1
"""Version of all plans; it changes when any algorithm gives a different plan for
the same lengths.
"""

DEFAULT_BLOCK_TOKENS = 65_536

CUTTING = ("bfd_split", "wrap")
_WHOLE = ("drop", "keep", "error")  # what cuts no document
_IN_ORDER = ("next_fit", "wrap", "windowed")


@dataclass(frozen=True)
class PackSpec:
    """How documents are packed.

    ============  ==================================================================================
    ``bfd``       best fit decreasing: longest document first, into the fullest pack with room.
                  Fullest packs
    ``windowed``  packs of neighbours, so reads stay local; nearly as full. For shuffled training
    ``wfd``       worst fit decreasing: into the emptiest pack; what ``binpacking`` does since 2.0
    ``ffd``       first fit decreasing: into the first pack
    ``next_fit``  in order; a document that does not fit closes the pack
    ``bfd_split`` ``bfd`` with long documents split
    ``wrap``      in order, concatenated and cut at pack boundaries: no padding, but documents are
                  cut
    ============  ==================================================================================

    Attributes:
        capacity: Tokens of a pack.
        algorithm: See above.
        long: What happens to documents longer than a pack: ``keep`` (a pack of its own that exceeds
            the capacity), ``drop``, ``split`` (full packs; the remainder is packed like a
            document), ``truncate`` (keeps the start), ``truncate_start`` (keeps the end),
            ``error``. None: ``keep``, but ``split`` for algorithms that cut documents anyway.
        min_fill: Packs filled to less than this share are dropped, and counted.
        block_tokens: Tokens of a stored block, for ``windowed``.
        max_documents: Most documents in a pack, for ``next_fit``; None: as many as fit.
        row_tokens: Tokens of the rows that store packs; none may be longer. Only packs of ``keep``
            exceed the capacity, so rows are longer than it to hold them. None: rows are as long as
            the capacity, and with ``keep`` as long as the longest document.

    Raises:
        ConfigError: a value is invalid, or ``long`` contradicts the algorithm; rows are shorter
            than the capacity.
    """

    capacity: int
    algorithm: Algorithm = "bfd"
    long: LongPolicy | None = None
    min_fill: float = 0.0
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    max_documents: int | None = None
    row_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("capacity", "block_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    "must be a whole number of tokens, at least 1", field=name, value=value
                )
        check_choice("algorithm", self.algorithm, get_args(Algorithm), "is not a packing algorithm")
        if self.long is not None:
            check_choice(
                "long", self.long, get_args(LongPolicy), "is not a policy for long documents"
            )
        if self.long not in (None, "split") and self.algorithm in CUTTING:
            raise ConfigError(
                f"contradicts {self.algorithm}, which cuts documents",
                field="long",
                value=self.long,
                cure='Leave it out, or use algorithm="bfd".',
            )
        check_whole("max_documents", self.max_documents)
        check_at_least("max_documents", self.max_documents, cure="Leave it out for as many as fit.")
        if self.max_documents is not None and self.algorithm != "next_fit":
            cure = "Use algorithm: next_fit, or leave it out."
            raise ConfigError(
                "goes with next_fit", field="max_documents", value=self.max_documents, cure=cure
            )
        if not 0 <= self.min_fill <= 1:
            raise ConfigError(
                "must be a share of the capacity",
                field="min_fill",
                value=self.min_fill,
                cure="E.g. 0.5.",
            )
        if self.capacity > self.row:
            raise ConfigError(
                f"is more than a row of {self.row} tokens holds",
                field="capacity",
                value=self.capacity,
                cure=f"Give at most {self.row}, or leave it out.",
            )

    @property
    def row(self) -> int:
        """Tokens of a row; only packs of ``keep`` without :attr:`row_tokens` are longer."""
        return self.row_tokens or self.capacity

    @property
    def policy(self) -> LongPolicy:
        """What happens to long documents."""
        return self.long or ("split" if self.algorithm in CUTTING else "keep")

    @property
    def in_order(self) -> bool:
        """Whether documents are planned as they arrive, in bounded memory; if not, all lengths are
        needed at once.
        """
        return self.algorithm in _IN_ORDER

    def describe(self) -> dict[str, Any]:
        """As JSON values; specs that may give different plans have different descriptions."""
        values = asdict(self) | {"long": self.policy, "version": PACK_VERSION}
        if self.algorithm != "windowed":
            del values["block_tokens"]
        for name in ("max_documents", "row_tokens"):
            if values[name] is None:
                del values[name]
        return values


@dataclass(frozen=True)
class PackingConfig:
    """Static packing: each row holds whole documents, by a plan that is made once.

    Rows, and so ``batch_size``, then count packs: a step of 256 rows has 256 packs.

    Attributes:
        algorithm: See :class:`PackSpec`. ``windowed`` keeps reads local.
        long: What happens to documents longer than the capacity: ``split``, ``truncate``,
            ``truncate_start``, ``drop``, ``keep`` (a row of its own, which holds the document
            whole) or ``error``. None: ``split``; but ``drop`` for caches that mark what is trained
            on, and for units, so that an answer keeps its question.
        min_fill: Packs filled to less than this share are dropped, and counted.
        unit: This many neighbouring documents are never separated. ``long`` must then be ``drop``,
            ``keep`` or ``error``. None: 2 for the pairs of a preference cache, else 1.
        plans: Folder or URL for plans; None: ``plans`` in the cache's own folder.
        max_documents: Most documents in a row, with ``algorithm: next_fit``: 1 gives each document
            its own row.
        capacity: Tokens up to which a row is filled, at most ``seq_len``. None: ``seq_len``. With
            ``long: keep``, rows have room for documents of up to ``seq_len`` tokens, and all others
            share rows up to the capacity.

    Raises:
        ConfigError: a value is invalid, or ``long`` contradicts the algorithm or the unit.

    Example:
        >>> PackingConfig(algorithm="bfd").spec(2048).describe()["long"]
        'split'
    """

    algorithm: Algorithm = "windowed"
    long: LongPolicy | None = None
    min_fill: float = 0.0
    unit: int | None = None
    plans: str | None = None
    max_documents: int | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity)
        check_at_least(
            "capacity", self.capacity, 2, cure="Leave it out for rows filled to seq_len."
        )
        self.spec(self.capacity or 2)
        check_at_least("unit", self.unit, cure="1, or 2 for pairs.")
        unit = self.unit or 1
        if self.max_documents is not None and self.max_documents % unit:
            cure = f"Give a multiple of {unit}."
            raise ConfigError(
                "parts units of documents",
                field="max_documents",
                value=self.max_documents,
                cure=cure,
            )
        if unit > 1 and (self.algorithm in CUTTING or self.long not in (None, *_WHOLE)):
            raise ConfigError(
                "would cut documents that belong together",
                field="long" if self.long is not None else "algorithm",
                value=self.long or self.algorithm,
                cure="Use drop, keep or error, and an algorithm that cuts none: windowed or bfd.",
            )

    def resolved(self, *, pairs: bool, conversations: bool) -> PackingConfig:
        """This packing with the defaults for a cache filled in.

        Args:
            pairs: Whether documents are preference pairs, two by two.
            conversations: Whether documents are conversations, or other questions with their
                answers.

        Raises:
            ConfigError: the algorithm cuts documents, and there are pairs.

        Example:
            >>> PackingConfig().resolved(pairs=False, conversations=True).long
            'drop'
        """
        unit = self.unit or (2 if pairs else 1)
        keeps_whole = (conversations or unit > 1) and self.algorithm not in CUTTING
        of_units = replace(self, unit=unit)  # which refuses algorithms that would part them
        return replace(of_units, long=self.long or ("drop" if keeps_whole else "split"))

    def spec(self, seq_len: int, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> PackSpec:
        """How documents, stored in blocks of ``block_tokens``, are packed into rows of ``seq_len``
        tokens.

        Raises:
            ConfigError: the capacity is more than ``seq_len``.
        """
        long = self.long or "split"
        units = self.max_documents and max(self.max_documents // max(self.unit or 1, 1), 1)
        # Plans of rows that are filled to the end are those that were saved before there was a
        # capacity
        row_tokens = seq_len if self.capacity is not None or long == "keep" else None
        return PackSpec(
            self.capacity or seq_len,
            self.algorithm,
            long,
            self.min_fill,
            block_tokens,
            units,
            row_tokens,
        )


def check_packing(packing: Mapping[str, PackingConfig | None], *, split_documents: bool) -> None:
    """Raises ConfigError if the packing of components, by name, is incompatible with unpacked rows
    that are split into documents.
    """
    packed = [name for name, how in packing.items() if how is not None]
    if packed and split_documents and len(packed) < len(packing):
        plain = next(name for name, how in packing.items() if how is None)
        raise ConfigError(
            f"is not packed, but {packed[0]!r} is: a batch finds documents by their packs or by"
            " end-of-text tokens",
            field=f"components.{plain}.packing",
            cure=f"Pack it too (components.{plain}.packing: {{algorithm: wrap}} leaves no"
            " padding), or set split_documents: false.",
        )
