"""From planned rows to sharded batches: placement, block cache, prefetch, loader."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
