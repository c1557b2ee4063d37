"""What commands say of the snapshots of a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.store.cache import TokenCache


def snapshot_facts(cache: TokenCache) -> dict[str, Any]:
    """The snapshots of a cache, and what is removed as of the newest, as JSON values.

    Each snapshot has its number, the documents and tokens that were appended for it, the documents
    that were removed for it, and the documents that are there as of it.
    """
    from headrace.data.documents import stored_documents, token_ranges
    from headrace.store.snapshots import Change, Member

    opened = cache.snapshots[0]
    removed = cache.removed()
    first = Change(cache.members[0].as_member)
    snapshots: list[dict[str, Any]] = []
    there = 0
    for number, change in enumerate((first, *opened.changes), start=1):
        appended = change.appended or Member()
        removed_documents = sum(stop - start for start, stop in change.removed)
        there += appended.documents - removed_documents
        snapshots.append(
            {
                "snapshot": number,
                "appended_documents": appended.documents,
                "appended_tokens": appended.tokens,
                "removed_documents": removed_documents,
                "documents": there,
            }
        )
    return {
        "snapshot": opened.number,
        "snapshots": snapshots,
        "members": opened.paths,
        "removed_documents": removed.total,
        "removed_tokens": token_ranges(cache, stored_documents(cache, removed)).total,
    }


def to_use_it(snapshot: int) -> str:
    """How a run comes to use a new snapshot.

    Example:
        >>> print(to_use_it(3))
        New runs use snapshot 3. To move a run in progress to it (as it trains: --step STEP --live):
        headrace run amend RUN CONFIG --newest-caches
    """
    move = "headrace run amend RUN CONFIG --newest-caches"
    return (
        f"New runs use snapshot {snapshot}. To move a run in progress to it (as it trains: --step"
        f" STEP --live):\n{move}"
    )
