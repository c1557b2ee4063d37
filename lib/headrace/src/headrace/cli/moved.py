"""Commands by their names of 0.2, for the error that says what to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from headrace.cli.options import CONFIG_SUFFIXES
from headrace.errors import ConfigError

MOVED = {
    "inspect": "cache inspect",
    "verify": "cache verify",
    "remove": "cache remove",
    "reshuffle": "cache reshuffle",
    "pack": "cache pack",
    "diff": "cache diff",
    "consolidate": "cache consolidate",
    "convert": "cache convert",
    "icc": "cache inspect --icc",
    "simulate": "config simulate",
    "config schema": "config show --schema",
    "where": "run where",
    "cat": "run cat",
    "report": "run report",
    "completion": "--completion",
}
OF_CONFIG = {"inspect": "run tree", "diff": "run diff"}
"""The same where a config is typed: these two were of caches and of runs."""
OF_CACHE = {"cat": "cache inspect"}
"""The same where neither a config nor a step of a run is typed."""
_OF_STEP = ("--step", "--row", "--run")


def refuse_moved(old_name: str, arguments: Sequence[str]) -> None:
    """Raises ConfigError, with the line to type, for a command that has another name now."""
    with_config = any(word.endswith(CONFIG_SUFFIXES) for word in arguments)
    with_step = any(word.startswith(_OF_STEP) for word in arguments)
    names = MOVED | (OF_CONFIG if with_config else {} if with_step else OF_CACHE)
    if old_name in names:
        if old_name == "completion":  # which takes the shell from the environment now
            arguments = ()
        line = shlex.join(["headrace", *names[old_name].split(), *arguments])
        raise ConfigError(
            f"is called {names[old_name]} now",
            field="command",
            value=old_name,
            cure=f"Type: {line}",
        )
