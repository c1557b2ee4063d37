"""Makes the kind of a source."""

from __future__ import annotations

from typing import Any

from headrace.errors import ConfigError, did_you_mean
from headrace.ingest.base_tokenizer import Tokenizer
from headrace.ingest.chat_template import (
    ChatTemplate,
    find_template,
)
from headrace.ingest.choices import Kind
from headrace.ingest.kinds.chat import ChatKind
from headrace.ingest.kinds.kind import DocumentKind
from headrace.ingest.kinds.preference import PreferenceKind
from headrace.ingest.kinds.prompts import PromptsKind
from headrace.ingest.kinds.text import TextKind
from headrace.ingest.kinds.token_ids import TokensKind
from headrace.ingest.source import (
    ChatConfig,
    SourceConfig,
)
from headrace.ingest.tokenize import TokenizerConfig, tokenizer_folder

_KINDS: dict[Kind, type[DocumentKind]] = {
    "text": TextKind,
    "tokens": TokensKind,
    "chat": ChatKind,
    "preference": PreferenceKind,
    "prompts": PromptsKind,
}


def template_of(
    source: SourceConfig, kind: Kind, tokenizer: TokenizerConfig
) -> dict[str, Any] | None:
    """The chat template, if one is needed; prompts and pairs may be plain texts,
    which need none.
    """
    if kind not in ("chat", "preference", "prompts"):
        return None
    try:
        return find_template(source.chat, tokenizer_folder(tokenizer))
    except ConfigError:
        if kind == "chat" or source.chat.template is not None:
            raise
        return None


def make_kind(
    config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: dict[str, Any] | None
) -> DocumentKind:
    """Makes the kind of a source.

    Raises:
        ConfigError: the mask needs marks that the template does not have, or there is no template.
    """
    chat = (
        None
        if template is None
        else ChatTemplate(template, config.chat.variables, config.max_record_bytes)
    )
    if chat is not None:
        _check_variables(config.chat, chat)
    if kind == "chat" and chat is None:
        raise ConfigError("is needed for conversations", field="chat.template", value=None)
    if (
        kind == "chat"
        and chat is not None
        and config.chat.mask == "generation"
        and not chat.has_marks
    ):
        raise ConfigError(
            "does not mark the model's text with {% generation %}, so what to train on cannot be"
            " told",
            field="chat.template",
            cure="Choose by roles: --mask roles --mask-role assistant (each turn of a role is"
            " rendered apart), or train"
            " on everything: --mask all.",
        )
    return _KINDS[kind](config, kind, tokenizer, chat)


def _check_variables(config: ChatConfig, chat: ChatTemplate) -> None:
    """Raises ConfigError if the template does not read a variable that it is given."""
    for name, value in config.variables.items():
        if name not in chat.variables_read:
            raise ConfigError(
                "is no variable of the chat template",
                field=f"chat.variables.{name}",
                value=value,
                cure=f"{did_you_mean(name, chat.variables_read)} Or leave it out.",
            )
