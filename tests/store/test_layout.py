"""Layouts: the narrowest dtype, refused values, and metadata that other zarr3
readers understand.
"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.store import CacheLayout
from headrace.store.layout import LeafSpec, token_dtype


@given(st.integers(1, 2**32))
def test_the_narrowest_dtype_holds_every_id(vocab_size):
    dtype = token_dtype(vocab_size)
    assert int(np.iinfo(dtype).max) >= vocab_size - 1
    narrower = {1: None, 2: np.uint8, 4: np.uint16}[dtype.itemsize]
    assert narrower is None or int(np.iinfo(narrower).max) < vocab_size - 1
    CacheLayout(dtype.name).check_vocabulary(vocab_size)


@pytest.mark.parametrize(
    ("size", "name"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_borders_between_dtypes(size, name):
    assert token_dtype(size).name == name


@pytest.mark.parametrize("size", [0, -1, 2**32 + 1])
def test_no_dtype_for_impossible_vocabularies(size):
    with pytest.raises(ConfigError, match="must lie in 1") as caught:
        token_dtype(size)
    assert caught.value.field == "vocab_size"


def test_a_vocabulary_larger_than_the_dtype_is_refused_with_the_one_to_use():
    with pytest.raises(
        ConfigError, match=r"cannot hold a vocabulary of 65537\. Use uint32, or leave it out"
    ) as caught:
        CacheLayout("uint16").check_vocabulary(65537)
    assert (caught.value.field, caught.value.value) == ("layout.dtype", "uint16")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"chunk_elements": 0}, "layout.chunk_elements"),
        ({"shard_chunks": 0}, "layout.shard_chunks"),
        ({"compression": "zst"}, "layout.compression"),
    ],
)
def test_bad_layouts(values, field):
    with pytest.raises(ConfigError) as caught:
        CacheLayout(**values)
    assert caught.value.field == field
    assert caught.value.cure or "at least 1" in caught.value.problem


def test_tokens_are_integers():
    for check in (
        CacheLayout("float32").check_tokens,
        lambda: CacheLayout("bool").check_vocabulary(2),
    ):
        with pytest.raises(ConfigError, match="is not a dtype of tokens"):
            check()


@pytest.mark.parametrize(
    "values", [("..", "uint8"), ("a/b", "uint8"), ("input_ids", "uint8"), ("", "uint8")]
)
def test_names_of_leaves_stay_within_the_part(values):
    with pytest.raises(ConfigError, match="cannot be the name of a leaf"):
        LeafSpec(*values)


def test_bad_leaves():
    with pytest.raises(ConfigError, match="is not a dtype of leaves"):
        LeafSpec("mask", "uint7")
    with pytest.raises(ConfigError, match="is not a kind of leaf"):
        LeafSpec("mask", "uint8", "loose")
    with pytest.raises(ConfigError, match="cannot be written"):
        CacheLayout(compression="other").zarr_metadata(3)


def test_layouts_survive_json():
    layout = CacheLayout("uint32", 100, 3, "zstd")
    assert CacheLayout(**json.loads(json.dumps(layout.to_dict()))) == layout
    assert layout.shard_elements == 300
    assert layout.offsets().dtype == "int64"


def test_checksums_are_in_every_chunk_and_in_the_shard_index():
    for compression in ("none", "zstd"):
        sharding = CacheLayout(compression=compression).zarr_metadata(10)["codecs"][0][
            "configuration"
        ]
        assert sharding["codecs"][-1]["name"] == "crc32c"
        assert sharding["index_codecs"][-1]["name"] == "crc32c"
