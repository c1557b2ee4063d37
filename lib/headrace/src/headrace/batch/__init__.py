"""The contract between data and training: batches, examples, masks, losses, and conversions to
other systems' formats. This package does not know where rows come from.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
