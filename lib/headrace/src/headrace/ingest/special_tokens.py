"""Which special tokens stand around a document: the policy of a config, resolved to ids of a vocabulary.

``auto`` looks for the usual names among the tokenizer's special tokens, and only if that gives no single answer at
what a ``tokenizer_config.json`` beside the tokenizer declares (chat models declare their end of *turn* there, which
is not what ends a document). No guess is ever made: no answer is an error that lists the candidates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from headrace.errors import ConfigError, did_you_mean
from headrace.store import files

EOS_NAMES = (
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|end_of_text|>",
    "<|eos|>",
    "<|EOS|>",
    "<EOS>",
    "[EOS]",
    "<end_of_text>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
)
BOS_NAMES = (
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<|bos|>",
    "<BOS>",
    "[BOS]",
    "<｜begin▁of▁sentence｜>",
)


def declared_tokens(folder: str) -> dict[str, str]:
    """``bos`` and ``eos`` of a ``tokenizer_config.json`` beside the tokenizer, if there is one."""
    content = files.read_bytes(files.join(folder or ".", "tokenizer_config.json"))
    if content is None:
        return {}
    try:
        config = dict(json.loads(content))
    except (ValueError, TypeError):
        return {}  # it only ever settles a doubt; without it the doubt is an error that says what to do
    found: dict[str, str] = {}
    for role in ("bos", "eos"):
        token = config.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[role] = token
    return found


def resolve_special(
    role: str,
    wanted: str | None,
    special: list[str],
    usual: Sequence[str],
    find: Callable[[str], int | None],
    declared: str | None = None,
) -> tuple[str | None, int | None]:
    """The policy's token and its id.

    Args:
        role: ``bos`` or ``eos``, for messages.
        wanted: ``none`` or None, ``auto``, or a token.
        special: The tokenizer's special tokens.
        usual: Names that ``auto`` knows.
        find: The id of a token; None if there is none.
        declared: What a file beside the tokenizer declares.

    Raises:
        ConfigError: there is no such token, or ``auto`` finds none or several.

    Example:
        >>> resolve_special("eos", "auto", ["<pad>", "</s>"], EOS_NAMES, {"<pad>": 0, "</s>": 1}.get)
        ('</s>', 1)
    """
    if wanted is None or wanted == "none":
        return None, None
    if wanted == "auto":
        candidates = [t for t in special if t in usual]
        if len(candidates) != 1 and declared is not None and find(declared) is not None:
            candidates = [declared]
        if len(candidates) != 1:
            listed = ", ".join(repr(t) for t in (candidates or special)[:16])
            problem = f"finds several: {listed}" if candidates else f"finds none (special tokens: {listed or 'no one'})"
            raise ConfigError(problem, field=role, value="auto", cure=f"Choose: --{role} TOKEN, or --{role} none.")
        wanted = candidates[0]
    found = find(wanted)
    if found is None:
        raise ConfigError(
            "is not a token of this tokenizer", field=role, value=wanted, cure=did_you_mean(wanted, special)
        )
    return wanted, int(found)
