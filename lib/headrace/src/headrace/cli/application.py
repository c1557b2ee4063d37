"""The typer application: its options and its commands, each built when it is called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace import extensions
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
    "consolidate": "consolidate.command",
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
    "Cache formats": ("consolidate", "convert"),
    "Runs": ("config", "simulate", "icc", "cat", "where", "report"),
    "Shell": ("completion",),
}
"""Commands in the groups of the help. Those of packages that are not installed are left out of it,
and those that no group names come last.
"""
WITH_PANELS = ("build",)
"""Commands whose help shows options in groups."""

_HELP = (
    "Data for language-model training in JAX: build and inspect token caches, forecast and follow"
    " runs."
)
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
        if name not in self._made and name in list(self):
            app = typer.Typer(**_SETTINGS)
            if name not in GROUPS:
                app.command(name, cls=PanelCommand if name in WITH_PANELS else PlainCommand)(
                    _function_of(name)
                )
            else:
                context = _SETTINGS["context_settings"]
                group = importlib.import_module(f"headrace.cli.{name}").app
                for inner in _extensions_in(name):
                    command = _extension(f"{name} {inner}")
                    group.command(inner, cls=PlainCommand)(command)
                app.add_typer(group, name=name, help=_summary(name), context_settings=context)
            made: Any = typer.main.get_command(app)
            self._made[name] = made.commands[name] if name in GROUPS else made
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter((*COMMANDS, *GROUPS, *_extensions_in("")))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Group(TyperGroup):
    """``headrace`` itself: its help shows the first paragraph of each docstring, without building
    commands.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        usable = list(self.commands)
        in_panels = {name for names in PANELS.values() for name in names}
        others = tuple(name for name in usable if name not in in_panels)
        for title, names in {**PANELS, "Other packages": others}.items():
            summaries = [(name, _summary(name)) for name in names if name in usable]
            if summaries:
                with formatter.section(title):
                    formatter.write_dl(summaries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in extensions.names_of(extensions.COMMANDS):
            _extension(cmd_name)  # the cure, if its package is not installed
        return super().get_command(ctx, cmd_name)


def _extensions_in(group: str) -> list[str]:
    """Commands that installed packages add to a group; to ``headrace`` itself, if the group is
    empty.
    """
    names = extensions.installed_names(extensions.COMMANDS)
    split = [name.rpartition(" ") for name in names]
    return [command for prefix, _, command in split if prefix == group]


def _extension(name: str) -> Callable[..., Any]:
    return extensions.load_extension(extensions.COMMANDS, name, "command")


def _function_of(name: str) -> Callable[..., Any]:
    if name not in COMMANDS:
        return _extension(name)
    module, _, function = COMMANDS[name].partition(".")
    return getattr(importlib.import_module(f"headrace.cli.{module}"), function)


def _summary(name: str) -> str:
    """The first paragraph of a command's docstring."""
    if name in GROUPS:
        return importlib.import_module(f"headrace.cli.{name}").HELP
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
