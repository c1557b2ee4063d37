"""How a run is made: caches, sets of documents, rows, orders and one mixture, with the count at
each node.

Nothing is computed here. Caches, rows, orders and what the run draws are those of
:class:`~headrace.analysis.resolved.ResolvedRun`, which ``config check`` asks as well; where the
tokens of a source go is its account.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.analysis.resolved import ResolvedRun
from headrace.data.phased import PhasedDataset
from headrace.data.token_seq import stored_dataset

_FIRST = np.zeros(1, np.int64)
LIMITS = ("max_epochs", "max_tokens", "max_share")


def run_tree(run: ResolvedRun) -> dict[str, Any]:
    """How a run is made, as JSON values.

    Returns:
        ``steps`` and ``tokens`` of the run, None if it has no known end; ``unit``; ``phases``, the
        first step and row length of each; ``batch_sizes``, by first step; ``stages``, the first
        step, name and weights of each mixture; ``learned``, the step and weights of those that a
        rule decided by losses; ``skipped_tokens`` of changes of the row length;
        ``sources`` by name, each with its ``cache``, ``documents_digest``, ``account``
        (:class:`~headrace.data.component.Account`), ``held_out``, ``rows``, ``order``, ``limits``,
        what the run has ``drawn`` of it, and what is ``erased`` of its rows from which step on:
        documents that were removed from its cache, whose tokens ``account`` still counts, because
        they keep their places.

    Example:
        >>> from headrace import ComponentConfig, LmDataConfig
        >>> web = ComponentConfig("caches/web", expected_tokens=2e6)
        >>> tree = run_tree(ResolvedRun.of(LmDataConfig({"web": web}, num_steps=20)))
        >>> tree["tokens"], tree["sources"]["web"]["order"]["kind"]
        (1310720, 'braid')
    """
    config = run.config
    accounts = config.accounts()
    erased = run.dataset.erasures if isinstance(run.dataset, PhasedDataset) else {}
    return {
        "steps": run.steps,
        "tokens": run.tokens,
        "unit": config.unit,
        "phases": [list(phase) for phase in config.phases],
        "batch_sizes": dict(run.dataset.batch_schedule.points),
        "stages": run.stages,
        "learned": [
            {"step": amendment.step, "weights": amendment.weights}
            for amendment in config.amendments
            if amendment.measured
        ],
        "skipped_tokens": {
            f"{change.component} at step {change.step}": change.skipped_tokens
            for change in run.dataset.changes
        },
        "sources": {
            name: {
                **_source(name, run),
                "account": accounts[name].to_dict(),
                "erased": [
                    {"step": step, "documents": one.documents, "tokens": one.tokens.total}
                    for step, one in erased.get(name, ())
                ],
            }
            for name in run.first.names
        },
    }


def _source(name: str, run: ResolvedRun) -> dict[str, Any]:
    """The cache, rows, order and draws of one source."""
    component = run.config.components[name]
    drawn = run.drawn.get(name)
    cache = _cache(name, run)
    number = run.first.names.index(name)
    rows = run.trained[name]
    split, _ = run.config.held_out.get(name, (None, ""))
    limits = {field: getattr(component, field) for field in LIMITS}
    return {
        "cache": cache,
        "documents_digest": stored_dataset(run.first.components[number]).documents_digest
        if cache["exists"]
        else None,
        "held_out": None if split is None else split.by,
        "rows": {
            "kind": "windows" if component.packing is None else "packs",
            "length": rows.seq_len,
            "rows": len(rows),
        },
        "order": run.orders[name]._asdict(),
        "limits": {field: value for field, value in limits.items() if value is not None},
        "drawn": {
            "weight": float(run.first.weights_at(_FIRST)[0, number]),
            "rows": drawn and drawn.rows,
            "tokens": drawn and drawn.tokens,
            "epochs": drawn and drawn.epochs,
        },
    }


def _cache(name: str, run: ResolvedRun) -> dict[str, Any]:
    """The caches of a source, a path for each member; planned ones have no documents yet."""
    cache = run.caches[name]
    exists = name not in run.planned.caches
    declared = run.config.components[name].caches
    return {
        "paths": [member.path for member in cache.members] if exists else declared,
        "exists": exists,
        "documents": cache.num_originals if exists else None,
        "tokens": cache.original_tokens,
    }
