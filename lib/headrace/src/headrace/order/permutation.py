"""Keyed permutations of ``range(n)`` without a table: any index, in any order, in O(1) memory.

How ``permute`` finds the image of x (a balanced Feistel network: the "generalised Feistel" of
Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002):

1. Choose a rectangle ``a x b >= n`` with ``a = ceil(sqrt(n))``, made even: the smallest that is
   nearly square. It exceeds n by less than ``sqrt(n) + 1``.
2. Split x into its coordinates: ``left = x mod a`` and ``right = x div a``.
3. In each round, add a keyed hash of one coordinate to the other, modulo the other's side; the
   next round does it the other way round. A round changes one coordinate by an amount that the
   other, unchanged one tells: it can be undone by subtracting, so it is a bijection of the
   rectangle, whatever the hash.
4. Join the coordinates: ``a * right + left``.
5. An image that is n or more lies in the surplus of the rectangle: encrypt it again, until it is
   below n ("cycle walking"). Following a cycle of a permutation past the values that are not
   wanted gives a permutation of the wanted ones.

With pencil and paper, for n = 10, two rounds, and the hashes of key 2. The rectangle is 4 x 3 = 12.
The first round adds to left, by right: 3, 0, 0 for right = 0, 1, 2. The second adds to right, by
left: 1, 1, 2, 2 for left = 0, 1, 2, 3. ::

    x = 5    left 1, right 1    left  1 + 0 = 1    right 1 + 1 = 2           4 * 2 + 1 = 9
    x = 3    left 3, right 0    left  3 + 3 = 2    right 0 + 2 = 2           4 * 2 + 2 = 10: surplus
        10   left 2, right 2    left  2 + 0 = 2    right 2 + 2 = 1 (mod 3)   4 * 1 + 2 = 6

So 5 becomes 9, and 3 becomes 6 (tests/order/test_permutation.py has all ten).

Almost no index needs a second pass, since the rectangle exceeds n by so little; a power-of-two
domain would need up to four.

Length and key may be arrays: rows of many components, windows and epochs are permuted in one call.
The rounds are in compiled code (``native/braid.c``), which braids use as well.

Price: 8 rounds of a 64-bit mixer, about 35 ns per index; 40 us per call for a key of its own;
lengths below 64 get 16 rounds.

Why so many rounds: every measure of tests/order/test_permutation_quality.py detects three rounds;
four rounds of a weaker function leave a serial correlation, and a multiply-add function leaks the
low bits (the test has all three as counter-examples). If a side has only a few values, a round
hides little: over many keys, 8 rounds leave the differences of neighbours of n = 8 uneven by 25%,
16 rounds by under 2%.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int64, UInt64

from headrace.errors import ConfigError
from headrace.native import native_library
from headrace.order.order import OpenWindow, Order
from headrace.order.seeds import derive, derive_keys, fold

_ONE = np.uint64(1)


def permute(
    i: Int64[np.ndarray, " n"],
    length: Int64[np.ndarray, "*#n"] | int,
    key: UInt64[np.ndarray, "*#n"] | int,
) -> Int64[np.ndarray, " n"]:
    """Image of ``i`` under the permutation of ``range(length)`` that ``key`` chooses: a bijection.

    Lengths are 1 to 2**62; the module tells the steps.

    ``0 <= i < length`` is not checked: callers are orders, which have checked it.

    Example:
        >>> sorted(permute(np.arange(5), 5, 1).tolist())
        [0, 1, 2, 3, 4]
    """
    return _permuted(i, length, key, back=False)


def unpermute(
    i: Int64[np.ndarray, " n"],
    length: Int64[np.ndarray, "*#n"] | int,
    key: UInt64[np.ndarray, "*#n"] | int,
) -> Int64[np.ndarray, " n"]:
    """The inverse of :func:`permute`: where images come from.

    The same steps backwards: rounds from the last to the first, subtracting what they added.

    Example:
        >>> unpermute(permute(np.arange(7), 7, 3), 7, 3).tolist()
        [0, 1, 2, 3, 4, 5, 6]
    """
    return _permuted(i, length, key, back=True)


def _permuted(
    i: np.ndarray, length: np.ndarray | int, key: np.ndarray | int, *, back: bool
) -> np.ndarray:
    numbers = np.ascontiguousarray(i, np.int64)
    images = np.empty(numbers.shape, np.int64)
    if not numbers.size:
        return images
    lengths = np.ascontiguousarray(np.atleast_1d(length), np.uint64)
    keys = np.ascontiguousarray(np.atleast_1d(np.asarray(key, np.uint64)))
    if not lengths.all() or {lengths.size, keys.size} - {1, numbers.size}:
        raise ValueError("there is no length above 0, or no key, for each number")
    sides = rectangle(lengths)
    library = native_library()
    calls = library.short_calls if numbers.size <= library.short_rows else library.calls
    calls.permute(
        numbers.size,
        *(values.ctypes.data for values in (numbers, lengths, *sides)),
        lengths.size > 1,
        keys.ctypes.data,
        keys.size > 1,
        back,
        images.ctypes.data,
    )
    return images


def rectangle(
    n: UInt64[np.ndarray, " m"],
) -> tuple[UInt64[np.ndarray, " m"], UInt64[np.ndarray, " m"]]:
    """Sides ``a, b`` of the domain for each length: ``n <= a * b < n + sqrt(n) + 1``, ``a`` even.

    Example:
        >>> a, b = rectangle(np.array([100, 101], np.uint64))
        >>> a.tolist(), b.tolist()
        ([10, 12], [10, 9])
    """
    a = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.uint64)
    a += a * a < n  # float64 can be one short near 2**62
    # An even side: with two odd ones, every round is an even permutation, and so is what they make
    # together: half of the permutations of n = 9, say, could never occur
    a += a & _ONE
    return a, (n + a - _ONE) // a


def permute_linear(
    i: Int64[np.ndarray, " n"],
    length: Int64[np.ndarray, "*#n"] | int,
    key: UInt64[np.ndarray, "*#n"] | int,
) -> Int64[np.ndarray, " n"]:
    """Affine permutation ``(a x + c) mod 2**k`` with cycle walking: cheap, and visibly regular.

    For Levanter's ``perm_type: linear``. Same arguments and guarantees as :func:`permute`.

    1. Take the smallest power of two ``2**k >= length``.
    2. Map x to ``(mult * x + add) mod 2**k``: an odd multiplier has an inverse, so no two meet.
    3. Walk on from what is ``length`` or more, as :func:`permute` does.

    By hand, for length 6, so modulo 8, with mult 5 and add 3: 0 -> 3; 1 -> 8 = 0; 2 -> 13 = 5;
    3 -> 18 = 2; 4 -> 23 = 7, outside, -> 38 = 6, outside, -> 33 = 1; 5 -> 28 = 4.
    """
    x = np.asarray(i, np.int64).astype(np.uint64)
    n = np.broadcast_to(np.asarray(length, np.uint64), x.shape)
    keys = np.broadcast_to(np.atleast_1d(np.asarray(key, np.uint64)), x.shape)
    mult, add, mask = _affine(n, keys)
    # 2. Products wrap modulo 2**64, which does not touch the low k bits
    x = (mult * x + add) & mask
    # 3. Walk on
    outside = np.flatnonzero(x >= n)
    while outside.size:
        again = (mult[outside] * x[outside] + add[outside]) & mask[outside]
        x[outside] = again
        outside = outside[again >= n[outside]]
    return x.astype(np.int64)


def _affine(n: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Multiplier, summand and ``2**k - 1`` for each length and key."""
    # 1. The power of two
    bits = np.maximum(np.ceil(np.log2(np.maximum(n, 2).astype(np.float64))), 1).astype(np.uint64)
    bits += (_ONE << bits) < n  # float64 can be one short near 2**62
    mult = (fold(keys, np.array([1], np.uint64)) << np.uint64(2)) | _ONE
    # mult = 1 mod 4 and an odd summand make one cycle of all 2**k (Hull and Dobell, 1962): no x
    # is its own image
    return mult, fold(keys, np.array([2], np.uint64)) | _ONE, (_ONE << bits) - _ONE


def unpermute_linear(i: Int64[np.ndarray, " n"], length: int, key: int) -> Int64[np.ndarray, " n"]:
    """The inverse of :func:`permute_linear` for one length and key.

    Example:
        >>> unpermute_linear(permute_linear(np.arange(7), 7, 3), 7, 3).tolist()
        [0, 1, 2, 3, 4, 5, 6]
    """
    mult, add, mask = (
        int(v[0]) for v in _affine(np.array([length], np.uint64), np.array([key], np.uint64))
    )
    # The inverse modulo 2**64 is one modulo any smaller power of two
    back = np.array([pow(mult, -1, 1 << 64)], np.uint64)
    x = np.asarray(i, np.int64).astype(np.uint64)
    outside = np.arange(x.size)
    while outside.size:  # 3. backwards: what went through the surplus goes back
        x[outside] = (x[outside] - np.uint64(add)) * back & np.uint64(mask)
        outside = outside[x[outside] >= length]
    return x.astype(np.int64)


PermutationType: TypeAlias = Literal["feistel", "linear"]
PERMUTATIONS = {"feistel": permute, "linear": permute_linear}
"""Permutation families by the name that configs use (``perm_type``)."""
INVERSES = {"feistel": unpermute, "linear": unpermute_linear}


def permutation_family(perm_type: str):
    """The function behind a ``perm_type``.

    Raises:
        ConfigError: the name is unknown.
    """
    if perm_type not in PERMUTATIONS:
        raise ConfigError(
            "is not a permutation family",
            field="perm_type",
            value=perm_type,
            cure=f"Use one of {sorted(PERMUTATIONS)}.",
        )
    return PERMUTATIONS[perm_type]


class KeyedShuffle(Order):
    """A shuffle by keyed permutations of one family."""

    bijective = reorders = True

    def __init__(self, n: int, seed: int, perm_type: str) -> None:
        super().__init__(n, n)
        self.seed = seed
        self.perm_type = perm_type
        self._permute = permutation_family(perm_type)
        derive(seed)


class Feistel(KeyedShuffle):
    """Full shuffle: a keyed permutation of ``range(n)``, a different one in each epoch.

    Args:
        n: Number of examples, 1 to 2**62.
        seed: Integer seed.
        perm_type: ``"feistel"`` (default) or ``"linear"``.

    Raises:
        ConfigError: ``n`` out of range, unknown ``perm_type``.

    Example:
        >>> m = Feistel(10, seed=0)
        >>> sorted(m(np.arange(10)).tolist()) == list(range(10))
        True
    """

    kind = "full"
    described = ("length", "seed", "perm_type")

    def __init__(self, n: int, seed: int, perm_type: str = "feistel") -> None:
        super().__init__(n, seed, perm_type)

    def open_window(self) -> OpenWindow:
        return OpenWindow(rows=self.length)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return self._permute(i, self.length, derive_keys(self.seed, "full", last=epoch))
