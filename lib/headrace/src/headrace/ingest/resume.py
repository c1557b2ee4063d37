"""Whether an interrupted build may go on with the settings of now: pure comparisons of two ledgers.

What was begun and what is wanted must agree in everything that decides a byte of the result. Paths as they were typed
may differ (``corpus`` or ``corpus/*.jsonl``) as long as they name the same files; so may the place of the tokenizer's
file, as long as it is the same tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.errors import PlanMismatchError, SourceError
from headrace.ingest.source_hash import as_now, is_changed
from headrace.store import files
from headrace.store.ledger import Ledger

_SHOWN = 4


def check_same_build(output: str, begun: Ledger, wanted: Ledger) -> None:
    """Refuses to go on with other settings than those that a build was begun with.

    Args:
        output: The cache, for the message.
        begun: Its ledger.
        wanted: The ledger that the settings of now would begin with.

    Raises:
        PlanMismatchError: they differ; every difference is named.
    """
    found = differences(begun, wanted)
    if found:
        raise PlanMismatchError(
            "was begun with other settings: " + "; ".join(found),
            field="output",
            value=output,
            cure="Give the settings that it was begun with, choose another output, or pass --restart to delete it and"
            " begin anew.",
        )


def differences(begun: Ledger, wanted: Ledger) -> list[str]:
    """What differs between two plans, one phrase each; empty if a build of one can go on as the other."""
    found = _different_tokenizer(begun.tokenizer, wanted.tokenizer)
    found += _different_values(begun.layout, wanted.layout)
    found += _different_values(dict(begun.metadata.get("source", {})), dict(wanted.metadata["source"]))
    if begun.metadata.get("template") != wanted.metadata.get("template"):
        found.append("the chat template differs")
    numbers = ("part_bytes", "ingest_version")
    found += _different_values({k: begun.metadata.get(k) for k in numbers}, {k: wanted.metadata[k] for k in numbers})
    before, now = ([str(s["path"]) for s in ledger.sources] for ledger in (begun, wanted))
    for what, paths in (("added", set(now) - set(before)), ("missing", set(before) - set(now))):
        if paths:
            found.append(f"{len(paths)} source file{'s' if len(paths) > 1 else ''} {what} ({_some(paths)})")
    return found


def changed_sources(
    output: str, begun: list[dict[str, Any]], now: list[dict[str, Any]], done: Collection[str]
) -> list[dict[str, Any]]:
    """The plan of an interrupted build with the source files as they are now.

    Args:
        output: The cache, for the message.
        begun: Source records of its ledger.
        now: Records of the same files, as listed now.
        done: Names of the parts that are complete.

    Returns:
        The records of ``begun``, in the same parts, with the sizes, versions and hashes of now.

    Raises:
        SourceError: a file changed whose part is complete.
    """
    current = {str(s["path"]): s for s in now}
    updated = [as_now(s, current[s["path"]]) for s in begun]
    stale = [s for s in begun if is_changed(s, current[s["path"]]) and s["part"] in done]
    if stale:
        parts = sorted({str(s["part"]) for s in stale})
        folders = _some({files.join(output, "parts", p) for p in parts})
        raise SourceError(
            "changed after its part was built",
            field=_some({str(s["path"]) for s in stale}),
            cure=f"To build everything anew pass --restart; to rebuild only what changed, delete {folders} and run the"
            " same command again.",
        )
    return updated


def _different_tokenizer(begun: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    if begun["fingerprint"] == wanted["fingerprint"]:
        return []
    found = _different_values(begun, wanted, ("bos", "eos", "vocab_size"))
    if not found:
        found = [f"tokenizer {begun['path']!r} there, {wanted['path']!r} now (their contents differ)"]
    elif begun["path"] != wanted["path"]:
        found.insert(0, f"tokenizer {begun['path']!r} there, {wanted['path']!r} now")
    return found


def _different_values(begun: dict[str, Any], wanted: dict[str, Any], keys: Collection[str] | None = None) -> list[str]:
    keys = sorted({*begun, *wanted}) if keys is None else keys
    return [
        f"{k} {_shown(begun.get(k))} there, {_shown(wanted.get(k))} now" for k in keys if begun.get(k) != wanted.get(k)
    ]


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)


def _some(names: Collection[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")
