"""The typer application: its options and its commands, each built when it is called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace.cli.exits import EPILOG, say_all
from headrace.cli.panels import PanelCommand, PlainCommand

COMMANDS = {  # module.function
    "demo": "demo.command",
    "init": "init.command",
    "build": "build.command",
    "reshuffle": "reshuffle.command",
    "inspect": "inspect.command",
    "cat": "cat.command",
    "pack": "pack.command",
    "remove": "remove.command",
    "verify": "verify.command",
    "diff": "diff.command",
    "consolidate": "convert.consolidate",
    "convert": "convert.command",
    "upgrade": "upgrade.command",
    "simulate": "simulate.command",
    "icc": "simulate.icc",
    "report": "report.command",
    "where": "where.command",
    "completion": "options.completion",
}
GROUPS = ("config",)
PANELS = {
    "Getting started": ("demo", "init"),
    "Caches": ("build", "inspect", "verify", "reshuffle", "remove", "pack", "diff"),
    "Cache formats": ("consolidate", "convert", "upgrade"),
    "Runs": ("config", "simulate", "icc", "cat", "where", "report"),
    "Shell": ("completion",),
}
"""All commands, in the groups of the help."""
WITH_PANELS = ("build",)
"""Commands whose help shows options in groups."""

_HELP = "Data for language-model training in JAX: build and inspect token caches, forecast and follow runs."
_SETTINGS: Any = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "add_completion": False,  # `headrace completion` does it
    "rich_markup_mode": None,  # plain help: importing rich's takes .3 s
    # typer parses a flag without a default with pydantic, whose import takes .2 s
    "context_settings": {"help_option_names": ["-h", "--help"], "default_map": {"help": False}},
}


def application() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(name="headrace", cls=_Group, **_SETTINGS)
    app.callback(help=_HELP, epilog=EPILOG)(_options)
    return app


class _Commands(MutableMapping[str, Any]):
    """Commands by name. Typer builds each from its function's signature when it is looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made and (name in COMMANDS or name in GROUPS):
            app = typer.Typer(**_SETTINGS)
            if name in COMMANDS:
                app.command(name, cls=PanelCommand if name in WITH_PANELS else PlainCommand)(
                    _function_of(name)
                )
            else:
                context = _SETTINGS["context_settings"]
                app.add_typer(
                    _module_of(name).app, name=name, help=_summary(name), context_settings=context
                )
            command: Any = typer.main.get_command(app)
            self._made[name] = command if name in COMMANDS else command.commands[name]
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter((*COMMANDS, *GROUPS))

    def __len__(self) -> int:
        return len(COMMANDS) + len(GROUPS)


class _Group(TyperGroup):
    """``headrace`` itself: its help shows the first paragraph of each docstring, without building commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _summary(name)) for name in names])


def _module_of(name: str) -> Any:
    return importlib.import_module(f"headrace.cli.{COMMANDS.get(name, name).partition('.')[0]}")


def _function_of(name: str) -> Callable[..., Any]:
    return getattr(_module_of(name), COMMANDS[name].partition(".")[2])


def _summary(name: str) -> str:
    """The first paragraph of a command's docstring."""
    if name in GROUPS:
        return _module_of(name).HELP
    return " ".join((inspect.getdoc(_function_of(name)) or "").split("\n\n")[0].split())


def _show_version(shows: bool) -> None:
    if shows:
        from headrace import __version__

        typer.echo(f"headrace {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Show where an error comes from; also HEADRACE_DEBUG=1.",
            callback=say_all,
        ),
    ] = False,
) -> None:
    """Options of ``headrace`` itself."""
