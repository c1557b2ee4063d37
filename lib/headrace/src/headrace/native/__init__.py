"""The compiled part: one small shared library, called through ctypes; all its signatures stand
here.

The C files beside this one do what would be slow in NumPy: permutations and braids (``braid.c``),
packing (``windows.c``), quotas (``quota.c``), copies and checks of memory-mapped files
(``gather.c``), checksums (``crc32c.c``). They know nothing of Python, so one library serves every
version of it. Installing headrace compiles them (``build_native.py`` in lib/headrace); what a wheel
has is compiled already. There is no second implementation: without its library headrace says how to
build it.

Arrays are passed as addresses (``array.ctypes.data``). Whoever calls makes sure that an array has
the dtype that is meant, is contiguous, and lives until the call, or the table that was submitted,
is done.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
# Another one is given by scripts/sanitize.py, which compiles with sanitizers
LIBRARY = Path(os.environ.get("HEADRACE_NATIVE_LIBRARY", FOLDER / "_native.so"))
SUPPORTED = (
    "x86_64 and aarch64 (arm64) processors, 64-bit, on Linux (glibc 2.17 or later) and macOS"
)

_ADDRESS = ctypes.c_void_p
_INTEGER = ctypes.c_int64
_UNSIGNED = ctypes.c_uint64
_NUMBER = ctypes.c_int

# name: result, arguments
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    # count, specs, component, ordinal, first epoch; kept epochs, mask; placed blocks, mask; rows,
    # localities
    "braid_rows": (
        None,
        [_UNSIGNED, *[_ADDRESS] * 5, _UNSIGNED, _ADDRESS, _UNSIGNED, *[_ADDRESS] * 2],
    ),
    # a braid's spec, epoch, draws; where ranges begin and end
    "braid_touched": (_UNSIGNED, [_ADDRESS, _UNSIGNED, _UNSIGNED, *[_ADDRESS] * 2]),
    "spec_bytes": (_UNSIGNED, []),
    "epoch_bytes": (_UNSIGNED, []),
    "placed_bytes": (_UNSIGNED, []),
    # count, numbers; lengths, both sides of rectangles, step; keys, step; backwards, images
    "permute": (
        None,
        [_UNSIGNED, *[_ADDRESS] * 4, _UNSIGNED, _ADDRESS, _UNSIGNED, _UNSIGNED, _ADDRESS],
    ),
    # windows; sizes, bounds, over; capacity, tolerance, candidates, last; order, counts, carry,
    # carried, scratch, used, reached; most waiting
    "pack_windows": (
        _INTEGER,
        [_INTEGER, *[_ADDRESS] * 3, *[_INTEGER] * 4, *[_ADDRESS] * 7, _INTEGER],
    ),
    "words_beside": (_INTEGER, []),
    # struct Walk of quota.c, scratch memory
    "walk_quota": (_INTEGER, [_ADDRESS, _ADDRESS]),
    "quota_rows": (_INTEGER, []),
    # checksum of what came before, bytes, how many
    "crc32c": (ctypes.c_uint32, [ctypes.c_uint32, _ADDRESS, _UNSIGNED]),
    "crc32c_by_table": (ctypes.c_uint32, [ctypes.c_uint32, _ADDRESS, _UNSIGNED]),
    "features": (_NUMBER, []),  # bits: 1 the instructions for checksums, 2 AVX2
    "handle_bus_errors": (_NUMBER, []),
    "lost_pages": (_INTEGER, []),
    "process": (None, [_ADDRESS]),
    # to, from, bytes
    "copy_mapped": (None, [_ADDRESS, _ADDRESS, _INTEGER]),
    # chunk, first page, bytes of the pages; bytes of the chunk, checksum or -1, advice
    "is_right": (_NUMBER, [_ADDRESS, _ADDRESS, *[_INTEGER] * 4]),
    # the table before the first; where an error number goes
    "worker_start": (_ADDRESS, [_ADDRESS, _ADDRESS]),
    "worker_wait": (_INTEGER, [_ADDRESS, _INTEGER]),
    "worker_stop": (None, [_ADDRESS]),
}
# These take about as long as handing over the interpreter's lock: they keep it.
_SHORT_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "braid_rows": _SIGNATURES["braid_rows"],
    "permute": _SIGNATURES["permute"],
    "worker_submit": (_INTEGER, [_ADDRESS, _INTEGER]),
    "worker_done": (_INTEGER, [_ADDRESS]),
}


class NativeLibraryError(ImportError):
    """The compiled part is missing, of other sources, or for another machine; the message says what
    to do.
    """


class NativeLibrary:
    """The functions of the library, without their prefix ``headrace_``.

    Attributes:
        calls: The functions; other threads run meanwhile.
        short_calls: Those that are used for little work, too, of at most ``short_rows`` rows; they
            keep the interpreter's lock.
        short_rows: Rows of a call during which other threads may wait for the interpreter.
    """

    short_rows = 1 << 14

    def __init__(self, path: Path = LIBRARY) -> None:
        _check_platform()
        if not path.exists():
            raise NativeLibraryError(
                f"headrace's compiled part, {path}, is missing. {build_command()}"
            )
        try:
            # 1. Two views of one library: the functions of the first release the interpreter's
            #    lock.
            self.calls = _declared(ctypes.CDLL(str(path)), _SIGNATURES)
            self.short_calls = _declared(ctypes.PyDLL(str(path)), _SHORT_SIGNATURES)
            # 2. The digest of the sources that it was compiled of.
            built_of = ctypes.c_char_p.in_dll(self.calls, "headrace_sources").value
        except (OSError, AttributeError, ValueError) as error:
            raise NativeLibraryError(
                f"headrace's compiled part, {path}, cannot be loaded: {error}. It runs on"
                f" {SUPPORTED}. {build_command()}"
            ) from error
        # 3. Signatures are only right for these sources.
        if built_of != sources_digest(FOLDER).encode():
            raise NativeLibraryError(
                f"headrace's compiled part, {path}, is of other C files than those beside it."
                f" {build_command()}"
            )


@cache
def native_library() -> NativeLibrary:
    """The library, loaded once.

    Raises:
        NativeLibraryError: it is missing, of other sources, or for another machine.
    """
    return NativeLibrary()


def sources_digest(folder: Path) -> str:
    """SHA-256 of the C files in a folder. ``build_native.py`` computes the same when it compiles
    them.
    """
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def build_command() -> str:
    """What to type to get the library, as a sentence."""
    script = FOLDER.parents[2] / "build_native.py"
    if script.exists():
        return f"Build it: {sys.executable} {script}"
    return f"Install it: {sys.executable} -m pip install --force-reinstall --no-deps headrace"


def _check_platform() -> None:
    machine = platform.machine()
    supported = (
        sys.platform in ("linux", "darwin")
        and machine in ("x86_64", "aarch64", "arm64")
        and sys.byteorder == "little"
        and ctypes.sizeof(ctypes.c_void_p) == 8
    )
    if not supported:
        platform_name = f"{machine} ({sys.byteorder}-endian) on {sys.platform}"
        raise NativeLibraryError(f"headrace does not run on {platform_name}: it needs {SUPPORTED}.")


def _declared(
    library: ctypes.CDLL, signatures: dict[str, tuple[object, list[object]]]
) -> ctypes.CDLL:
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"headrace_{name}")
        function.restype = result
        function.argtypes = arguments
        setattr(library, name, function)
    return library
