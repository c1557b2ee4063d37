"""A global array is what ``jax.make_array_from_callback`` makes, whether JAX has the faster
function or not.
"""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from headrace.feed import placement
from headrace.feed.placement import Transfer, batched_device_put


def sharding_of(types, spec):
    return NamedSharding(jax.make_mesh((2, 4), ("data", "model"), types), spec)


def test_this_release_of_jax_has_the_faster_function():
    assert batched_device_put() is not None


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32", "int64", "float64"])
@pytest.mark.parametrize("axis", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(
    "spec", [PartitionSpec("data"), PartitionSpec("data", "model"), PartitionSpec()]
)
def test_every_array_is_the_one_that_jax_makes(monkeypatch, faster, dtype, axis, spec):
    if not faster:
        monkeypatch.setattr(placement, "batched_device_put", lambda: None)
    sharding = sharding_of((axis, axis), spec)
    to_global = Transfer((8, 12), sharding, lambda index: index)
    for k in range(3):
        local = np.arange(k, 96 + k).reshape(8, 12).astype(dtype)
        made = to_global(local)
        by_jax = jax.make_array_from_callback((8, 12), sharding, local.__getitem__)
        assert made.aval == by_jax.aval
        assert (made.sharding, made.committed, made.weak_type) == (
            by_jax.sharding,
            by_jax.committed,
            by_jax.weak_type,
        )
        assert np.array_equal(made, local)
        for of_made, of_jax in zip(made.addressable_shards, by_jax.addressable_shards, strict=True):
            assert (of_made.device, of_made.index) == (of_jax.device, of_jax.index)
            assert np.array_equal(of_made.data, of_jax.data)


def test_on_a_cpu_device_the_array_is_the_memory_that_was_given():
    """So a batch costs no copy; the loader's buffers are not written to while it lives."""
    sharding = NamedSharding(
        jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]), PartitionSpec("data")
    )
    to_global = Transfer((8, 16), sharding, lambda index: index)
    for _ in range(2):
        memory = np.zeros(8 * 16 * 4 + 64, np.uint8)
        local = memory[-memory.ctypes.data % 64 :][: 8 * 16 * 4].view(np.int32).reshape(8, 16)
        assert to_global(local).addressable_data(0).unsafe_buffer_pointer() == local.ctypes.data
