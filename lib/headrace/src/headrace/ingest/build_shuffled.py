"""``build_shuffled``: from source files to a shuffled store, in one command.

The plain cache is built in ``unshuffled/`` in the output folder with
:func:`~headrace.ingest.build.build_cache`, then shuffled into the output
(:mod:`headrace.ingest.reshuffle`), and deleted. Each of the three steps can be resumed.

Invariant: the parts are those of building and shuffling in two commands. Price: on the output's
disk, temporarily three times the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from msgspec import structs

from headrace.errors import CacheError, PlanMismatchError, SourceError
from headrace.ingest.build import BuildOptions, BuildPlan, BuildReport, plan_build, report_of
from headrace.ingest.engines import PLAIN_FOLDER, sole_builder
from headrace.ingest.plan import check_same_build, cure_of_begun, is_changed
from headrace.ingest.reshuffle import Reshuffling, clear_shuffled
from headrace.ingest.shuffle_plan import ReshuffleConfig, ReshuffleCost, sizes_of
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.lease import remove_tree
from headrace.store.ledger import SHUFFLED, Ledger, is_finished


def build_shuffled(
    source: SourceConfig,
    tokenizer: TokenizerConfig,
    output: str,
    how: ReshuffleConfig,
    *,
    announce: Callable[[ReshuffleCost], None] | None = None,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Builds a shuffled token cache, or finishes an interrupted build with the same arguments.

    Args:
        source: Where the documents come from.
        tokenizer: How they become ids.
        output: Folder or URL of the cache.
        how: Seed and limits of the shuffle.
        announce: Called with the cost of the shuffle, once the plain cache is built.
        options: As for :func:`~headrace.ingest.build.build_cache`; ``part_bytes`` is that of the
            plain cache.

    Returns:
        A report with the counters of the plain cache.

    Raises:
        SourceError: as for :func:`~headrace.ingest.build.build_cache`.
        ConfigError: a setting is invalid.
        PlanMismatchError: the folder was started with other settings.
        CacheError: the output contains something else, is being written, has no room, or cannot be
            written.

    Example:
        >>> import pathlib, tempfile
        >>> from headrace.store import open_cache
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("a.txt", "b.txt"):
        ...         _ = pathlib.Path(folder, name).write_text(name)
        ...     source, out = SourceConfig([f"{folder}/*.txt"]), f"{folder}/cache"
        ...     _ = build_shuffled(
        ...         source, TokenizerConfig("bytes"), out, ReshuffleConfig(7), progress=False
        ...     )
        ...     open_cache(out).shuffle
        DocumentShuffle(documents=2, seed=7, unit=1)
    """
    output = str(output)
    files.check_writable(output)
    if is_finished(output) and not options.get("restart"):
        options["first_look"] = False  # nothing is read of the files
    plan = plan_build(source, tokenizer, files.join(output, PLAIN_FOLDER), **options)
    return build_and_shuffle(plan, output, how, announce)


def build_and_shuffle(
    plan: BuildPlan,
    output: str,
    how: ReshuffleConfig,
    announce: Callable[[ReshuffleCost], None] | None = None,
) -> BuildReport:
    """Does what is left to do; ``plan``: of the plain cache in the output."""
    plain = plan.job.root
    with sole_builder(output, but=PLAIN_FOLDER) as (held_lease, old_ledger):
        if old_ledger is not None and plan.restart:
            clear_shuffled(output, old_ledger)
            old_ledger = None
        if old_ledger is not None:
            _check_same(output, old_ledger, how, plan.ledger)
        if old_ledger is None or not old_ledger.finished:
            report = plan.build()
            sizes = sizes_of(TokenCache.open_member(plain), how)
            if announce is not None:
                announce(sizes.cost)
            Reshuffling(sizes, output, None, plan.work, held_lease, old_ledger).run()
        else:
            report = report_of(output, old_ledger.parts, {})
        remove_tree(plain)
    return replace(report, path=output, seconds=time.monotonic() - plan.began)


def _check_same(output: str, old_ledger: Ledger, how: ReshuffleConfig, wanted: Ledger) -> None:
    """Raises PlanMismatchError if the interrupted build has other settings, SourceError if a source
    has changed.
    """
    shuffled = old_ledger.metadata.get(SHUFFLED)
    if shuffled is None or shuffled["cache"] is not None:
        cure = "Choose a folder that is new or empty."
        raise CacheError("holds another cache", field="output", value=output, cure=cure)
    if shuffled["seed"] != how.seed:
        raise PlanMismatchError(
            f"was old_ledger with another seed: {shuffled['seed']} there, {how.seed} now",
            field="output",
            value=output,
            cure=cure_of_begun(output, "seed"),
        )
    check_same_build(
        output, structs.replace(old_ledger, sources=shuffled["sources"]), wanted, old_ledger.parts
    )
    current = {str(s["path"]): s for s in wanted.sources}
    changed = [
        str(s["path"]) for s in shuffled["sources"] if is_changed(s, current[str(s["path"])])
    ]
    if changed:
        cure = "To build everything anew pass --restart."
        raise SourceError("changed after the cache was built", field=changed[0], cure=cure)
