"""Help of commands: arguments, options and, for a command with many, further options by theme."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose help shows no Python types: ``CONFIG``, ``--steps N``, ``--layout
    headrace|levanter``.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As in typer, but without braces and with only one pair of brackets."""
        pieces = (re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx))
        return [re.sub(r"^\[(\[.*\]\.\.\.)\]\.\.\.$", r"\1", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options, those of a panel (``rich_help_panel``) in a section."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        params: list[Any] = self.get_params(ctx)
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None:
                is_argument = param.param_type_name == "argument"
                title = "Arguments" if is_argument else param.rich_help_panel or "Options"
                line = (plain_type(record[0], argument=is_argument), record[1])
                sections.setdefault(title, []).append(line)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def plain_type(name: str, *, argument: bool) -> str:
    """A parameter's name in the help, with a word for its values in place of a Python type.

    Example:
        >>> (
        ...     plain_type("CONFIG <str>", argument=True),
        ...     plain_type("--steps <int range>", argument=False),
        ... )
        ('CONFIG', '--steps N')
        >>> plain_type("--layout <headrace|levanter>", argument=False)
        '--layout headrace|levanter'
    """
    if argument:
        return re.sub(r" <.*>$", "", name)
    words = {
        "str": "TEXT",
        "int": "N",
        "int range": "N",
        "float": "X",
        "float range": "X",
        "path": "PATH",
    }
    return re.sub(r"<([^<>]+)>$", lambda match: words.get(match[1], match[1]), name)
