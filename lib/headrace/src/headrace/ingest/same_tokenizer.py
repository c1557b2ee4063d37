"""Whether caches are of one tokenizer, and of the one that a config names.

headrace's own caches keep a fingerprint of their tokenizer and its file. Levanter's keep a name, which says little: two
machines have the same tokenizer under different paths. So of such a cache the tokenizer that somebody names is
believed, unless the cache has ids that it does not have, or ends its documents with another token than the policy says.

Price: nothing; records are compared, no token is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.store import files
from headrace.store.levanter_layout import NAMED_ONLY, VOCABULARY_SAID

FILE_NAME = "tokenizer.json"
"""Name of a tokenizer's file, in the folders that people keep them in and in a cache."""


def named_only(record: Mapping[str, Any]) -> bool:
    """Whether a cache knows no more of its tokenizer than a name.

    Args:
        record: ``ledger.tokenizer`` of the cache.
    """
    return str(record.get("fingerprint")).startswith(NAMED_ONLY)


def check_same_record(mine: Mapping[str, Any], record: Mapping[str, Any], cache: str) -> None:
    """Refuses a cache that was built with another tokenizer or other special tokens.

    Args:
        mine: Record of the tokenizer.
        record: ``ledger.tokenizer`` of the cache.
        cache: Its path, for the message.

    Raises:
        ConfigError: they differ or, where a cache has a name only, cannot be the same.
    """
    if record["fingerprint"] == mine["fingerprint"]:
        return
    if named_only(record):
        _check_plausible(mine, record, cache)
        return
    keys = ("path", "vocab_size", "bos", "eos")
    changed = [f"{k} {record.get(k)!r} there, {mine[k]!r} here" for k in keys if record.get(k) != mine[k]]
    raise ConfigError(
        f"is not the tokenizer of {cache} ({'; '.join(changed) or 'another file of the same name and size'})",
        field="tokenizer",
        value=mine["path"],
        cure=f"Use the one it was built with (a copy is {files.join(cache, FILE_NAME)}), or build it again.",
    )


def check_one_tokenizer(records: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Refuses caches of several tokenizers.

    Args:
        records: Path and ``ledger.tokenizer`` of each cache, by the name of its component.

    Raises:
        ConfigError: two differ.
    """
    first_name, (_, first) = next(iter(records.items()))
    for name, (path, record) in records.items():
        if record.get("fingerprint") == first.get("fingerprint"):
            continue
        cure = "Caches of one mixture need one tokenizer and one EOS policy: build one of them again."
        if named_only(record) or named_only(first):
            cure = "Levanter's caches keep the name of theirs only. If it is one, say so: tokenizer: {path: FILE}."
        raise ConfigError(
            f"was built with another tokenizer than {first_name!r}",
            field=f"components.{name}.cache",
            value=path,
            cure=cure,
        )


def _check_plausible(mine: Mapping[str, Any], record: Mapping[str, Any], cache: str) -> None:
    said, ends = record.get(VOCABULARY_SAID), (record.get("eos_id"), mine.get("eos_id"))
    wrong: list[str] = []
    if said is not None and int(said) > int(mine["vocab_size"]):
        wrong.append(f"{said:,} ids there, {mine['vocab_size']:,} here")
    if None not in ends and ends[0] != ends[1]:
        here = f"documents end with {mine['eos']!r}, id {ends[1]} here"
        wrong.append(f"its first document ends with id {ends[0]}, {here}")
    if wrong:
        raise ConfigError(
            f"cannot be the tokenizer of {cache} ({'; '.join(wrong)})",
            field="tokenizer",
            value=mine["path"],
            cure=f"Name the one that it was built with ({record.get('path')!r}); with eos: none ends are not compared.",
        )
