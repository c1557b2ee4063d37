"""Datasets over caches, and how they are combined: rows, packed rows, mixtures, filters,
provenance.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
