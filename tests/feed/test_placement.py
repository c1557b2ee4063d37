"""Where rows go: on any mesh the global array is the same, and each device holds its own part of
it.
"""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.errors import ConfigError
from headrace.feed.placement import Placement, batch_sharding


def mesh(shape, names):
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)


SHARDINGS = {
    "1": ((1,), ("data",), PartitionSpec("data")),
    "8": ((8,), ("data",), PartitionSpec("data")),
    "2x4, rows over data": ((2, 4), ("data", "model"), PartitionSpec("data")),
    "2x4, rows over both": ((2, 4), ("data", "model"), PartitionSpec(("data", "model"))),
    "2x4, rows the other way": ((2, 4), ("data", "model"), PartitionSpec(("model", "data"))),
    "2x4, rows and sequence": ((2, 4), ("data", "model"), PartitionSpec("data", "model")),
    "4, sequence only": ((4,), ("seq",), PartitionSpec(None, "seq")),
    "4, everywhere": ((4,), ("data",), PartitionSpec()),
}


def placement_of(name):
    shape, names, spec = SHARDINGS[name]
    return Placement(NamedSharding(mesh(shape, names), spec))


@given(
    name=st.sampled_from(sorted(SHARDINGS)),
    rows=st.integers(1, 4),
    dtype=st.sampled_from(["uint8", "uint16", "int32"]),
)
def test_the_global_array_is_the_host_array_on_every_mesh(name, rows, dtype):
    placement = placement_of(name)
    for first in (0, 1, 2):  # the first array of a kind is made by JAX, others by what it calls
        tokens = np.arange(first, first + 8 * rows * 16).reshape(8 * rows, 16).astype(dtype)
        found = placement.to_global(tokens, 8 * rows)
        assert found.dtype == tokens.dtype
        assert np.array_equal(found, tokens)
        assert found.sharding == placement.sharding
        assert found.committed
        by_jax = jax.make_array_from_callback(tokens.shape, placement.sharding, tokens.__getitem__)
        assert found.aval == by_jax.aval
        for shard in found.addressable_shards:
            assert np.array_equal(shard.data, tokens[shard.index])
    vector = placement.to_global(tokens[:, 0].copy(), 8 * rows)
    assert np.array_equal(vector, tokens[:, 0])
    assert vector.sharding.is_equivalent_to(placement.rows_sharding, 1)


@pytest.mark.parametrize("name", sorted(SHARDINGS))
def test_one_process_holds_all_rows_once(name):
    assert placement_of(name).local_rows(16).tolist() == list(range(16))


def test_a_process_holds_the_rows_of_its_devices(monkeypatch):
    """As on several hosts: this one's devices hold some of the rows, two of them the same."""

    class Elsewhere:
        def addressable_devices_indices_map(self, shape):
            return {"e": (slice(6, 8),), "d": (slice(2, 4),), "also d": (slice(2, 4),)}

    placement = placement_of("8")
    monkeypatch.setitem(placement.__dict__, "rows_sharding", Elsewhere())
    assert placement.local_rows(16).tolist() == [2, 3, 6, 7]


@pytest.mark.parametrize(
    ("spec", "mine", "columns"),
    [
        (PartitionSpec("data"), [0, 1], (0, 16)),
        (PartitionSpec("data", "seq"), [0, 4], (0, 4)),
        (PartitionSpec("data", "seq"), [2, 6], (8, 12)),
        (PartitionSpec(None, "seq"), [1, 2], (4, 12)),
        (PartitionSpec("data", "seq"), [0, 3], (0, 16)),  # both ends: all between
        (PartitionSpec("seq", "data"), [4, 5, 6, 7], (8, 16)),
    ],
)
def test_a_process_holds_the_columns_of_its_devices(monkeypatch, spec, mine, columns):
    """As on several hosts: of the devices 0 to 7 of a mesh of 2 x 4, those listed
    are this one's.
    """
    placement = Placement(NamedSharding(mesh((2, 4), ("data", "seq")), spec))
    ours = NamedSharding.devices_indices_map

    def addressable(sharding, shape):
        return {d: index for d, index in ours(sharding, shape).items() if d.id in mine}

    monkeypatch.setattr(NamedSharding, "addressable_devices_indices_map", addressable)
    assert placement.local_columns(16) == columns
    assert placement.local_columns(16) == columns
    assert placement.local_columns(32) == (2 * columns[0], 2 * columns[1])


def test_columns_of_this_process_are_put_in_their_place(monkeypatch):
    """Local columns in, the global array out: its parts come from where the process's own columns
    begin.
    """
    placement = placement_of("2x4, rows and sequence")
    tokens = np.arange(8 * 16).reshape(8, 16).astype(np.uint16)
    monkeypatch.setattr(
        placement, "local_columns", lambda seq_len: (-4, 16)
    )  # four columns of nobody's before
    wider = np.concatenate([np.full((8, 4), 999, np.uint16), tokens], axis=1)
    assert np.array_equal(placement.to_global(wider, 8, seq_len=16), tokens)
    assert np.array_equal(placement.to_global(tokens, 8, seq_len=16), tokens)


@pytest.mark.parametrize(
    ("spec", "sizes", "field", "cure"),
    [
        (PartitionSpec("data"), (7, 16), "batch_size", "Use 6 or 8, or another mesh."),
        (PartitionSpec(("data", "model")), (12, 16), "batch_size", "Use 8 or 16, or another mesh."),
        (PartitionSpec("model"), (3, 16), "batch_size", "Use 4, or another mesh."),
        (PartitionSpec("data", "model"), (8, 18), "seq_len", "Use 16 or 20, or another mesh."),
    ],
)
def test_what_does_not_divide_says_what_would(spec, sizes, field, cure):
    placement = Placement(NamedSharding(mesh((2, 4), ("data", "model")), spec))
    with pytest.raises(ConfigError, match="is not divisible by mesh axis") as caught:
        placement.check(*sizes)
    assert (caught.value.field, caught.value.cure) == (field, cure)
    placement.check(16, 16)


def test_the_axis_for_rows():
    square = mesh((2, 4), ("replica", "data"))
    assert batch_sharding(None, None).mesh.shape == {"data": 8}
    assert batch_sharding(square, None).spec == PartitionSpec("data")
    assert batch_sharding(mesh((4,), ("x",)), None).spec == PartitionSpec("x")
    assert batch_sharding(square, ["replica", "data"]).spec == PartitionSpec(("replica", "data"))
    assert batch_sharding(square, ("replica",)).spec == PartitionSpec("replica")
    with pytest.raises(
        ConfigError, match=r"is not an axis of the mesh .*Did you mean 'data'\?"
    ) as caught:
        batch_sharding(square, "dat")
    assert (caught.value.field, caught.value.value) == ("batch_axis", "dat")
    with pytest.raises(ConfigError, match="names no axis"):
        batch_sharding(square, ())


def test_batches_have_two_dimensions():
    with pytest.raises(ConfigError, match="must be a sharding of"):
        Placement(NamedSharding(mesh((2,), ("data",)), PartitionSpec("data", None, None)))
