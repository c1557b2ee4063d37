"""Windows over stretches in any order, against a stream that is laid out token by token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.testing import write_cache
from headrace_compat.listed import ListedDataset, Listing

TEXTS = [[np.array([3, 1, 4]), np.array([1, 5])], [np.array([9, 2, 6, 5, 3, 5]), np.array([8])]]
STARTS = np.array([0, 3, 5, 11])
SIZES = np.array([3, 2, 6, 1])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return write_cache(str(tmp_path_factory.mktemp("listed") / "cache"), TEXTS)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.integers(1, 7),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_windows_are_those_of_the_stream(cache, stretches, stride, overlap, random):
    # the last one is empty
    starts = np.append(STARTS, 5)
    sizes = np.append(SIZES, 0)
    tokens = np.concatenate([t for part in TEXTS for t in part])
    stream = np.concatenate([tokens[starts[k] : starts[k] + sizes[k]] for k in stretches])
    if stream.size == 0:
        return
    seq_len = max(stride + overlap, 2)
    windows = random.randint(1, 12)  # more than one lap of a short stream
    order = np.array(random.sample(range(windows), windows), np.uint32)
    listing = Listing(starts[stretches], sizes[stretches], stride, order, windows, {})
    dataset = ListedDataset(cache, seq_len, listing, name="a")
    endless = np.tile(stream, -(-(windows * stride + seq_len) // stream.size) + 1)
    expected = [endless[k * stride : k * stride + seq_len].tolist() for k in order.tolist()]
    assert dataset.read(range(windows)).tokens.tolist() == expected
    places = np.concatenate([starts[k] + np.arange(int(sizes[k])) for k in stretches])
    held = np.tile(places, -(-endless.size // places.size))
    held = np.concatenate([held[k * stride : k * stride + seq_len] for k in range(windows)])
    assert dataset.dropped_tokens == tokens.size - np.unique(held).size
    assert dataset.repeated_tokens == held.size - np.unique(held).size


def test_the_order_is_part_of_what_a_run_is(cache):
    one, other = (Listing(STARTS, SIZES, 4, None, 3, {"seed": seed}) for seed in (1, 2))
    first = ListedDataset(cache, 4, one, name="a")
    assert first.describe() != ListedDataset(cache, 4, other, name="a").describe()
    assert first.dropped_tokens == 0
    with pytest.raises(
        ConfigError, match=r"validation: are in the order of another system, and cannot be split"
    ):
        first.holdout(2)
    split = ListedDataset(cache, 4, one, split_documents=True, name="a")
    assert split.describe() != first.describe()
