"""Code that leaves the sharding of what it computes to the compiler, on any mesh.

On a mesh with explicit axes, which ``jax.make_mesh`` makes, types say how arrays are sharded, and what mixes rows of
several devices does not type. ``with_auto_axes`` runs such code as it would run on a mesh with automatic axes, and
says how its result is sharded. On other meshes, and on the host, it only calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

T = TypeVar("T")


def with_auto_axes(function: Callable[..., T], *arguments: Any, out: Callable[[PartitionSpec], Any]) -> T:
    """``function(*arguments)``.

    Args:
        function: Pure; may be differentiated.
        arguments: Pytrees of arrays. The first leaf says whether axes are explicit.
        out: Gives the sharding of the result, a pytree of :class:`PartitionSpec`, from that of the first leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> with_auto_axes(jnp.cumsum, jnp.ones(3), out=lambda spec: spec).tolist()
        [1.0, 2.0, 3.0]
    """
    sharding: Any = jax.typeof(jax.tree.leaves(arguments)[0]).sharding
    mesh = sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return function(*arguments)
    specs = out(PartitionSpec(*sharding.spec))
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )
    automatic: Any = jax.sharding.auto_axes(function, out_sharding=shardings)
    return automatic(*arguments)
