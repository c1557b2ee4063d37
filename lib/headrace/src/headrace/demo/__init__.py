"""``headrace demo``: from Python's own source code to a trained language model, in two minutes,
without a network.

``run`` is the demo itself and the file to read first. ``corpus`` collects the text, ``train`` has
the model and is what ``headrace init`` writes, ``checks`` verifies the results, and ``settings``
and ``screen`` do the rest.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
