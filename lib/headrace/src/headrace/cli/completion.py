"""``headrace completion``: the script that makes a shell complete commands, options and choices."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    """Whose script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def command(shell: Annotated[Shell, typer.Argument(help="The shell.", metavar="bash|zsh|fish")]) -> None:
    """Print the script that makes a shell complete commands, options, choices and file names.

    For example:

        headrace completion bash > ~/.local/share/bash-completion/completions/headrace

        headrace completion zsh > ~/.zfunc/_headrace

        headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]  (its one home)

    typer.echo(get_completion_script(prog_name="headrace", complete_var="_HEADRACE_COMPLETE", shell=shell.value))
