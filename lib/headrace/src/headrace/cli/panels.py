"""Help of commands. For a command with many options, it describes the most common ones and lists
the others by name, in panels.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from headrace.cli.shown import say

_EXAMPLES = 2


class PlainCommand(TyperCommand):
    """A command whose help shows no Python types: ``CONFIG``, ``--steps N``, ``--layout
    headrace|levanter``.
    """

    def records(self, ctx: Any) -> list[tuple[Any, tuple[str, str]]]:
        """Its visible parameters, each with its entry of the help."""
        pairs = ((param, param.get_help_record(ctx)) for param in self.get_params(ctx))
        return [
            (
                param,
                (plain_type(record[0], argument=param.param_type_name == "argument"), record[1]),
            )
            for param, record in pairs
            if record is not None
        ]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As in typer, but without braces and with only one pair of brackets."""
        pieces = (re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx))
        return [re.sub(r"^\[(\[.*\]\.\.\.)\]\.\.\.$", r"\1", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            lines = [record for param, record in self.records(ctx) if param.param_type_name == kind]
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


class PanelCommand(PlainCommand):
    """A command whose options have panels (``rich_help_panel``); only those without one are
    described.

    Its option :data:`HelpAll` shows all options and examples in full.
    """

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Writes the docstring, with all examples only for :data:`HelpAll`."""
        full_help = self.help
        if not ctx.meta.get(_ALL):
            paragraphs = (full_help or "").split("\n\n")
            examples = [text for text in paragraphs if text.strip().startswith("headrace ")]
            left_out = examples[_EXAMPLES:]
            self.help = "\n\n".join(text for text in paragraphs if text not in left_out)
        super().format_help_text(ctx, formatter)
        self.help = full_help

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, options and panels."""
        described: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        panels: dict[str, list[str]] = {}
        for param, record in self.records(ctx):
            panel = getattr(param, "rich_help_panel", None)
            if param.param_type_name == "argument":
                described["Arguments"].append(record)
            elif panel is None or ctx.meta.get(_ALL):
                described.setdefault(panel or "Options", []).append(record)
            else:
                panels.setdefault(panel, []).append(max(param.opts, key=len))
        for title, records in described.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if panels:
            with formatter.section(f"More options (described by {ctx.command_path} --help-all)"):
                formatter.write_dl([(title, "  ".join(names)) for title, names in panels.items()])


_ALL = "headrace.help_all"


def _show_all(ctx: typer.Context, shows: bool) -> None:
    if shows and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        say(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="Describe all options, and show more examples.",
        is_eager=True,
        callback=_show_all,
    ),
]
