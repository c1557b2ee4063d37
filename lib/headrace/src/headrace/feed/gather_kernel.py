"""Pieces of rows copied from wherever they lie: out of memory-mapped files as well as out of slots, in one pass.

NumPy gathers from one array, and quickly only what lies there at multiples of a row. The few instructions that copy
from a table of addresses are assembled here for the machine that runs them, by LLVM (``llvmlite``, which comes with
``headrace[numba]``); each piece is a ``memcpy`` of the C library, which knows the machine's vectors. They run without
the interpreter's lock. Price: .1 s to load LLVM, .02 s to assemble; about 20 ns a piece.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from headrace.errors import install_command

CopyPieces: TypeAlias = Callable[[Int64[np.ndarray, " p"], Int64[np.ndarray, " p"], Int64[np.ndarray, " p"]], None]

_LOG = logging.getLogger(__name__)
_KERNEL = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @copy_pieces(ptr %addresses, ptr %targets, ptr %sizes, i64 %count) {
begin:
  br label %next
next:
  %k = phi i64 [ 0, %begin ], [ %k.after, %copy ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %copy, label %end
copy:
  %address.at = getelementptr ptr, ptr %addresses, i64 %k
  %target.at = getelementptr ptr, ptr %targets, i64 %k
  %size.at = getelementptr i64, ptr %sizes, i64 %k
  %address = load ptr, ptr %address.at
  %target = load ptr, ptr %target.at
  %size = load i64, ptr %size.at
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %address, i64 %size, i1 false)
  %k.after = add i64 %k, 1
  br label %next
end:
  ret void
}
"""


@cache
def copy_kernel() -> CopyPieces | None:
    """What copies ``size`` bytes from ``address`` to ``target``, of each piece; None where it cannot be assembled.

    The addresses must be readable, and the targets writable, while it runs.

    Example:
        >>> copy_pieces = copy_kernel()
        >>> tokens, row = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
        >>> address, target = tokens.ctypes.data + np.array([24, 4]), row.ctypes.data + np.array([0, 8])
        >>> copy_pieces(address, target, np.array([8, 8]))
        >>> row.tolist()
        [6, 7, 1, 2]
    """
    try:
        return _assembled(import_module("llvmlite.binding"))
    except Exception as error:  # noqa: BLE001  # llvmlite and the library that it loads raise anything
        cure = install_command("headrace[numba]") if isinstance(error, ModuleNotFoundError) else str(error)
        _LOG.info("blocks of local caches are copied before rows are gathered, which is slower: %s", cure)
        return None


def _assembled(llvm: Any) -> CopyPieces:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_KERNEL)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    pointer = ctypes.c_void_p
    kernel = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)(
        engine.get_function_address("copy_pieces")
    )

    def copy_pieces(
        address: Int64[np.ndarray, " p"], target: Int64[np.ndarray, " p"], size: Int64[np.ndarray, " p"]
    ) -> None:
        assert engine  # whose memory the kernel lies in
        address, target, size = (np.ascontiguousarray(a, np.int64) for a in (address, target, size))
        kernel(address.ctypes.data, target.ctypes.data, size.ctypes.data, size.size)

    return copy_pieces
