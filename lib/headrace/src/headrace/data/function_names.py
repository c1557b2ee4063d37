"""Names of functions that are the same in every process: what fingerprints know a function by."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np


def function_name(fn: Any) -> str:
    """A name that is the same in every process: no addresses. Arrays stand in it by a digest, objects by their type.

    Example:
        >>> function_name(partial(np.add, np.arange(3), where=object()))
        'numpy.add(int64[3] of ab25350e, where=builtins.object)'
    """
    if isinstance(fn, partial):
        keywords = [f"{k}={_argument(v)}" for k, v in sorted(fn.keywords.items())]
        return f"{function_name(fn.func)}({', '.join([*map(_argument, fn.args), *keywords])})"
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{named.__module__}.{named.__qualname__}"


def _argument(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_argument(k)}: {_argument(v)}' for k, v in value.items())}}}"
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype}{list(value.shape)} of {digest[:8]}"
    return function_name(value)
