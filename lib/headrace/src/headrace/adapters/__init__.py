"""headrace's rows and batches where other loaders are used: Grain's datasets, torch's ``IterableDataset``.

::

    from headrace.adapters import GrainBatches, GrainRows, TorchBatches

The packages are imported when a name is asked for. All of them give numpy arrays (or torch tensors) by the names of
``PackedBatch.expand()``, and no device of JAX's is touched.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.adapters.grain import GrainBatches, GrainRows
    from headrace.adapters.host_batches import HostBatches
    from headrace.adapters.torch import TorchBatches

_HOMES = {
    "GrainBatches": "headrace.adapters.grain",
    "GrainRows": "headrace.adapters.grain",
    "HostBatches": "headrace.adapters.host_batches",
    "TorchBatches": "headrace.adapters.torch",
}

__all__ = ["GrainBatches", "GrainRows", "HostBatches", "TorchBatches"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.adapters' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("grain", "torch"):
            raise
        raise ConfigError(
            f"needs the package {error.name}", field=f"headrace.adapters.{name}", cure=f"pip install {error.name}"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
