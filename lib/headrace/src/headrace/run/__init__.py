"""A run: a folder with a lock, from which what it loads is built; and where it is at a step."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
