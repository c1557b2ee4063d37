"""The contract between data and training: batches, examples, masks, losses, and conversions to other systems' forms.
Where rows come from is no concern of this package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
