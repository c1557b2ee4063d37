"""Test doubles and checks that headrace's own tests use, for users' tests too. Nothing outside imports this package.

- small caches: :func:`tiny_cache`, :func:`write_cache`, :func:`random_documents`;
- arrays that count or delay reads: :class:`CountingArray`, :class:`SlowArray`, put in place by :func:`with_arrays`;
- object stores on this machine: :mod:`headrace.testing.servers`;
- a proxy that loses, delays and cuts answers: :class:`FaultProxy`;
- a check of index maps: :func:`check_index_map`.
"""

from headrace.testing.arrays import CountingArray, SlowArray, with_arrays
from headrace.testing.caches import random_documents, tiny_cache, write_cache
from headrace.testing.checks import check_index_map
from headrace.testing.faults import FaultProxy, Faults, LoggedRequest

__all__ = [
    "CountingArray",
    "FaultProxy",
    "Faults",
    "LoggedRequest",
    "SlowArray",
    "check_index_map",
    "random_documents",
    "tiny_cache",
    "with_arrays",
    "write_cache",
]
