"""Post-training over headrace's batches: rollouts and their store, advantages, losses of policies,
preferences and distillation, balance over ranks.

It builds on :mod:`headrace`, which does not know it. Public names are listed in the stub
(``__init__.pyi``).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
