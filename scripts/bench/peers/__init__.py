"""The loaders that ``bench_peers.py`` runs side by side, one file each; :mod:`peers.interface` says
what a file gives.

Importing this package imports none of them: what is not installed is found out by name.
"""

from __future__ import annotations

import importlib

from peers.interface import Peer

PEERS = (
    "memmap_take",
    "headrace_loader",
    "tensorstore_blocks",
    "torch_loader",
    "grain_loader",
    "mosaic_loader",
    "litdata_loader",
    "levanter_loader",
)


def load(name: str) -> Peer:
    """The peer of ``peers/<name>.py``."""
    return importlib.import_module(f"peers.{name}").PEER


__all__ = ["PEERS", "Peer", "load"]
