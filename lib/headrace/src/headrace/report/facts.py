"""The content of a report: the plan, the measurements, and where the data comes from.

The plan is computed from the config and the ledgers of its caches; the measurements are read from
the logs in the run's folder. Either works without the other.

Price: that of ``headrace config check`` and of :mod:`headrace.report.plan_figures`; a second or two
for most runs.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from headrace.analysis.check.findings import Finding, findings
from headrace.analysis.check.plan import RunPlan
from headrace.config.lm_data import LmDataConfig, load_config
from headrace.config.parsing import decode, with_overrides
from headrace.config.writing import CONFIG_SUFFIXES, without_gone
from headrace.data.dataset import BatchOrder, rows_of_step
from headrace.data.described import described_rows
from headrace.data.packed import packed_datasets
from headrace.data.phased import RunDataset
from headrace.errors import HeadraceError
from headrace.mix.schedule import BatchSchedule
from headrace.report.plan_figures import (
    Fill,
    Lengths,
    MixtureFacts,
    document_lengths,
    mixture_facts,
    pack_fill,
)
from headrace.report.run_records import RunRecords, read_records
from headrace.run.changes import config_of_run
from headrace.run.lock import RunLock, no_run_in
from headrace.store.cache import TokenCache

UNKNOWN_STEPS = 1000
"""Number of steps to show if neither the config nor the run says how many there are."""
SHOWN_ROWS = 8


@dataclass(frozen=True)
class Source:
    """The origin of one component: its cache, the cache's sources, its tokenizer, and the release
    that built it.
    """

    name: str
    cache: str
    exists: bool
    fingerprint: str = ""
    documents: int = 0
    tokens: int = 0
    vocab_size: int = 0
    tokenizer: str = ""
    tokenizer_fingerprint: str = ""
    files: int = 0
    paths: tuple[str, ...] = ()
    built_by: str = ""


@dataclass(frozen=True)
class PlanFacts:
    """What follows from the config; ``lengths`` are of the caches that exist, ``fills`` of packed
    components.

    Attributes:
        findings: Problems and warnings.
        fingerprint: Fingerprint of the run's lock; None if a cache is missing.
        amendments: Number of last stages that are amendments.
        assumed_steps: Whether the number of steps is :data:`UNKNOWN_STEPS`.
        lock: The run as its loader would describe it; None if a cache is missing.
        some_rows: Some rows of a step and the number of rows of each source, as
            :func:`some_rows_of_step` reads them; None if a cache is missing.
    """

    plan: RunPlan
    findings: tuple[Finding, ...]
    mixture: MixtureFacts
    lengths: Mapping[str, Lengths]
    fills: Mapping[str, Fill]
    sources: tuple[Source, ...]
    fingerprint: str | None
    amendments: int
    assumed_steps: bool
    lock: RunLock | None
    some_rows: Callable[[int], tuple[list[dict[str, Any]], Counter[str]]] | None

    def passes_until(self, step: int) -> list[float]:
        """Passes over the rows of each source until a step, to the precision of a span."""
        edge, passes = self._passes()
        return [float(np.interp(step, edge, passes[:, d])) for d in range(passes.shape[1])]

    def repeats_after(self, step: int) -> list[float | None]:
        """About the step at which each source next begins again; None: not within the run."""
        edge, passes = self._passes()
        repeats: list[float | None] = []
        for d, pass_number in enumerate(self.passes_until(step)):
            next_epoch = np.floor(pass_number) + 1
            repeats_within_run = next_epoch < passes[-1, d]
            repeats.append(
                float(np.interp(next_epoch, passes[:, d], edge)) if repeats_within_run else None
            )
        return repeats

    def _passes(self) -> tuple[np.ndarray, np.ndarray]:
        """The edges of spans, and the passes over each source until each."""
        rows = np.asarray([max(c.row_tokens, 1) for c in self.plan.components], np.float64)
        passes = self.mixture.tokens.cumsum(axis=0) / rows
        return self.mixture.edge, np.concatenate([np.zeros((1, rows.size)), passes])


@dataclass(frozen=True)
class ReportFacts:
    """A report's content.

    Attributes:
        title: The name of a config, or of a run's folder with its parent.
        folder: The run's folder; None: there is none.
        config_path: The config's file; None: it is that of a run.
        plan: What follows from the config; None: there is no config, or it cannot be resolved here.
        why_no_plan: Why there is no plan.
        records: The measurements.
        lock: The run's lock; None: there is none.
    """

    title: str
    folder: str | None
    config_path: str | None
    plan: PlanFacts | None
    why_no_plan: str
    records: RunRecords
    lock: RunLock | None

    def measured_again(self) -> ReportFacts:
        """The same facts, with what the run has written since."""
        if self.folder is None:
            return self
        return dataclasses.replace(
            self, records=read_records(self.folder), lock=RunLock.load(self.folder)
        )


def gather(
    target: str,
    settings: Sequence[str] = (),
    *,
    hosts: Sequence[int] | None = None,
    must_exist: bool = True,
) -> ReportFacts:
    """The facts of a config or of a run.

    Args:
        target: YAML file of a config, or folder of a run.
        settings: ``name=value`` settings over the config, which a run has in its log or its lock.
        hosts: Numbers of hosts to forecast for; None: one, and the number of the run.
        must_exist: Whether the run's folder must already contain a run.

    Raises:
        ConfigError: the config is invalid, or the folder contains no run.
        CacheError: a config was given, and one of its caches is missing and has no declared size.
    """
    if target.endswith(CONFIG_SUFFIXES):
        records = RunRecords()
        plan = _plan(load_config(target, settings), hosts, records)
        return ReportFacts(Path(target).name, None, target, plan, "", records, None)
    records = read_records(target)
    lock = RunLock.load(target)
    if must_exist and not records.sessions and lock is None:
        raise no_run_in(target, "run folder", ", or a config (.yaml)")
    # As in runs/1: the last part alone is often not enough.
    title = "/".join(target.rstrip("/").rsplit("/", 2)[-2:]) or target
    plan = None
    why = "The run has no config: RunLog(loader, folder, config=config) records it."
    try:
        recorded = _recorded_config(records, lock, settings)
        if recorded is not None:
            plan = _plan(config_of_run(lock, recorded), hosts, records)
    except HeadraceError as error:  # paths that do not exist here: measurements can still be shown
        why = f"The run's config cannot be resolved from here: {error}"
    return ReportFacts(title, target, None, plan, why, records, lock)


def _recorded_config(
    records: RunRecords, lock: RunLock | None, settings: Sequence[str]
) -> LmDataConfig | None:
    """The config in the log of a run, or else in its lock."""
    if records.config is not None:
        recorded = without_gone(yaml.safe_load(records.config))
    elif lock is not None and lock.config is not None:
        recorded = lock.config
    else:
        return None
    return decode(LmDataConfig, with_overrides(recorded, settings, LmDataConfig))


def _plan(config: LmDataConfig, hosts: Sequence[int] | None, records: RunRecords) -> PlanFacts:
    steps = config.run_steps
    assumed = steps is None
    if steps is None:
        steps = max(UNKNOWN_STEPS, (records.last_step or 0) + 1)
        config = dataclasses.replace(config, num_steps=steps)
    plan = RunPlan.of(config, hosts=hosts or _hosts(config, records))
    config = plan.written
    opened = plan.caches
    dataset = plan.dataset
    there = {name: cache for name, cache in opened.items() if name not in plan.planned.caches}
    lock = None
    some_rows = None
    if len(there) == len(opened):
        lock = RunLock.of(BatchOrder(dataset, row_order=config.row_order))
        some_rows = cache(partial(some_rows_of_step, dataset, config))
    stored = plan.config.datasets()
    return PlanFacts(
        plan=plan,
        findings=tuple(findings(plan)),
        mixture=mixture_facts(dataset, plan.steps or steps),
        lengths={name: document_lengths(cache) for name, cache in there.items()},
        fills={
            name: pack_fill(packed.plan.lengths, packed.seq_len, packed.packing.algorithm)
            for name, packed in packed_datasets(stored).items()
        },
        sources=tuple(
            _source(name, c.shown_cache, there.get(name)) for name, c in config.components.items()
        ),
        fingerprint=None if lock is None else lock.fingerprint,
        amendments=sum(
            amendment.bringing_in(config.components).changes_mixture
            for amendment in config.amendments
        ),
        assumed_steps=assumed,
        lock=lock,
        some_rows=some_rows,
    )


def some_rows_of_step(
    dataset: RunDataset, config: LmDataConfig, step: int
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Up to :data:`SHOWN_ROWS` rows of a step, evenly apart, as ``headrace run cat --json`` has
    them; and the number of rows of each source. Reads the tokens of these rows.
    """
    rows = rows_of_step(dataset, dataset.batch_schedule, step, config.row_order)
    shown_rows = np.unique(np.linspace(0, len(rows) - 1, SHOWN_ROWS, dtype=np.int64)).tolist()
    names = [rows.names[number] for number in rows.component.tolist()]
    return described_rows(rows, shown_rows, of_config=config.tokenizer), Counter(names)


def _hosts(config: LmDataConfig, records: RunRecords) -> list[int]:
    size = BatchSchedule(config.batch_size).rows_at(0)[1]
    return sorted({n for n in (1, records.hosts) if n == 1 or size % n == 0})


def _source(name: str, path: str, cache: TokenCache | None) -> Source:
    if cache is None:
        return Source(name, path, exists=False)
    ledger = cache.ledger
    return Source(
        name=name,
        cache=path,
        exists=True,
        fingerprint=cache.fingerprint,
        documents=cache.num_originals,
        tokens=cache.original_tokens,
        vocab_size=cache.vocab_size,
        tokenizer=str(ledger.tokenizer.get("path") or ""),
        tokenizer_fingerprint=str(ledger.tokenizer.get("fingerprint") or ""),
        files=len(ledger.sources),
        paths=tuple(str(p) for p in ledger.metadata.get("paths", ())),
        built_by=ledger.code_version,
    )
