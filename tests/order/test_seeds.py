"""Seed paths: pinned keys, no collisions, vectors equal to scalars, every bit matters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.seeds import ORDER_VERSION, derive, derive_keys, fold, mix64

paths = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=5), max_size=4)


def test_pinned_keys():
    """These move only together with ORDER_VERSION, and that is a release note."""
    assert ORDER_VERSION == 1
    assert derive(1) == 0x5692161D100B05E5
    assert derive(-1) == 0xB4D055FCF2CBBD7B
    assert derive(0, "block") == 0x63389A6BD613EDD6
    assert derive(0, "block", 3) == 0xD82AB307D675F612
    assert derive(2**63 + 5, "a", "b", -7) == 0xC9E54147AE2AF842
    assert mix64(np.array([0, 1, 2**64 - 1], np.uint64)).tolist() == [
        0,
        0x5692161D100B05E5,
        0xB4D055FCF2CBBD7B,
    ]


@given(
    seed=st.integers(-(2**70), 2**70),
    path=paths,
    last=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
)
def test_vectors_equal_scalars(seed, path, last):
    keys = derive_keys(seed, *path, last=np.array(last, np.int64))
    assert keys.dtype == np.uint64
    assert keys.tolist() == [derive(seed, *path, x) for x in last]


def test_derive_keys_keeps_the_shape():
    assert derive_keys(1, last=np.arange(6).reshape(2, 3)).shape == (2, 3)
    assert derive_keys(1, last=np.array(4)).shape == ()


def test_paths_do_not_run_into_each_other():
    keys = [
        derive(0),
        derive(1),
        derive(0, 0),
        derive(0, 1),
        derive(0, "1"),
        derive(0, ""),
        derive(0, "a", "b"),
        derive(0, "b", "a"),
        derive(0, "ab"),
        derive(0, "a", 1, 2),
        derive(0, "a", 2, 1),
        derive(0, "a", 12),
    ]
    assert len(set(keys)) == len(keys)


def test_no_collision_among_many_keys():
    rows = np.arange(300, dtype=np.uint64)
    keys = np.concatenate(
        [fold(derive_keys(s, "window", last=rows)[:, None], rows).ravel() for s in range(3)]
    )
    assert np.unique(keys).size == keys.size == 3 * 300 * 300


def test_every_input_bit_moves_half_of_the_output_bits():
    x = np.random.default_rng(0).integers(0, 2**64, 4000, np.uint64)
    five = np.array([5], np.uint64)
    for child in (mix64, lambda v: fold(v, five), lambda v: fold(five, v)):
        for bit in range(64):
            flipped = child(x) ^ child(x ^ np.uint64(1 << bit))
            share = np.unpackbits(flipped.view(np.uint8)).mean()
            assert abs(share - 0.5) < 0.01, bit


def test_inputs_are_not_modified():
    x = np.arange(5, dtype=np.uint64)
    mix64(x)
    fold(x, x)
    derive_keys(3, last=x)
    assert x.tolist() == [0, 1, 2, 3, 4]


def test_numpy_integers_are_seeds_and_seeds_wrap():
    assert derive(np.int64(7), "x") == derive(7, "x")
    assert derive(7 + 2**64, "x") == derive(7, "x")
    assert derive(-1) == derive(2**64 - 1)


@pytest.mark.parametrize("seed", [True, "0", 1.0, None, np.float32(1)])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(ConfigError, match="seed is an integer") as caught:
        derive(seed)
    assert caught.value.field == "seed"
