"""The command line: one file a command, each with a function ``command``.

``headrace --help`` must answer at once, so command modules import what they need inside the function; errors that
headrace raises on purpose are printed as one message and end with status 2, Ctrl-C with 130.
"""

from __future__ import annotations

import importlib
import sys

import typer
from rich.console import Console

from headrace.errors import HeadraceError

COMMANDS = ("demo", "build", "inspect", "simulate")
INTERRUPTED = 130


def application() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(
        name="headrace",
        help="Data for language-model training in JAX: build token caches, look into them, see it all work.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_version)
    for name in COMMANDS:
        app.command(name)(importlib.import_module(f"headrace.cli.{name}").command)
    return app


def main() -> None:
    """Entry point of ``headrace``."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        application()()
    except HeadraceError as error:
        errors.print(f"[bold red]error[/] [default]{_escaped(str(error))}[/]")
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("interrupted: the same command goes on from here")
        sys.exit(INTERRUPTED)


def _version(
    version: bool = typer.Option(False, "--version", help="Show the version and leave.", is_eager=True),
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"headrace {installed('headrace')}")
        raise typer.Exit


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
