"""headrace feeds language-model training in JAX: every example of every step is a pure function of (config, seed,
step).

The names that most programs need are here; the rest is in packages by theme, such as ``headrace.mix`` and
``headrace.rl``. A package's public names are those of its stub (``__init__.pyi``). They are loaded on first use, so
that an import alone costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.2.0"
