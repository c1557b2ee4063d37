"""The build hook: compiles the C files for every wheel and every editable install."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import build_native


class NativeBuildHook(BuildHookInterface[Any]):
    """Compiles, and tags the wheel with the platform alone: the library knows nothing of Python."""

    def dependencies(self) -> list[str]:
        """Asks for ziglang only where no compiler is, or where a wheel for another platform is
        asked for.
        """
        cross = "HEADRACE_WHEEL_PLATFORM" in os.environ
        return ["ziglang"] if cross or build_native.system_compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # Python imports the sources: the library lies beside them
            platform = build_native.build()
        else:  # it may be for another machine: the sources stay as they are
            self._folder = tempfile.TemporaryDirectory()
            library = Path(self._folder.name, build_native.LIBRARY.name)
            platform = build_native.build(library)
            build_data["force_include"][str(library)] = f"headrace/native/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
