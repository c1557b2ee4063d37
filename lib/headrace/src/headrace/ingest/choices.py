"""The choices of sources and builds, defined once for configs and the command line, which reads
only this module to answer ``--help``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from headrace.batch.masks import TurnMode

Format: TypeAlias = Literal[
    "jsonl", "text", "parquet", "arrow", "warc", "hf", "megatron", "nmoe", "python"
]
FormatOrAuto: TypeAlias = Literal["auto", Format]
Kind: TypeAlias = Literal["text", "tokens", "chat", "preference", "prompts"]
KindOrAuto: TypeAlias = Literal["auto", Kind]
Mask: TypeAlias = Literal["generation", "roles", "all", TurnMode]
OnBadLine: TypeAlias = Literal["error", "skip"]
SpecialTokensInText: TypeAlias = Literal["token", "text", "error"]
Engine: TypeAlias = Literal["auto", "pool", "inline", "ray", "zephyr"]
TokenizerEngine: TypeAlias = Literal["auto", "tokenizers", "gigatoken"]
TOKENIZER_ENGINES = get_args(TokenizerEngine)
