"""Arguments and options that several commands have, and how what was typed for them is read."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.state import RunManifest


class ChunkLayout(StrEnum):
    """Whose chunks caches to come will have."""

    headrace = "headrace"
    levanter = "levanter"


Config = Annotated[str, typer.Argument(help="YAML file of an LmDataConfig.", metavar="CONFIG")]
Settings = Annotated[
    list[str] | None, typer.Argument(help="Settings over the config, e.g. batch_size=512.", metavar="[NAME=VALUE]...")
]
CacheOrConfig = Annotated[str, typer.Argument(help="Folder or URL of a cache, or a config.", metavar="CACHE|RUN.yaml")]
Hosts = Annotated[
    str | None, typer.Option(help="Numbers of hosts to forecast for; 1,8,64 by default.", metavar="N,N,...")
]
Tokens = Annotated[
    list[str] | None,
    typer.Option(help="Size of a source, in place of expected_tokens (repeatable).", metavar="NAME=TOKENS"),
]
Declared = Annotated[bool, typer.Option("--declared", help="Go by declared sizes, without looking for those caches.")]
Layout = Annotated[ChunkLayout, typer.Option(help="Whose chunks caches to come will have.")]
SameRun = Annotated[
    str | None, typer.Option(help="Folder of a run: make sure that the config is the run's.", metavar="FOLDER")
]
IdLeaf = Annotated[str, typer.Option(help="The leaf that holds the ids of documents.", metavar="NAME")]
Decoder = Annotated[
    str | None, typer.Option("--tokenizer", help="Decode with this tokenizer, if a cache has none.", metavar="FILE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def parse_hosts(text: str | None) -> list[int] | None:
    """Numbers of hosts.

    Raises:
        ConfigError: one is no number.

    Example:
        >>> parse_hosts("1,8,64")
        [1, 8, 64]
    """
    from headrace.errors import ConfigError

    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError("is not a list of numbers", field="--hosts", value=text, cure="E.g. 1,8,64.") from None


def parse_sizes(items: Sequence[str] | None) -> dict[str, int]:
    """Tokens of sources by name.

    Raises:
        ConfigError: one is no number of tokens that there can be.

    Example:
        >>> parse_sizes(["web=1e12", "code=2e11"])
        {'web': 1000000000000, 'code': 200000000000}
    """
    return dict(_parse_size(item) for item in items or [])


def _parse_size(item: str) -> tuple[str, int]:
    from headrace.errors import ConfigError

    name, _, number = item.partition("=")
    try:
        size = float(number)
    except ValueError:
        raise ConfigError("is not a size", field="--tokens", value=item, cure="E.g. web=1e12.") from None
    if not 1 <= size < 1 << 60:
        raise ConfigError(
            "is no number of tokens that there can be", field="--tokens", value=item, cure="E.g. web=1e12."
        )
    return name, int(size)


def load_run(folder: str) -> RunManifest:
    """The manifest of the run in a folder.

    Raises:
        ConfigError: there is none.
    """
    from headrace.errors import ConfigError
    from headrace.state import RunManifest

    found = RunManifest.load(folder)
    if found is None:
        raise ConfigError(
            "holds no run: there is no manifest.json",
            field="--run",
            value=folder,
            cure="Name the folder that open_run was given, or leave --run out.",
        )
    return found
