"""The permutation without a table: bijection at every length, equal to a plain
reference, pinned.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.permutation import (
    PERMUTATIONS,
    Feistel,
    permute,
    permute_linear,
    rectangle,
)
from headrace.order.seeds import GOLDEN, derive_keys, fold

FAMILIES = sorted(PERMUTATIONS)
MASK = (1 << 64) - 1
AROUND_POWERS = [
    (1 << k) + d for k in range(1, 63) for d in (-1, 0, 1) if 1 <= (1 << k) + d <= 1 << 62
]
# where the square root of a length is one short in floating point
AROUND_SQUARES = [
    side * side + d for side in (2**31 - 2, 2**31 - 4, 2**30 - 2, 2**27) for d in (-1, 0, 1)
]
lengths = (
    st.integers(1, 2000) | st.sampled_from(AROUND_POWERS + AROUND_SQUARES) | st.integers(1, 1 << 62)
)


def sample_of(n: int, size: int = 2000) -> np.ndarray:
    """All of ``range(n)`` if that is small, else its ends, its middle and random places, without
    repeats.
    """
    if n <= size:
        return np.arange(n)
    places = np.random.default_rng(n % 2**32).integers(0, n, size)
    return np.unique(np.concatenate([places, [0, 1, n // 2, n - 2, n - 1]]))


def reference_walk(i: int, n: int, key: int, rounds: int | None = None) -> list[int]:
    """``permute`` for one index in plain Python integers, which cannot overflow: the images in the
    rectangle, of which the last one counts.
    """
    rounds = rounds or (16 if n < 64 else 8)
    images: list[int] = []
    a = math.isqrt(n - 1) + 1  # the square root, rounded up
    a += a % 2
    b = -(-n // a)
    while True:
        left = i % a
        right = i // a
        for r in range(rounds):
            h = (right if r % 2 == 0 else left) ^ ((key + r * GOLDEN) & MASK)
            h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
            if r % 2 == 0:
                left = (left + (((h >> 32) * a) >> 32)) % a
            else:
                right = (right + (((h >> 32) * b) >> 32)) % b
        i = right * a + left
        images.append(i)
        if i < n:
            return images


def reference_permute(i: int, n: int, key: int) -> int:
    return reference_walk(i, n, key)[-1]


def test_the_example_of_the_module():
    ten = [reference_walk(i, 10, key=2, rounds=2) for i in range(10)]
    assert [walk[-1] for walk in ten] == [7, 4, 5, 6, 8, 9, 2, 3, 0, 1]
    assert (ten[5], ten[3]) == ([9], [10, 6])


def reference_linear(i: int, n: int, key: int) -> int:
    bits = max((n - 1).bit_length(), 1)
    one, two = (int(fold(np.array([key], np.uint64), np.array([c], np.uint64))[0]) for c in (1, 2))
    while True:
        i = (((one << 2) | 1) * i + (two | 1)) % (1 << bits)
        if i < n:
            return i


REFERENCES = {"feistel": reference_permute, "linear": reference_linear}


@pytest.mark.parametrize("family", FAMILIES)
def test_bijection_for_every_short_length(family):
    for n in range(301):
        for seed in (0, 1, 2**64 - 1):
            assert np.array_equal(np.sort(Feistel(n, seed, family)(np.arange(n))), np.arange(n)), (
                n,
                seed,
            )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("exponent", [10, 13, 16, 17, 20])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_bijection_of_whole_lengths_around_powers_of_two(family, exponent, offset):
    n = (1 << exponent) + offset
    assert np.bincount(Feistel(n, 5, family)(np.arange(n)), minlength=n).tolist() == [1] * n


@pytest.mark.parametrize("family", FAMILIES)
def test_in_range_and_injective_around_every_power_of_two(family):
    for n in AROUND_POWERS:
        i = sample_of(n)
        image = Feistel(n, 3, family)(i)
        assert image.dtype == np.int64
        assert image.min() >= 0, n
        assert image.max() < n, n
        assert np.unique(image).size == i.size, n


@pytest.mark.parametrize("family", FAMILIES)
@given(
    n=lengths,
    key=st.integers(0, MASK),
    fractions=st.lists(st.floats(0, 1, exclude_max=True), max_size=5),
)
def test_equals_the_plain_reference(family, n, key, fractions):
    i = [0, n - 1, n // 2, *(min(int(f * n), n - 1) for f in fractions)]
    got = PERMUTATIONS[family](np.array(i), n, key)
    assert got.tolist() == [REFERENCES[family](j, n, key) for j in i]


@pytest.mark.fuzz
@given(n=lengths, key=st.integers(0, MASK), seed=st.integers(0, 2**32))
def test_fuzz_injective_and_equal_to_the_reference(n, key, seed):
    i = np.unique(np.random.default_rng(seed).integers(0, n, 300))
    for family, function in PERMUTATIONS.items():
        image = function(i, n, key)
        assert np.unique(image).size == i.size
        assert image.min() >= 0
        assert image.max() < n
        assert image[:3].tolist() == [REFERENCES[family](int(j), n, key) for j in i[:3]]


@pytest.mark.parametrize("family", FAMILIES)
@given(n=st.integers(1, 3000), seed=st.integers(0, 99), data=st.data())
def test_batched_equals_one_by_one(family, n, seed, data):
    m = Feistel(n, seed, family)
    i = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    assert m(i).tolist() == [int(m(np.array([j]))[0]) for j in i]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [8191, 8192, 8193, 20_000])
def test_long_batches_equal_short_ones(family, size):
    n = 12_345
    i = np.random.default_rng(size).integers(0, n, size)
    whole = Feistel(n, 1, family)(i)
    parts = [Feistel(n, 1, family)(part) for part in np.array_split(i, 7)]
    assert np.array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("function", [permute, permute_linear])
def test_mixed_lengths_and_keys_in_one_call(function):
    rng = np.random.default_rng(0)
    n = np.array([1, 2, 3, 4, 5, 100, 1 << 31, (1 << 53) + 1, (1 << 62) - 1, 1 << 62])[
        rng.integers(0, 10, 9000)
    ]
    i = (rng.random(9000) * n).astype(np.int64)
    key = rng.integers(0, 2**64, 9000, np.uint64)
    mixed = function(i, n, key)
    for j in rng.integers(0, 9000, 100):
        assert mixed[j] == function(i[j : j + 1], int(n[j]), int(key[j]))[0]
    assert np.array_equal(function(i, n, 7), function(i, n, np.full(9000, 7, np.uint64)))
    assert np.array_equal(function(i % 100, 100, key), function(i % 100, np.full(9000, 100), key))


@given(n=lengths)
def test_the_walked_domain_is_hardly_larger_than_the_length(n):
    a, b = (int(side[0]) for side in rectangle(np.array([n], np.uint64)))
    assert a % 2 == 0
    assert a * a >= n
    assert 0 <= a * b - n < math.isqrt(n) + 2
    assert a * b <= 4 * n + 16


@pytest.mark.parametrize("n", AROUND_SQUARES)
def test_the_side_is_the_square_root_rounded_up_to_even(n):
    a = int(rectangle(np.array([n], np.uint64))[0][0])
    assert (a - 2) ** 2 < n <= a * a


def test_short_lengths_walk_short_domains():
    """A length of 100 must not cost what a length of 65,536 costs: at most a few evaluations an
    index, counted.
    """
    for n in range(1, 400):
        evaluated = sum(len(reference_walk(i, n, key=n)) for i in range(n))
        assert evaluated <= 4 * n + 16, n
        if n > 50:
            assert evaluated <= 1.3 * n, n


@pytest.mark.parametrize("family", FAMILIES)
def test_every_epoch_and_every_seed_has_its_own_order(family):
    i = np.arange(500)
    orders = [Feistel(500, 9, family).at(i, np.full(500, epoch)) for epoch in range(4)]
    orders += [Feistel(500, seed, family)(i) for seed in (0, 1, -1, 10)]
    for k, order in enumerate(orders):
        assert np.array_equal(np.sort(order), i)
        for other in orders[:k]:
            assert (order == other).mean() < 0.05


def test_epochs_may_be_mixed_in_one_call():
    m = Feistel(50, 2)
    i = np.repeat(np.arange(50), 3)
    epoch = np.tile(np.arange(3), 50)
    mixed = m.at(i, epoch)
    for e in range(3):
        assert np.array_equal(mixed[e::3], m.at(np.arange(50), np.full(50, e)))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_order_of_a_few_is_equally_likely(n):
    seeds = 24_000
    p = permute(
        np.tile(np.arange(n), seeds), n, np.repeat(derive_keys(0, last=np.arange(seeds)), n)
    ).reshape(-1, n)
    _, counts = np.unique(p, axis=0, return_counts=True)
    orders = {2: 2, 3: 6, 4: 24}[n]
    assert counts.size == orders
    chi_square = ((counts - seeds / orders) ** 2 / (seeds / orders)).sum()
    assert chi_square < orders - 1 + 5 * (2 * (orders - 1)) ** 0.5


@pytest.mark.parametrize("n", [5, 8, 17, 33, 100])
def test_every_index_goes_everywhere_equally_often(n):
    seeds = 20_000
    p = permute(
        np.tile(np.arange(n), seeds), n, np.repeat(derive_keys(0, last=np.arange(seeds)), n)
    ).reshape(-1, n)
    counts = np.stack([np.bincount(p[:, i], minlength=n) for i in range(n)])
    z = (((counts - seeds / n) ** 2 / (seeds / n)).sum() - (n - 1) ** 2) / (2 * (n - 1) ** 2) ** 0.5
    assert abs(z) < 5


def test_pinned_orders():
    """Changing one is a release note and a new ORDER_VERSION."""
    pinned = {
        "feistel": [
            [2, 3, 17, 10, 18, 15, 5, 12, 8, 16, 4, 19, 7, 11, 0, 6, 14, 13, 9, 1],
            [32, 183, 791, 144, 790, 609],
            [42551518290, 627892172877, 552067361576, 657336228401],
            [883331630994495245, 1371359643326720344, 1789412576442540515, 1197931040206630360],
        ],
        "linear": [
            [9, 2, 12, 8, 13, 6, 16, 1, 17, 10, 3, 5, 15, 14, 7, 0, 19, 18, 11, 4],
            [647, 712, 777, 379, 436, 46],
            [340077987463, 294407275208, 889833801351, 866588628181],
            [167132704569706119, 3631865321835102920, 2472975713783400071, 1314086105731697222],
        ],
    }
    for family, (short, thousand, large, largest) in pinned.items():
        assert Feistel(20, 0, family)(np.arange(20)).tolist() == short
        assert Feistel(1000, 7, family)(np.array([0, 1, 2, 500, 998, 999])).tolist() == thousand
        assert Feistel(2**40 + 1, 7, family)(np.array([0, 1, 2**39, 2**40])).tolist() == large
        assert Feistel(2**62, 7, family)(np.array([0, 1, 2**61, 2**62 - 1])).tolist() == largest


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((-1, 0), "length"),
        ((2**62 + 1, 0), "length"),
        ((5, 0, "lcg"), "perm_type"),
        ((5, "x"), "seed"),
    ],
)
def test_bad_arguments(arguments, field):
    with pytest.raises(ConfigError) as caught:
        Feistel(*arguments)
    assert caught.value.field == field


def test_unknown_family_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"'feistel', 'linear'"):
        Feistel(5, 0, "lcg")


def test_lengths_and_keys_that_do_not_fit_are_refused():
    for length, key in ((0, 1), (np.array([5, 0, 5]), 1), (5, np.zeros(2, np.uint64))):
        with pytest.raises(ValueError, match="for each number"):
            permute(np.arange(3), length, key)


def test_inputs_are_not_modified():
    i = np.arange(100)
    n = np.full(100, 100)
    key = np.arange(100, dtype=np.uint64)
    for function in PERMUTATIONS.values():
        function(i, n, key)
    assert np.array_equal(i, np.arange(100))
    assert np.array_equal(n, np.full(100, 100))
    assert np.array_equal(key, np.arange(100, dtype=np.uint64))
