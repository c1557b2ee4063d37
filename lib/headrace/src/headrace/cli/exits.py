"""How commands end: one line on standard error if something went wrong, and an exit status for
scripts.

====== ==========================================================================================
status meaning
====== ==========================================================================================
0      done; nothing wrong was found
1      done; something was found: damage, differences, a problem of a config
2      not done: a wrong option, config, cache or source; the problem and its cure are printed
3      not done: an unexpected error; please report it
130    interrupted (128 + the number of the signal, as in a shell)
====== ==========================================================================================

No traceback is shown unless ``--debug`` or ``HEADRACE_DEBUG=1`` asks for it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import PurePath
from typing import Any

import typer

from headrace.cli.shown import say
from headrace.errors import (
    ConfigError,
    HeadraceError,
    check_no_login,
    did_you_mean,
    printable,
    redact,
)

OK = 0
PROBLEM_FOUND = 1
REFUSED = 2
UNEXPECTED = 3
INTERRUPTED = 130
GROUPS = {
    "cache": "Look into finished token caches, check them, change them, copy them",
    "config": "Check a config, forecast its run, show it in full, find a mixture, translate",
    "run": "Follow a run: how it is made, where it is, what it sees, what changed",
}
"""Groups of commands, and what their commands do."""
EPILOG = (
    "Exit status 0: done; 1: something was found (damage, differences, a problem); 2: refused,"
    " with the reason; 3: unexpected error; 130: interrupted."
)
DEBUG = "HEADRACE_DEBUG"
COMPLETE = "_HEADRACE_COMPLETE"
_USAGE: Any = typer.BadParameter.__base__  # its name in typer changed between releases


def tell(app: typer.Typer) -> None:
    """Runs the command that was typed, and exits with its status."""
    if COMPLETE in os.environ:  # called by a shell's completion
        # its one home
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
    try:
        for word in sys.argv[1:]:
            check_no_login(word, "command line")
        status = app(standalone_mode=False)
    except _USAGE as error:
        status = _usage(error)
    except typer.Abort:
        status = INTERRUPTED
    except KeyboardInterrupt:
        status = _say("interrupted", "", INTERRUPTED)
    except HeadraceError as error:
        status = _say("error", str(_with_folder(error)), REFUSED)
    except BrokenPipeError:  # the reader of our output closed it, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = OK
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        cure = ". Make room, then run the same command again." if error.errno == ENOSPC else ""
        line = f"{named}{error.strerror or error}{cure}"
        status = _say("error", printable(redact(line)), REFUSED)
    except Exception as error:  # noqa: BLE001  (the last place that can report it in one line)
        text = " ".join(str(error).split())
        hint = f" (a bug in headrace: please report it with the output of {DEBUG}=1)"
        status = _say(
            "error", printable(redact(f"{type(error).__name__}: {text}{hint}")), UNEXPECTED
        )
    sys.exit(status if isinstance(status, int) else OK)


@contextmanager
def kept_when_interrupted() -> Iterator[None]:
    """Around a build: on Ctrl-C, reports that finished parts are kept, and ends the command."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            "interrupted: finished parts are kept; run the same command again to continue", err=True
        )
        raise typer.Exit(INTERRUPTED) from None


def _with_folder(error: HeadraceError) -> HeadraceError:
    """The error, with the folder to change to if a config, or the lock of a run, names caches
    relative to a folder above it.
    """
    if (error.field or "").rpartition(".")[2] != "cache" or not isinstance(error.value, str):
        return error
    above = [folder for word in sys.argv[1:] for folder in PurePath(word).parents]
    for folder in above if not os.path.exists(error.value) else []:
        if os.path.exists(folder / error.value):
            folder = shlex.quote(str(folder))
            cure = f"Paths in a config are relative to the current folder: cd {folder}"
            return error.but(cure=cure)
    return error


def say_all(wanted: bool) -> None:
    """``--debug``: sets ``HEADRACE_DEBUG``."""
    if wanted:
        os.environ[DEBUG] = "1"


def _say(what: str, text: str, status: int) -> int:
    from rich.console import Console
    from rich.text import Text

    if os.environ.get(DEBUG, "0") not in ("", "0") and text:
        traceback.print_exc()
    Console(stderr=True, soft_wrap=True).print(
        Text.assemble((what, "bold red"), " " if text else "", text)
    )
    return status


def _usage(error: Any) -> int:
    """Reports a command line that cannot be parsed, in one line, with the help to read."""
    message = error.format_message()
    if message.startswith("Usage:"):  # a group called without a command
        say(message, err=True)
        return REFUSED
    command = error.ctx.command_path if error.ctx is not None else " ".join(_typed_command())
    options: list[str] = getattr(getattr(error, "param", None), "opts", [])
    flag = max(options, key=len, default="")
    unknown = getattr(error, "option_name", "")
    if (value := _typed_value(options)) is not None:
        message = str(_wrong_value(flag, value, message))
    elif setting := next(
        (word for word in sys.argv if unknown and word.startswith(f"{unknown}=")), ""
    ):
        message = f"{message} Write settings without dashes: {setting.lstrip('-')}."
    return _say(
        "error",
        f"{' '.join(message.replace('Value error, ', '').split())} See: {command} --help",
        REFUSED,
    )


def _typed_command() -> list[str]:
    """The command that was typed, with its group, without its arguments."""
    depth = 2 if sys.argv[1:2] and sys.argv[1] in GROUPS else 1
    return ["headrace", *(word for word in sys.argv[1 : depth + 1] if not word.startswith("-"))]


def _typed_value(options: list[str]) -> str | None:
    """The value typed for an option; None if there is none, or it is not an option."""
    for word, following in zip(sys.argv, [*sys.argv[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("-") and name in options:
            return value if equals else following
    return None


def _wrong_value(flag: str, value: str, message: str) -> ConfigError:
    """Rewrites typer's message about a wrong value, which pydantic words."""
    problem = message.partition("': ")[2]
    if choices := re.findall(r"'([^']+)'", problem.partition("is not one of")[2]):
        return ConfigError(
            "is not a choice here", field=flag, value=value, cure=did_you_mean(value, choices)
        )
    if bound := re.search(r"(greater|less) than or equal to (\S+)", problem):
        least = "least" if bound[1] == "greater" else "most"
        return ConfigError(
            f"must be at {least} {bound[2]}",
            field=flag,
            value=value,
            cure=f"Give {bound[2]}, for example.",
        )
    kind = "whole number" if "integer" in problem else "number"
    return ConfigError(f"is not a {kind}", field=flag, value=value, cure=f"Give a {kind}.")
