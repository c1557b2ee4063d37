"""The state of a run: its manifest, its anchors, and where it is at a step. Its config describes
what it loads.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
