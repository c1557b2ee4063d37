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
        text = self.help or ""
        examples = [
            i for i, part in enumerate(text.split("\n\n")) if part.strip().startswith("headrace ")
        ]
        if not ctx.meta.get(_ALL) and len(examples) > _EXAMPLES:
            short = [
                part for i, part in enumerate(text.split("\n\n")) if i not in examples[_EXAMPLES:]
            ]
            text = "\n\n".join(short)
        full_help = self.help
        self.help = text
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = full_help

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, options and panels."""
        panels: dict[str | None, list[Any]] = {None: []}
        arguments = []
        for param, record in self.records(ctx):
            if param.param_type_name == "argument":
                arguments.append(record)
            else:
                panels.setdefault(getattr(param, "rich_help_panel", None), []).append(
                    (param, record)
                )
        with formatter.section("Arguments"):
            formatter.write_dl(arguments)
        with formatter.section("Options"):
            formatter.write_dl([record for _, record in panels.pop(None)])
        if ctx.meta.get(_ALL):
            for title, options in panels.items():
                with formatter.section(str(title)):
                    formatter.write_dl([record for _, record in options])
        else:
            with formatter.section(f"More options (described by {ctx.command_path} --help-all)"):
                rows = [
                    (str(title), "  ".join(max(o.opts, key=len) for o, _ in of))
                    for title, of in panels.items()
                ]
                formatter.write_dl(rows)


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
