"""Is the permutation as good as a random one? Measured against numpy's, with instruments that are
tested themselves.

Four instruments, each blind to what the others see:

- ``xor_pairs``: of the values ``p[2i] ^ p[2i+1]``, the share that is distinct. For random
  permutations of 2**k it is ``2 (1 - exp(-1/2)) = 0.787``; too few rounds repeat differences.
- ``serial``: correlation of neighbours ``p[i], p[i+1]``, times sqrt(n): a standard score.
- ``windows_w``: chi-square of how w consecutive outputs fall into w/4 equal parts of the range, per
  degree of freedom. Above 1 is clustering, below 1 is spreading too evenly.
- ``low_bits_k``: mutual information, in bits, of the low k bits of both coordinates before and
  after. 0 is right (a finite sample shows a little more); a round function made of multiply, add
  and xor leaks all of them, because carries only go up.

A family is *flagged* by an instrument when its values over eight seeds are shifted or scattered
against those of 24 random permutations. The lengths, seeds and references are fixed: the outcome
never changes by chance.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import pytest

from headrace.order.permutation import Feistel, rectangle
from headrace.order.seeds import GOLDEN, derive_keys

Family = Callable[[int, int], np.ndarray]
SEEDS = range(8)
LENGTHS = [1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 100_003]


def xor_pairs(p: np.ndarray) -> float:
    pairs = p[: p.size // 2 * 2].reshape(-1, 2)
    return np.count_nonzero(np.bincount(pairs[:, 0] ^ pairs[:, 1])) / len(pairs)


def serial(p: np.ndarray) -> float:
    d = p - (p.size - 1) / 2
    return float(d[:-1] @ d[1:] / (d @ d) * p.size**0.5)


def windows(p: np.ndarray, w: int) -> float:
    count = p.size // w
    parts = w // 4
    part = p[: count * w] * parts // p.size
    counts = np.bincount(np.arange(count * w) // w * parts + part, minlength=count * parts).reshape(
        count, parts
    )
    return float((((counts - 4) ** 2) / 4).sum() / (count * (parts - 1)))


@lru_cache
def low_bits_of_each(n: int, k: int, side: int) -> np.ndarray:
    """The low ``k`` bits of ``x // side`` and of ``x % side`` for x below n."""
    x = np.arange(n)
    low = (1 << k) - 1
    return ((x // side) & low) << k | ((x % side) & low)


def low_bits(p: np.ndarray, k: int, side: int) -> float:
    """Mutual information of the low ``k`` bits of ``x % side`` and ``x // side``, taken at x = i
    and at x = p[i].
    """
    cells = 1 << (2 * k)
    before = low_bits_of_each(p.size, k, side)
    pairs = before * cells + before[p]
    joint = np.bincount(pairs, minlength=cells * cells).reshape(cells, cells) / p.size
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    seen = joint > 0
    return float((joint[seen] * np.log2(joint[seen] / independent[seen])).sum())


def instruments(n: int) -> dict[str, Callable[[np.ndarray], float]]:
    bits = 1 << ((n - 1).bit_length() + 1) // 2  # the coordinates of a power-of-two Feistel
    ours = int(
        rectangle(np.array([n], np.uint64))[0][0]
    )  # and of ours; the same where n is a power of four
    table = {"xor_pairs": xor_pairs, "serial": serial}
    table |= {f"windows_{w}": partial(windows, w=w) for w in (32, 128, 1024)}
    table |= {f"low_bits_{k}": partial(low_bits, k=k, side=bits) for k in (1, 2, 3)}
    if ours != bits:
        table |= {f"low_bits_{k}_of_ours": partial(low_bits, k=k, side=ours) for k in (1, 2, 3)}
    return table


def random_permutation(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(n)


@lru_cache
def reference(n: int) -> dict[str, tuple[float, float]]:
    """Mean and deviation of each instrument over 24 random permutations."""
    orders = [random_permutation(n, 1000 + s) for s in range(24)]
    values = {name: np.array([f(p) for p in orders]) for name, f in instruments(n).items()}
    return {name: (float(v.mean()), float(v.std(ddof=1))) for name, v in values.items()}


def flagged(family: Family, n: int) -> dict[str, str]:
    """The instruments that tell this family from random permutations, with what they saw."""
    orders = [family(n, seed) for seed in SEEDS]
    found = {}
    for name, instrument in instruments(n).items():
        mean, deviation = reference(n)[name]
        z = (np.array([instrument(p) for p in orders]) - mean) / deviation
        shift = abs(z.mean()) * len(z) ** 0.5
        scatter = (z**2).mean() ** 0.5
        if shift > 5 or scatter > 2.5:
            found[name] = f"shifted by {shift:.1f} sigma, scattered {scatter:.1f} times"
    return found


def power_of_two_feistel(
    round_function: Callable[[np.ndarray, int, int], np.ndarray], rounds: int
) -> Family:
    """A textbook Feistel network over 2**even >= n with cycle walking: the frame of both
    counter-examples.
    """

    def family(n: int, seed: int) -> np.ndarray:
        half = ((n - 1).bit_length() + 1) // 2
        keys = np.random.default_rng(seed).integers(0, 1 << half, rounds)

        def encrypt(x: np.ndarray) -> np.ndarray:
            left = x >> half
            right = x & ((1 << half) - 1)
            for key in keys:
                left, right = right, left ^ round_function(right, int(key), half)
            return left << half | right

        x = encrypt(np.arange(n))
        while (outside := x >= n).any():
            x[outside] = encrypt(x[outside])
        return x

    return family


def multiply_add(x: np.ndarray, key: int, half: int) -> np.ndarray:
    """The round function of Levanter's permutation: low bits of the result depend on low bits of
    ``x`` only.
    """
    return (x * 2654435761 + key) & ((1 << half) - 1)


def rotate_and_xor(x: np.ndarray, key: int, half: int) -> np.ndarray:
    """The round function of the Simon ciphers, which need 32 rounds or more of it; Grain's shuffle
    makes four.
    """
    mask = (1 << half) - 1

    def rotate(by: int) -> np.ndarray:
        return ((x << by % half) | (x >> (half - by % half))) & mask

    return (rotate(1) & rotate(8)) ^ rotate(2) ^ key


def ours(n: int, seed: int) -> np.ndarray:
    return Feistel(n, seed)(np.arange(n))


@pytest.mark.parametrize("n", LENGTHS)
def test_no_instrument_tells_ours_from_random(n):
    assert flagged(ours, n) == {}


@pytest.mark.parametrize("n", LENGTHS)
def test_no_instrument_tells_other_random_permutations_from_random(n):
    assert flagged(random_permutation, n) == {}


@pytest.mark.parametrize("n", LENGTHS)
def test_multiply_add_rounds_are_flagged_by_their_low_bits(n):
    family = power_of_two_feistel(multiply_add, rounds=5)
    assert flagged(family, n).keys() >= {"low_bits_1", "low_bits_2", "low_bits_3", "xor_pairs"}
    if n in (
        1 << 14,
        1 << 16,
        1 << 18,
    ):  # nothing is walked: the low bits are determined, 2k bits of 2k
        for k in (1, 2, 3):
            assert low_bits(family(n, 0), k, 1 << ((n - 1).bit_length() // 2)) == pytest.approx(
                2 * k, abs=1e-3
            )


@pytest.mark.parametrize("n", LENGTHS)
def test_four_rounds_of_a_weak_function_are_flagged(n):
    family = power_of_two_feistel(rotate_and_xor, rounds=4)
    assert "xor_pairs" in flagged(family, n)
    if n == 1 << 18:
        assert xor_pairs(family(n, 0)) == pytest.approx(0.18, abs=0.01)
        assert serial(family(n, 0)) > 20


def ours_with_rounds(n: int, key: np.ndarray, rounds: int) -> np.ndarray:
    """Our network in NumPy, for any number of rounds."""
    a, b = rectangle(np.array([n], np.uint64))

    def encrypt(x: np.ndarray) -> np.ndarray:
        halves = [x % a, x // a]
        for number in range(rounds):
            h = halves[~number & 1] ^ (key + np.uint64(number * GOLDEN % 2**64))
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
            side = (a, b)[number & 1]
            added = ((h >> np.uint64(32)) * side) >> np.uint64(32)
            halves[number & 1] = (halves[number & 1] + added) % side
        return halves[1] * a + halves[0]

    x = encrypt(np.arange(n, dtype=np.uint64))
    while (outside := x >= n).any():
        x[outside] = encrypt(x[outside])
    return x.astype(np.int64)


@pytest.mark.parametrize("n", LENGTHS)
def test_three_rounds_of_our_own_function_are_flagged(n):
    """The instruments are sharp enough to see how far our own network is from too few rounds."""

    def family(n: int, seed: int, rounds: int) -> np.ndarray:
        return ours_with_rounds(n, derive_keys(seed, "full", last=np.zeros(1, np.int64)), rounds)

    assert np.array_equal(family(n, 0, 8), ours(n, 0))
    assert flagged(partial(family, rounds=3), n).keys() >= {"xor_pairs", "low_bits_3"}


@pytest.mark.parametrize("n", LENGTHS)
def test_the_linear_family_is_flagged(n):
    """It is there for old configs, and its docstring says that it is visibly regular."""
    assert flagged(lambda n, seed: Feistel(n, seed, "linear")(np.arange(n)), n).keys() >= {
        "serial",
        "low_bits_1",
    }


def test_instruments_on_orders_whose_values_are_known():
    n = 1 << 14
    line = np.arange(n)
    assert xor_pairs(line) == 1 / (n // 2)  # every pair differs in the last bit only
    assert serial(line) == pytest.approx(n**0.5, rel=1e-3)
    assert serial(np.arange(n).reshape(2, -1).T.ravel()) < -0.3 * n**0.5  # low, high, low, high
    assert windows(line, 128) > 30  # a window lies in one part
    assert (
        windows(np.arange(n).reshape(128, -1).T.ravel(), 128) == 0
    )  # every window hits every part equally
    assert low_bits(line, 2, 128) == pytest.approx(4)
    assert xor_pairs(random_permutation(n, 0)) == pytest.approx(2 * (1 - np.exp(-0.5)), abs=0.01)
    assert low_bits(random_permutation(n, 0), 1, 128) < 0.002
