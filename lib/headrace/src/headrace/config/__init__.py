"""Configs of runs as users write them: the config of a run and of a component, the parser, the schema. Values that
configure one concept stand beside that concept.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
