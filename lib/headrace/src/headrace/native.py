"""Assembles functions from LLVM's assembly language for the machine that runs them.

``llvmlite``, which comes with ``headrace[native]``, has LLVM: there is no need for a compiler, nor for a wheel for each
platform. Price: 0.1 s to load LLVM, 0.03 s for each file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module, resources
from typing import Any, TypeVar

from headrace.errors import install_command

_LOG = logging.getLogger(__name__)
_ENGINES: dict[
    tuple[str, str], Any
] = {}  # their memory holds the functions, so none is ever dropped
_T = TypeVar("_T")


def assemble(package: str, file: str, features: Sequence[str] = ()) -> Any:
    """The execution engine of the functions in a file of a package: one for all calls, from any thread.

    Raises:
        Exception: ``llvmlite`` is missing or cannot assemble the file (it raises anything); the processor lacks one of
            the ``features``, without which LLVM would end the process.
    """
    if (known := _ENGINES.get((package, file))) is not None:
        return known
    llvm: Any = import_module("llvmlite.binding")
    try:
        available = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this platform
        available = llvm.FeatureMap()
    if lacking := [feature for feature in features if not available.get(feature)]:
        raise RuntimeError(f"the processor lacks {', '.join(lacking)}")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(resources.files(package).joinpath(file).read_text())
    module.verify()
    # A virtual machine may lack features of its processor
    machine = llvm.Target.from_default_triple().create_target_machine(
        llvm.get_host_cpu_name(), available.flatten()
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return _ENGINES.setdefault((package, file), engine)  # another thread may have been faster


def assembled(make: Callable[[], _T], consequence: str) -> _T | None:
    """The result of ``make``; None, and a message that says the ``consequence``, where nothing can be assembled."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001  # llvmlite and the library that it loads raise anything
        cure = (
            install_command("headrace[native]")
            if isinstance(error, ModuleNotFoundError)
            else str(error)
        )
        _LOG.info("%s: %s", consequence, cure)
        return None
