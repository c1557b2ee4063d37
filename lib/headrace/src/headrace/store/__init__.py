"""What is stored on disk: ragged zarr3 stores, ledgers, token caches. Only this package uses
TensorStore and fsspec.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
