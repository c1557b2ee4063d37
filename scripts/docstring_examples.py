"""For mkdocs: the section ``Example:`` of a docstring is code, as griffe knows it of
``Examples:``, and ``:class:`~headrace.config.LmDataConfig``` is shown as ``LmDataConfig``.
"""

import re
from typing import Any

import griffe  # pyright: ignore[reportMissingImports]  # of the docs group


class DocstringExamples(griffe.Extension):  # pyright: ignore[reportUntypedBaseClass]
    """Renames the section before docstrings are parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each object."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            text = re.sub(r":[a-z]+:`~[\s\w.]*?(\w+)`", r"`\1`", text)
            obj.docstring.value = re.sub(r":[a-z]+:(`[^`]+`)", r"\1", text)
