"""Commands by their names of 0.2, for the error that says what to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from headrace.cli.options import CONFIG_SUFFIXES, lock_at
from headrace.errors import ConfigError
from headrace.store.files import is_local

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
"""The same where neither a config, nor a run, nor a step of one is typed."""
_OF_STEP = ("--step", "--row", "--run")


def refuse_moved(old_name: str, arguments: Sequence[str]) -> None:
    """Raises ConfigError, with the line to type, for a command that has another name now."""
    names = dict(MOVED)
    if any(word.endswith(CONFIG_SUFFIXES) for word in arguments):
        names |= OF_CONFIG
    elif old_name in OF_CACHE and not any(map(_is_of_run, arguments)):
        names |= OF_CACHE
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


def _is_of_run(word: str) -> bool:
    """Whether a word on the command line is a run on this machine, or an option about a step of
    one. Nothing is asked of a store.
    """
    return word.startswith(_OF_STEP) or (is_local(word) and lock_at(word) is not None)
