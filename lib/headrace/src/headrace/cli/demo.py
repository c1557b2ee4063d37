"""``headrace demo``: trains a language model on Python's standard library."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.exits import PROBLEM_FOUND
from headrace.cli.options import check_local_folder
from headrace.errors import ConfigError, install_command

_EXTRA = "optax"  # what the demo needs beyond headrace itself


def command(
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for everything that the demo writes: new, empty, or of an earlier demo."
        ),
    ] = Path("headrace-demo"),
    steps: Annotated[
        int | None, typer.Option(help="Training steps; 240, or 40 with --quick.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Less text and a smaller model: about 15 seconds.")
    ] = False,
) -> None:
    """Train a small language model on Python's standard library, stop it, and resume it.

    Nothing is downloaded. Builds three token caches (code, docs, tests), mixes them by a schedule,
    trains on several CPU devices, stops in the middle, and resumes from the checkpoint on half of
    the devices with exactly the same batches. Takes a minute and a half on two cores.

    For example:

        headrace demo

        headrace demo --quick --output /tmp/headrace-demo
    """
    from rich.console import Console

    check_local_folder(output)
    if importlib.util.find_spec(_EXTRA) is None:
        raise ConfigError(
            f"needs {_EXTRA}, which is not installed",
            field="demo",
            cure=install_command("headrace[demo]"),
        )
    from headrace.demo.settings import FULL, QUICK, DemoSettings

    scale = QUICK if quick else FULL
    settings = DemoSettings(output, scale.steps if steps is None else steps, scale)

    from headrace.demo.run import run_demo  # needs the extra, and brings jax

    if not run_demo(settings, Console()):
        raise typer.Exit(PROBLEM_FOUND)
