"""Packing: plans which documents share a row, from their lengths, and saves plans next to caches.
:mod:`headrace.data.packed` reads the rows of a plan.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
