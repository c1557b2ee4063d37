"""The order: from a position of a run to a row of a store, as pure functions of (length, seed).
numpy only, no I/O; which source a position belongs to is decided in :mod:`headrace.mix`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
