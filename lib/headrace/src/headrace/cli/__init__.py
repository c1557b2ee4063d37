"""The command line: one file for each command, or for a few related commands.

It must start fast, so command modules import what they need inside their functions, and a command's
options are built only when that command is called; ``scripts/house.py --only startup`` measures
this. exits.py shows errors and sets the exit status.
"""

from __future__ import annotations

import sys

REACHED_WITHIN_S = 5.0
"""Seconds in which a store has to accept a command's first connection."""


def main() -> None:
    """Entry point of ``headrace``."""
    if sys.argv[1:] == ["--version"]:  # scripts call this most often, and it needs no parser
        from headrace import __version__

        print(f"headrace {__version__}")
        return
    from headrace.cli.application import application
    from headrace.cli.exits import tell
    from headrace.store import reach

    with reach.expected(REACHED_WITHIN_S):
        tell(application())
