"""The command line: one file a command, each with a function ``command``.

``headrace --help`` must answer at once, so command modules import what they need inside the function; how errors
are said and which status they end with is in exits.py.
"""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from headrace.cli.exits import EPILOG, say_all, tell

_HELP = "Data for language-model training in JAX: build token caches, look into them, see it all work."
COMMANDS = (
    "demo",
    "build",
    "inspect",
    "cat",
    "pack",
    "verify",
    "diff",
    "consolidate",
    "convert",
    "simulate",
    "icc",
    "report",
    "where",
    "completion",
)
GROUPS = ("config",)


def application() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,  # `headrace completion` is the one way
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_HELP, epilog=EPILOG)(_options)
    for name in COMMANDS:
        app.command(name)(importlib.import_module(f"headrace.cli.{name}").command)
    for name in GROUPS:
        group = importlib.import_module(f"headrace.cli.{name}")
        app.add_typer(group.app, name=name, help=group.HELP)
    return app


def main() -> None:
    """Entry point of ``headrace``."""
    tell(application())


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show where an error comes from; also HEADRACE_DEBUG=1.", callback=say_all),
    ] = False,
) -> None:
    """Options of ``headrace`` itself."""
