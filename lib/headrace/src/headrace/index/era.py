"""Era shuffle: consecutive eras of a fixed length, each permuted within itself.

Levanter's older locality shuffle, kept as a baseline and for users who have it in their configs: its reads are
sequential, but it never mixes examples that lie further apart than an era (Marin measured +14.5% loss on it).
"""

from __future__ import annotations

import numpy as np

from headrace.errors import ConfigError
from headrace.index.permutation import permutation_family
from headrace.index.remap import IndexMap
from headrace.index.seeds import derive, derive_keys, fold


class EraShuffle(IndexMap):
    """Permutes examples within consecutive eras of ``era_length``; the last era may be shorter.

    Args:
        n: Number of examples.
        era_length: Examples in an era.
        seed: Integer seed.
        perm_type: ``"feistel"`` or ``"linear"``.

    Raises:
        ConfigError: ``era_length`` below 1, unknown ``perm_type``.

    Example:
        >>> m = EraShuffle(10, era_length=4, seed=0)
        >>> sorted(m(np.arange(4, 8)).tolist())
        [4, 5, 6, 7]
    """

    bijective = True
    reorders = True

    def __init__(self, n: int, *, era_length: int, seed: int, perm_type: str = "feistel") -> None:
        super().__init__(n, n)
        if era_length < 1:
            raise ConfigError("must be at least 1", field="era_length", value=era_length, cure="Count in examples.")
        self.era_length, self.seed = era_length, seed
        self.perm_type = perm_type
        self._permute = permutation_family(perm_type)
        derive(seed)

    @property
    def described(self) -> tuple[str, ...]:
        return ("length", "era_length", "seed", "perm_type")

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        era, place = np.divmod(i, self.era_length)
        start = era * self.era_length
        size = np.minimum(self.era_length, self.length - start)
        key = fold(derive_keys(self.seed, "era", last=epoch), era.astype(np.uint64))
        return start + self._permute(place, size, key)
