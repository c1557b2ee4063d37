"""Test doubles and checks of headrace's own tests, also for users' tests. The rest of headrace does
not import this package.

- small caches: :func:`tiny_cache`, :func:`write_cache`, :func:`random_documents`;
- arrays that count or delay reads: :class:`CountingArray`, :class:`SlowArray`, installed by
  :func:`with_arrays`;
- object stores on this machine: :mod:`headrace.testing.servers`;
- a proxy that loses, delays and cuts answers: :class:`FaultProxy`;
- a check of orders: :func:`check_order`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
