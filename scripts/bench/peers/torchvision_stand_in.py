"""Stands in for torchvision where it cannot be imported, once this module is imported.

``import streaming`` imports three names of torchvision for its picture datasets. torchvision's
published builds for Linux load only beside torch's accelerator build ("operator torchvision::nms
does not exist" beside the CPU build), so there empty classes take their place: reading tokens
touches none of them.
"""

from __future__ import annotations

import importlib
import sys
import types


def stand_in() -> None:
    """Puts empty modules in torchvision's place if it does not load."""
    try:
        importlib.import_module("torchvision")
        return
    except (ImportError, RuntimeError):
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
    importlib.import_module(
        "transformers"
    )  # looks for torchvision while it is imported, and must not find these
    names = (
        "torchvision",
        "torchvision.datasets",
        "torchvision.transforms",
        "torchvision.transforms.functional",
    )
    modules = {name: types.ModuleType(name) for name in names}
    modules["torchvision"].__path__ = []
    for name in ("VisionDataset", "CIFAR10"):
        vars(modules["torchvision.datasets"])[name] = type(name, (), {})
    vars(modules["torchvision.transforms.functional"])["to_tensor"] = None
    sys.modules.update(modules)


stand_in()
