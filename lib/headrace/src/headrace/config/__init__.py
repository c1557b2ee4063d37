"""Configs of runs as users write them: the config of a run and of a component, the parser, the
schema. The config dataclass of a single concept is in that concept's module.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
