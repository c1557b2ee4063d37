"""Mixing and rows exactly as other systems have them, for runs that began there: Megatron-LM, nmoe,
nanoschnack, and the batches of tinker and nanomoe.

A config names a system (``compat: megatron``) or a policy (``policy: swrr``); the entry points of
this package bring them to :mod:`headrace`. docs/coming_from has a page for each system.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
