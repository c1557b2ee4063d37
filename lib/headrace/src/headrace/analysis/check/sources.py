"""The first look at the sources of a config whose caches are not built yet, as findings of ``config
check``.
"""

from __future__ import annotations

from headrace.analysis.check.findings import Finding
from headrace.errors import HeadraceError, SourceError
from headrace.ingest.first_look import in_words, with_same_fault


def source_findings(faults: dict[str, list[HeadraceError]]) -> list[Finding]:
    """A finding for each fault of a component's source, with all files that have it. A file that
    cannot be reached is a warning: other machines may reach it.
    """
    return [
        Finding(
            "problem" if isinstance(alike[0], SourceError) else "warning",
            "bad_source",
            f"components.{name}.source",
            in_words(alike),
            alike[0].cure or "",
        )
        for name, some in faults.items()
        for alike in with_same_fault(some)
    ]
