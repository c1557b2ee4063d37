"""The command line: one file a command, each with a function ``command``.

``headrace --help`` must answer at once, so command modules import what they need inside the function; errors that
headrace raises on purpose are printed as one message and end with status 2.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.errors import HeadraceError

_HELP = "Data for language-model training in JAX: build token caches, look into them, see it all work."
COMMANDS = ("demo", "build", "inspect", "cat", "verify", "diff", "consolidate", "convert", "simulate")


def application() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_HELP)(_options)
    for name in COMMANDS:
        app.command(name)(importlib.import_module(f"headrace.cli.{name}").command)
    return app


def main() -> None:
    """Entry point of ``headrace``."""
    try:
        application()()
    except HeadraceError as error:
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("error", "bold red"), " ", str(error)))
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of ``headrace`` itself."""
