"""An interrupted build: how far it got, and the command that finishes it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from headrace.store.ledger import Ledger


def unfinished(cache: str, ledger: Ledger) -> dict[str, Any]:
    """How far an interrupted build got, and the command that finishes it."""
    from headrace.store.ledger import read_part_record

    names = sorted({str(s["part"]) for s in ledger.sources})
    done = [r for name in names if (r := read_part_record(cache, name)) is not None]
    return {
        "path": cache,
        "finished": False,
        "parts": len(names),
        "parts_finished": len(done),
        "documents": sum(r.documents for r in done),
        "tokens": sum(r.tokens for r in done),
        "command": build_command(cache, ledger),
    }


def build_command(cache: str, ledger: Ledger) -> str:
    """The command that a cache is built with, from its ledger."""
    source, layout, tokenizer = ledger.metadata["source"], ledger.layout, ledger.tokenizer
    words = ["headrace", "build", *ledger.metadata["paths"], "--output", cache, "--tokenizer", tokenizer["path"]]
    words += ["--eos", tokenizer["eos"] or "none"]
    for flag, value, default in (
        ("--bos", tokenizer["bos"] or "none", "none"),
        ("--format", source["format"], "auto"),
        ("--text-field", source["text_field"], "text"),
        ("--on-bad-line", source["on_bad_line"], "error"),
        ("--chunk-tokens", str(layout["chunk_elements"]), "65536"),
        ("--compression", layout["compression"], "none"),
        ("--kind", source["kind"], "auto"),
        ("--chat-template", source["chat"]["template"] or "", ""),
        ("--mask", source["chat"]["mask"], "generation"),
        ("--part-bytes", str(ledger.metadata["part_bytes"]), "67108864"),
    ):
        words += [flag, value] if value != default else []
    for flag, values in (
        ("--extension", source["extensions"]),
        ("--mask-role", source["chat"]["roles"] if source["chat"]["mask"] == "roles" else []),
        ("--field", [f"{name}={field}" for name, field in source["fields"].items()]),
        ("--leaf", [f"{name}={leaf_text(leaf)}" for name, leaf in source["leaves"].items()]),
    ):
        words += [word for value in values for word in (flag, value)]
    if fim := source.get("fim"):  # caches that were begun before there was such a thing do not say
        words += ["--fim", fim["prefix"], fim["suffix"], fim["middle"], "--fim-rate", str(fim["rate"])]
        words += ["--fim-spm-rate", str(fim["spm_rate"]), "--fim-seed", str(fim["seed"])]
    return shlex.join([*words, "--dtype", layout["dtype"]])


def leaf_text(leaf: dict[str, str]) -> str:
    """A leaf as it is written after its name, ``FIELD:DTYPE[:KIND]``."""
    kind = "" if leaf["kind"] == "auto" else f":{leaf['kind']}"
    return f"{leaf['field']}:{leaf['dtype']}{kind}"


def show_unfinished(console: Console, state: dict[str, Any]) -> None:
    """Prints what :func:`unfinished` found."""
    console.print(
        Text.assemble(
            (state["path"], "bold"),
            (" is unfinished", "yellow"),
            f": {state['parts_finished']:,} of {state['parts']:,} parts are done, {state['documents']:,} documents,"
            f" {state['tokens']:,} tokens.",
        )
    )
    console.print(Text(f"To finish it: {state['command']}"), soft_wrap=True)
