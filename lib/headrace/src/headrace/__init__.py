"""headrace feeds language-model training in JAX: every example of every step is a pure function of
(config, seed, step).

This package has the names that most programs need. Packages by theme, such as ``headrace.mix`` and
``headrace_posttrain.rollouts``, have the others. A package's public names are listed in its stub
(``__init__.pyi``). They are loaded on first use, so the import itself costs almost nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.3.0"
