"""``headrace config from-levanter``: translates a data config of Levanter's or Marin's."""

from __future__ import annotations

import json
import threading
import time
from typing import Annotated

import typer

from headrace.cli.config import put, token_count
from headrace.cli.exits import PROBLEM_FOUND
from headrace.cli.shown import say
from headrace.errors import format_count

LOOK_S = 30.0


def command(
    config: Annotated[
        str,
        typer.Argument(
            help="YAML file of a Levanter data config, or of a whole training config.",
            metavar="FILE",
        ),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File to write.", metavar="FILE")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with status 1 if something has no counterpart.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print config and notes as JSON.")
    ] = False,
    look: Annotated[
        bool,
        typer.Option("--look", help="Check which caches exist, and therefore which must be built."),
    ] = False,
) -> None:
    """Translate a Levanter or Marin data config, with a note on everything that differs.

    A note names each feature that headrace does not have. Only FILE and the files that it includes
    are read. With --look, the ledgers of the caches are read too, for at most 30 seconds: they show
    whether a tokenizer is needed.

    For example:

        headrace config from-levanter llama.yaml -o run.yaml

        headrace config from-levanter marin.yaml --json --strict --look
    """
    from headrace.config.lm_data import LmDataConfig
    from headrace.config.parsing import decode, read_mapping
    from headrace_levanter.translation.translate import translate

    raw = read_mapping(config, foreign=True)
    translation = translate(raw)
    if look:
        named = [one["cache"] for one in translation.config["components"].values()]
        caches = [
            path for cache in named for path in ([cache] if isinstance(cache, str) else cache)
        ]
        translation = translate(raw, sizes=_sizes_within(caches, LOOK_S).get)
    decode(LmDataConfig, translation.config)  # checks that the result loads
    put(
        json.dumps(translation.to_dict(), indent=2)
        if as_json
        else translation.to_yaml().rstrip("\n"),
        output,
        config,
    )
    missing = [note for note in translation.notes if note.kind == "missing"]
    if output is not None:
        for note in translation.notes:
            say(str(note), err=True)
    if strict and missing:
        raise typer.Exit(PROBLEM_FOUND)


def _sizes_within(caches: list[str], seconds: float) -> dict[str, int | None]:
    """Tokens of each cache that can be opened in time; reports the caches it looks at and those
    that did not answer.
    """
    say(
        f"look: reading the ledgers of {format_count(len(caches), 'cache')} for at most"
        f" {seconds:g} s: {', '.join(caches)}",
        err=True,
    )
    sizes: dict[str, int | None] = {}

    def look_at(cache: str) -> None:
        sizes[cache] = token_count(cache)

    # Daemons: a cache that never answers must not delay the end of the program.
    threads = [threading.Thread(target=look_at, args=(cache,), daemon=True) for cache in caches]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    answered = dict(sizes)
    if len(answered) < len(caches):
        late = [cache for cache in caches if cache not in answered]
        say(f"look: no answer within {seconds:g} s, treated as absent: {', '.join(late)}", err=True)
    return answered
