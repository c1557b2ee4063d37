"""The result of a translation: a config, and a note on each difference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from headrace.errors import redact


@dataclass(frozen=True)
class Note:
    """One difference.

    Attributes:
        field: Levanter's field, dotted.
        kind: ``differs``: it exists, but works differently; ``missing``: there is no counterpart.
        text: What differs, and what to write.
        decides: Whether it changes the tokens trained on or their weights, so that the drop-in
            refuses it.
    """

    field: str
    kind: Literal["differs", "missing"]
    text: str
    decides: bool = False

    def __str__(self) -> str:
        return redact(f"{self.kind} {self.field}: {self.text}")


@dataclass
class Translation:
    """A translated config.

    Attributes:
        config: In the form that :func:`headrace.config.lm_data.load_config` reads.
        notes: All differences.
    """

    config: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: list[Note] = field(default_factory=list[Note])

    def differs(self, path: str, text: str, *, decides: bool = False) -> None:
        """Adds a note that something works differently."""
        self.notes.append(Note(path, "differs", text, decides))

    def missing(self, path: str, text: str, *, decides: bool = False) -> None:
        """Adds a note that something has no counterpart."""
        self.notes.append(Note(path, "missing", text, decides))

    def to_yaml(self) -> str:
        """The config as YAML, after the notes as comments."""
        lines = [f"# {note}" for note in self.notes]
        head = ["# Translated from a Levanter config. Differences:", *lines] if lines else []
        return "\n".join([*head, yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)])

    def to_dict(self) -> dict[str, Any]:
        """Config and notes as JSON values."""
        return {"config": self.config, "notes": [vars(note) for note in self.notes]}
