"""``headrace build --append``: settings that were not typed are taken from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from headrace.cli.exits import kept_when_interrupted
from headrace.cli.options import typed_options
from headrace.errors import ConfigError
from headrace.ingest.choices import TokenizerEngine

if TYPE_CHECKING:
    from headrace.ingest.build import BuildReport
    from headrace.ingest.shuffle_plan import ReshuffleConfig
    from headrace.ingest.source import SourceConfig

_SOURCE: dict[str, tuple[str, ...]] = {
    "format": ("format",),
    "text_field": ("text_field",),
    "on_bad_line": ("on_bad_line",),
    "extensions": ("extension",),
    "kind": ("kind",),
    "fields": ("field",),
    "leaves": ("leaf",),
    "chat": ("chat_template", "chat_variable", "mask", "mask_role"),
    "fim": ("fim", "fim_rate", "fim_spm_rate", "fim_seed"),
    "max_record_bytes": ("max_record_bytes",),
    "special_tokens_in_text": ("special_tokens_in_text",),
}
"""Fields of a source, and the parameters of the command that set them."""
_TOKENIZER = {"path": "tokenizer", "bos": "bos", "eos": "eos", "engine": "tokenizer_engine"}
_OF_CACHE = ("dtype", "chunk_tokens", "compression", "part_bytes")


Encoder: TypeAlias = tuple[str | None, str | None, str | None, TokenizerEngine]
"""Tokenizer, tokens before and after each document, and encoding library, as the command receives
them.
"""


def append_as_typed(
    context: typer.Context,
    source: SourceConfig,
    encoder: Encoder,
    output: str,
    repair: bool,
    how: ReshuffleConfig | None,
    options: dict[str, Any],
) -> BuildReport:
    """Appends to a cache; settings that the command line leaves out are those of the cache.

    Raises:
        ConfigError: --repair was given; otherwise as for
            :func:`~headrace.ingest.append.append_cache`.
    """
    from headrace.ingest.append import append_cache

    if repair:
        cure = (
            "Leave it out: headrace cache verify CACHE --repair repairs a cache and everything"
            " appended to it."
        )
        raise ConfigError(
            "cannot be combined with --append", field="--repair", value=True, cure=cure
        )
    typed = typed_options(context)
    reading = {
        field: getattr(source, field)
        for field, names in _SOURCE.items()
        if typed.intersection(names)
    }
    tokens = {
        field: text
        for (field, name), text in zip(_TOKENIZER.items(), encoder, strict=True)
        if name in typed
    }
    settings = {
        name: value for name, value in options.items() if name in typed or name not in _OF_CACHE
    }
    with kept_when_interrupted():
        return append_cache(
            source.paths, output, source=reading, tokenizer=tokens, how=how, **settings
        )
