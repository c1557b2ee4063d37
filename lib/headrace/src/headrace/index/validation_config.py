"""What users write under ``validation``: how much of each source is held out, and in which pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import ConfigError, did_you_mean
from headrace.index.seeds import derive

DEFAULT_ONE_IN = 100
_BY = ("blocks", "documents")


@dataclass(frozen=True)
class ValidationConfig:
    """A validation split of every component; see :mod:`headrace.index.holdout`.

    Attributes:
        one_in: Of so many blocks or documents, one is held out; default 100.
        fraction: Instead of ``one_in``: the share that is held out, at most 0.5. One in ``round(1 / fraction)``.
        by: ``blocks`` keeps reads whole and cuts documents at the borders of blocks; ``documents`` keeps documents
            whole and costs reads (see :mod:`headrace.data.token_seq`).
        seed: Of the split alone: runs with other seeds share their validation data.
        io_block_size: Examples in a block; None: one stored chunk. Give it the block of the shuffle if that is larger.

    Raises:
        ConfigError: a value is not usable.

    Example:
        >>> ValidationConfig(fraction=0.002).groups_of
        500
    """

    one_in: int | None = None
    fraction: float | None = None
    by: Literal["blocks", "documents"] = "blocks"
    seed: int = 0
    io_block_size: int | None = None

    def __post_init__(self) -> None:
        derive(self.seed)
        if self.one_in is not None and self.fraction is not None:
            raise ConfigError("is given beside one_in", field="validation.fraction", cure="Give one of them.")
        if self.one_in is not None and self.one_in < 2:
            raise ConfigError("must be at least 2", field="validation.one_in", value=self.one_in, cure="E.g. 100.")
        if self.fraction is not None and not 0 < self.fraction <= 0.5:
            raise ConfigError(
                "must lie above 0 and be at most 0.5",
                field="validation.fraction",
                value=self.fraction,
                cure="E.g. 0.01.",
            )
        if self.by not in _BY:
            raise ConfigError(
                "is not one of those", field="validation.by", value=self.by, cure=did_you_mean(self.by, _BY)
            )
        if self.io_block_size is not None and self.by == "documents":
            raise ConfigError("goes with by: blocks", field="validation.io_block_size", cure="Leave it out.")
        if self.io_block_size is not None and self.io_block_size < 1:
            raise ConfigError("must be at least 1", field="validation.io_block_size", value=self.io_block_size)

    @property
    def groups_of(self) -> int:
        """One of so many is held out."""
        if self.fraction is not None:
            return round(1 / self.fraction)
        return DEFAULT_ONE_IN if self.one_in is None else self.one_in
