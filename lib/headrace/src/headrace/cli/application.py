"""The typer application: its options and its commands, each built when it is called."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace import extensions
from headrace.cli.exits import COMPLETE, EPILOG, GROUPS, say_all
from headrace.cli.shown import say
from headrace.errors import ConfigError, check_choice

COMMANDS = {  # as typed: module.function
    "init": "init.command",
    "demo": "demo.command",
    "build": "build.command",
    "cache inspect": "inspect.command",
    "cache verify": "verify.command",
    "cache diff": "diff.command",
    "cache remove": "remove.command",
    "cache reshuffle": "reshuffle.command",
    "cache pack": "pack.command",
    "cache consolidate": "consolidate.command",
    "config check": "config.check",
    "config simulate": "simulate.command",
    "config show": "config.show",
    "config sweep": "sweep.sweep",
    "config fit": "sweep.fit",
    "run tree": "tree.command",
    "run where": "where.command",
    "run cat": "cat.command",
    "run diff": "run_amend.diff",
    "run amend": "run_amend.amend",
    "run blame": "blame.command",
    "run report": "report.command",
}

_HELP = (
    "Data for language-model training in JAX: build and inspect token caches, forecast and follow"
    " runs."
)
_SETTINGS: Any = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # plain help: importing rich's takes .3 s
    # typer parses a flag without a default with pydantic, whose import takes .2 s
    "context_settings": {"help_option_names": ["-h", "--help"], "default_map": {"help": False}},
}


def application() -> typer.Typer:
    """The typer application with all commands."""
    app = _typer(name="headrace", cls=_Group)
    app.callback(help=_HELP, epilog=EPILOG)(_options)
    return app


def _typer(**settings: Any) -> typer.Typer:
    # `headrace --completion` completes
    return typer.Typer(
        **_SETTINGS, pretty_exceptions_enable=False, add_completion=False, **settings
    )


def _names_in(group: str) -> list[str]:
    """The commands of a group, or of ``headrace`` itself, which has the groups, too."""
    prefix = f"{group} " if group else ""
    full_names = [*COMMANDS, *extensions.installed_names(extensions.COMMANDS)]
    inner = [name.removeprefix(prefix) for name in full_names if name.startswith(prefix)]
    names = [name for name in inner if " " not in name]
    return names if group else [*names, *GROUPS]


class _Group(TyperGroup):
    """``headrace`` or a group of its commands. The help shows the first paragraph of each
    docstring, without building commands: typer builds one from its function's signature when it is
    asked for.
    """

    def __init__(self, *, group: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self.group = group
        self.commands: Any = dict.fromkeys(_names_in(group))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups = [] if self.group else [*GROUPS]
        names = [name for name in self.commands if name not in groups]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(self._full_name(name))) for name in names])
        if groups:
            with formatter.section("Groups of commands"):
                formatter.write_dl(
                    (name, f"{GROUPS[name]}: {', '.join(_names_in(name))}.") for name in groups
                )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if not self.group and cmd_name in GROUPS:
            return _Group(group=cmd_name, name=cmd_name, help=f"{GROUPS[cmd_name]}.", **_SETTINGS)
        full_name = self._full_name(cmd_name)
        known_names = (*COMMANDS, *extensions.names_of(extensions.COMMANDS))
        if " " in cmd_name or full_name not in known_names:
            return None
        app = _typer()
        # of an extension that is not installed, the error says how to install it
        app.command(cmd_name, cls=PlainCommand)(_function_of(full_name))
        return typer.main.get_command(app)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed, and its arguments."""
        in_groups = [name for name in COMMANDS if name.endswith(f" {args[0]}")]
        if in_groups and args[0] not in self.commands and not ctx.resilient_parsing:
            cure = f"Type headrace {' or headrace '.join(in_groups)}."
            raise ConfigError("is in a group", field="command", value=args[0], cure=cure)
        return super().resolve_command(ctx, args)

    def _full_name(self, name: str) -> str:
        return f"{self.group} {name}".strip()


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


def _function_of(name: str) -> Callable[..., Any]:
    if name not in COMMANDS:
        return extensions.load_extension(extensions.COMMANDS, name, "command")
    module, _, function = COMMANDS[name].partition(".")
    return getattr(importlib.import_module(f"headrace.cli.{module}"), function)


def _summary(name: str) -> str:
    """The first paragraph of a command's docstring."""
    return " ".join((inspect.getdoc(_function_of(name)) or "").split("\n\n")[0].split())


def _show_version(shows: bool) -> None:
    if shows:
        from headrace import __version__

        say(f"headrace {__version__}")
        raise typer.Exit


def _show_completion(shows: bool) -> None:
    if shows:
        # its one home
        from typer.completion import (
            get_completion_script,  # pyright: ignore[reportPrivateImportUsage]
        )

        shell = os.path.basename(os.environ.get("SHELL", ""))
        check_choice("SHELL", shell, ("bash", "zsh", "fish"), "has no completion here")
        say(get_completion_script(prog_name="headrace", complete_var=COMPLETE, shell=shell))
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
    completion: Annotated[
        bool,
        typer.Option(
            "--completion",
            help="Print the script with which your shell (SHELL: bash, zsh or fish) completes"
            " commands, and exit.",
            callback=_show_completion,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options of ``headrace`` itself."""
