"""headrace's rows and batches for other loaders: Grain's datasets, MaxText, torch's
``IterableDataset``.

::

    from headrace.adapters import GrainBatches, GrainRows, MaxTextIterator, TorchBatches

The other packages are imported when a name is used. The adapters for Grain and torch deliver numpy
arrays (or torch tensors) with the names of ``PackedBatch.expand()`` and do not touch JAX's devices;
the one for MaxText delivers arrays on the devices.
"""

from typing import Any

import lazy_loader

from headrace.errors import ConfigError, install_command

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name not in ("grain", "torch"):
            raise
        raise ConfigError(
            f"needs the package {error.name}",
            field=f"headrace.adapters.{name}",
            cure=install_command(error.name),
        ) from error
