"""Builds token caches: files (source), documents, tokens (tokenize), parts (plan), the pipeline
(engine), the build.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
