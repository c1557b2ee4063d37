"""Builds the caches of a config from the sources that its components name, after a first look at
all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.config.component import ComponentConfig, named_in_config
from headrace.errors import ConfigError, HeadraceError
from headrace.ingest.build import build_cache
from headrace.ingest.first_look import faults_of_sources, refuse_faults
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig
from headrace.store.layouts import find_layout
from headrace.store.lease import end_lease_of_gone
from headrace.store.ledger import is_finished, ledger_state
from headrace.store.missing import build_cure

_FIELD = r"--field (\w+)=(\w+(?:\.\w+)*)"
_AS_FIELDS = (
    (r"--text-field (\w+(?:\.\w+)*)", r"text_field: \1"),
    (r"--text-field", "text_field"),
    (r"--on-bad-line skip", "on_bad_line: skip"),
    (r"--format", "format"),
    (r"--kind (text|tokens|chat|preference|prompts)", r"kind: \1"),
    (r"--kind", "kind"),
    (r"--max-record-bytes", "max_record_bytes"),
    (r"--chat-template FILE", "chat.template: FILE"),
    (r"--chat-variable (\S+)=([\w-]+)", r"chat.variables: {\1: \2}"),
)
"""Options of ``headrace build``, and the fields of a source that say the same."""


def build_caches(
    components: Mapping[str, ComponentConfig],
    tokenizer: TokenizerConfig | None,
    *,
    progress: bool,
) -> None:
    """Builds missing caches that have a source, and finishes unfinished ones: see
    ``LmDataConfig.build_caches``.
    """
    sources: list[tuple[str, SourceConfig, list[str]]] = []
    for name, component in components.items():
        if component.source is not None:
            sources.append((name, component.source, _unbuilt(component)))
        elif not component.replicas:  # a copy is not built
            _check_there(name, _unbuilt(component))
    tokenizer = tokenizer or TokenizerConfig()
    with named_in_config():
        faults = _faults({name: source for name, source, paths in sources if paths}, tokenizer)
        refuse_faults([fault for some in faults.values() for fault in some])
        for _, source, paths in sources:
            for path in paths:
                build_cache(source, tokenizer, path, progress=progress, first_look=False)
    for component in components.values():
        if component.source is not None:
            for path in component.caches:
                end_lease_of_gone(path)  # of a build that was killed when all was written


def source_faults(
    components: Mapping[str, ComponentConfig], tokenizer: TokenizerConfig | None
) -> dict[str, list[HeadraceError]]:
    """Looks at the sources of components whose caches are not built: by component, an error for
    each file that cannot be built from, with cures for a config.

    Raises:
        ConfigError: a setting does not fit a source, or the tokenizer cannot be loaded.
        CacheError: a store cannot be reached.
    """
    sources = {
        name: component.source
        for name, component in components.items()
        if component.source is not None and _unbuilt(component)
    }
    with named_in_config():
        return _faults(sources, tokenizer or TokenizerConfig())


def in_config(fault: HeadraceError, component: str) -> HeadraceError:
    """An error about a component's source, with the cure for a config instead of a command line.

    Example:
        >>> from headrace.errors import SourceError
        >>> cure = (
        ...     "Say --field messages=chat. Or leave them out: --on-bad-line skip (in Python: x)."
        ... )
        >>> in_config(SourceError("is bad", field="a.jsonl", cure=cure), "web").cure
        'Say components.web.source.fields: {messages: chat}. Or leave them out:
        components.web.source.on_bad_line: skip.'
    """
    path = f"components.{component}.source"
    cure = re.sub(r" \(in Python: [^)]*\)", "", fault.cure or "")
    cure = re.sub(rf"{_FIELD}(?: {_FIELD})*", lambda match: _fields_in(match[0], path), cure)
    for option, field in _AS_FIELDS:
        cure = re.sub(rf"{option}\b", rf"{path}.{field}", cure)
    return fault.but(field=path if fault.field == "source" else fault.field, cure=cure)


def _fields_in(options: str, path: str) -> str:
    pairs = ", ".join(f"{role}: {field}" for role, field in re.findall(_FIELD, options))
    return f"{path}.fields: {{{pairs}}}"


def _faults(
    sources: dict[str, SourceConfig], tokenizer: TokenizerConfig
) -> dict[str, list[HeadraceError]]:
    faults_per_source = faults_of_sources([(source, tokenizer) for source in sources.values()])
    return {
        name: [in_config(fault, name) for fault in faults]
        for name, faults in zip(sources, faults_per_source, strict=True)
        if faults
    }


def _unbuilt(component: ComponentConfig) -> list[str]:
    """The caches of a component that are not there, or not finished."""
    if component.format is not None:
        return []
    return [path for path in component.caches if not is_finished(path) and not find_layout(path)]


def _check_there(name: str, paths: list[str]) -> None:
    """Raises ConfigError for the first cache that does not exist and has no source."""
    for path in paths:
        # Opening one that was begun by hand tells how to finish it.
        if ledger_state(path) is None:
            raise ConfigError(
                "does not exist, and there is no source to build it from",
                field=f"components.{name}.cache",
                value=path,
                cure=f"Add components.{name}.source. {build_cure('SOURCE', path)}",
            )
