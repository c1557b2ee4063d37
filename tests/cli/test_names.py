"""Names of commands: those that were typed without their group, and those that pages and the library
print.
"""

import re
from pathlib import Path

from headrace.cli.application import COMMANDS

REPOSITORY = Path(__file__).parents[2]
IN_GROUPS = {name.split()[-1] for name in COMMANDS if " " in name}


def test_a_command_that_is_typed_without_its_group_is_named_in_full(headrace):
    refused = headrace("diff", "a", "b")
    assert (refused.code, refused.out) == (2, "")
    cure = "Type headrace cache diff or headrace run diff."
    assert refused.err == f"error command = 'diff': is in a group. {cure}\n"
    for name in IN_GROUPS:
        assert f" {name}." in headrace(name).err


def test_nothing_that_we_print_or_write_lacks_its_group():
    typed = re.compile(rf"(?:headrace|{{program}}) (?:{'|'.join(sorted(IN_GROUPS))}) +[^\s]")
    files = [
        file
        for folder in ("lib", "scripts", "experiments", "docs")
        for suffix in ("py", "md", "ipynb", "sh")
        for file in (REPOSITORY / folder).rglob(f"*.{suffix}")
    ]
    assert len(files) > 300
    lines = [
        f"{file.relative_to(REPOSITORY)}: {line.strip()}"
        for file in [REPOSITORY / "README.md", *files]
        for line in file.read_text().splitlines()
        if typed.search(line)
    ]
    assert lines == []


def test_a_name_that_never_was_is_a_slip(headrace):
    assert "Did you mean 'inspect'?" in headrace("cache", "inspekt", "a").err
