"""The command line: a file for each command, or for a few that belong together.

It must answer at once. So command modules import what they need inside their functions, and a command's options are
made when that command is asked for. ``scripts/house.py --only startup`` measures it. How errors are shown, and which
status they end with, is in exits.py.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``headrace``."""
    if sys.argv[1:] == ["--version"]:  # what scripts ask for most, and all that needs no parser
        from headrace import __version__

        print(f"headrace {__version__}")
        return
    from headrace.cli.application import application
    from headrace.cli.exits import tell

    tell(application())
