"""Analysis of runs, before and after they start: forecasts, checks, the quality of an order."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
