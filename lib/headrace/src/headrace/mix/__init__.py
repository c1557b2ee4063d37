"""Mixing: from a step to the rows that each source gives. numpy only, no I/O; which rows they are
is decided in :mod:`headrace.order`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
