"""The help of a command of many options: those that most calls need in full, the others by name, in panels."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_EXAMPLES = 2


class PanelCommand(TyperCommand):
    """A command whose options have panels (``rich_help_panel``); those without one are shown in full.

    Its option :data:`HelpAll` shows all of them, and all examples.
    """

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The docstring; all examples only if all is asked for."""
        text = self.help or ""
        examples = [i for i, part in enumerate(text.split("\n\n")) if part.strip().startswith("headrace ")]
        if not ctx.meta.get(_ALL) and len(examples) > _EXAMPLES:
            short = [part for i, part in enumerate(text.split("\n\n")) if i not in examples[_EXAMPLES:]]
            text = "\n\n".join(short)
        full_help, self.help = self.help, text
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = full_help

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, options, panels."""
        panels: dict[str | None, list[Any]] = {None: []}
        arguments = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and param.param_type_name == "argument":
                arguments.append(record)
            elif record is not None:
                panels.setdefault(getattr(param, "rich_help_panel", None), []).append((param, record))
        with formatter.section("Arguments"):
            formatter.write_dl(arguments)
        with formatter.section("Options"):
            formatter.write_dl([record for _, record in panels.pop(None)])
        if ctx.meta.get(_ALL):
            for title, options in panels.items():
                with formatter.section(str(title)):
                    formatter.write_dl([record for _, record in options])
        else:
            with formatter.section(f"More options (in full: {ctx.command_path} --help-all)"):
                rows = [(str(title), "  ".join(max(o.opts, key=len) for o, _ in of)) for title, of in panels.items()]
                formatter.write_dl(rows)


_ALL = "headrace.help_all"


def _show_all(ctx: typer.Context, shows: bool) -> None:
    if shows and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show all options, and more examples.", is_eager=True, callback=_show_all),
]
