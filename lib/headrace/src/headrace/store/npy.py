"""``.npy`` files, which NumPy reads: from any thread, and damaged ones, too."""

from __future__ import annotations

import threading
import tokenize
import zipfile
from typing import IO

import numpy as np

PYTHON_PARSER = threading.Lock()
"""Held while Python text is parsed, as the head of a ``.npy`` file is. The parser of CPython 3.11
counts its depth once for all threads: of two that parse at a time, one may fail with a SystemError.
"""

NPY_ERRORS = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
)
"""What NumPy raises for a damaged ``.npy`` file, whose head is Python and says how much memory it
takes.
"""


def read_npy_head(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array in a stream that is left where its data begins. Raises one of
    :data:`NPY_ERRORS` for another file.
    """
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    with PYTHON_PARSER:
        shape, _, dtype = read(stream)
    return shape, dtype
