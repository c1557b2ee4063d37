"""Packing: from the lengths of documents to rows that several of them share; planners, and plans saved beside caches.
The dataset that reads a plan's rows is :mod:`headrace.data.packed`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
