"""Feeds an unchanged Levanter data config from headrace: headrace delivers the training data,
Levanter evaluates.

:func:`fed` returns a config of Levanter's own class with one more component, ``headrace``. Only
this component has a weight; it holds the mixture that the given config describes. Levanter's
evaluation uses all other components, with their tags; ``train_set``, ``train_sets`` and
``train_mixture`` return headrace's rows.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import draccus
import numpy as np
import yaml
from levanter import tokenizers
from levanter.data.mixture import MixtureDataset
from levanter.data.text.datasets import DirectDatasetComponent, LmDataConfig

from headrace.config.lm_data import LmDataConfig as OwnConfig
from headrace.config.parsing import decode, with_overrides
from headrace.errors import ConfigError
from headrace.ingest.tokenize import TokenizerConfig
from headrace.mix.schedule import MAX_STEP
from headrace.store import files
from headrace.store.ledger import LEDGER_NAME
from headrace.store.missing import LEVANTERS_LEDGER
from headrace_levanter.config import check_length, config_beside, open_run_beside
from headrace_levanter.dataset import HeadraceDataset
from headrace_levanter.loader import check_schedule, headrace_schedule
from headrace_levanter.translation.translate import translate

COMPONENT = "headrace"
_OF_CACHES = ("data.cache_options", "data.auto_build_caches")
_LOG = logging.getLogger(__name__)


class FedMixture(MixtureDataset[Any]):
    """headrace's rows as a Levanter ``MixtureDataset``, whose stages and weights hooks can read.

    Args:
        rows: The rows, which are not mixed again.
        own: The headrace config of the rows.
        block_size: Rows that hooks count as a block: the batch size, or the largest common divisor
            of all batch sizes.
    """

    def __init__(self, rows: HeadraceDataset, own: OwnConfig, block_size: int) -> None:
        self.rows = rows
        self.block_size = block_size
        self.weight_stages: list[
            tuple[int, dict[str, float]]
        ] = []  # (first row, weights), with entries where changing weights bend
        stages = own.plan().stages
        ends = [stage.first_step for stage in stages[1:]] + [MAX_STEP]
        for stage, end in zip(stages, ends, strict=True):
            steps = stage.blend.bends(stage.first_step, end)
            for start, shares in zip(
                rows.schedule.offset_at(steps), stage.blend.at(steps), strict=True
            ):
                weights = dict(zip(stage.blend.names, shares.tolist(), strict=True))
                self.weight_stages.append((int(start), weights))

    def _get_stage_for_block(self, block_id: int) -> int:
        starts = [start for start, _ in self.weight_stages]
        return int(np.searchsorted(starts, block_id * self.block_size, side="right")) - 1

    def is_finite(self) -> bool:
        return self.rows.is_finite()

    async def async_len(self) -> int:
        return await self.rows.async_len()

    async def get_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        return await self.rows.get_batch(indices)

    async def getitem_async(self, index: int) -> Any:
        return await self.rows.getitem_async(index)


@dataclass(frozen=True)
class FedDataConfig(LmDataConfig):
    """Levanter's data config with headrace's rows as the only component trained on; :func:`fed`
    makes it.

    Attributes:
        own: The headrace config of the rows.
        rows: The rows, as ``GrugLmExample``.
        run_dir: As for :class:`~headrace_levanter.config.HeadraceDataConfig`.
        notes: What differs from Levanter in the rows that are trained on.
    """

    own: Any = None
    rows: Any = None
    run_dir: str | None = None
    notes: Sequence[str] = ()

    def train_set(
        self, Pos: Any, batch_schedule: Any, *, key: Any = None, **ignored: Any
    ) -> HeadraceDataset:
        """The rows themselves, not mixed again, so that headrace's own loader can read them. The
        differences from Levanter are logged.

        Raises:
            ConfigError: the trainer's batch size or length differs from that passed to :func:`fed`.
            PlanMismatchError: the run in ``run_dir`` is a different one.
        """
        check_length(Pos, self.own)
        check_schedule(self.rows.dataset, None, headrace_schedule(batch_schedule))
        for note in self.notes:
            _LOG.info("%s", note)
        dataset = _rows(self.own, self.rows.dataset, position_axis=Pos.name)
        open_run_beside(self.run_dir, dataset)
        return dataset

    def train_mixture(self, Pos: Any, batch_schedule: Any, *, key: Any = None) -> FedMixture:
        """The same rows as ``GrugLmExample``, in a mixture whose stages and weights hooks can log.

        Raises:
            ConfigError: as for :meth:`train_set`.
        """
        check_length(Pos, self.own)
        check_schedule(self.rows.dataset, None, headrace_schedule(batch_schedule))
        return FedMixture(self.rows, self.own, self.mixture_block_size)

    def validation_sets(self, Pos: Any) -> Mapping[str, Any]:
        """Levanter's validation sets; those of components of which rows are held out are
        headrace's: the rows that it does not train on.
        """
        own = self.own.validation_datasets(seq_len=Pos.size) if self.own.held_out else {}
        held_out = {
            name: HeadraceDataset(rows, 1, position_axis=Pos.name, row_order="stream")
            for name, rows in own.items()
        }
        return {**super().validation_sets(Pos), **held_out}


def fed(
    config: LmDataConfig,
    *,
    seq_len: int,
    batch_size: int | Mapping[int, int],
    seed: int = 0,
    settings: Sequence[str] = (),
    run_dir: str | None = None,
) -> FedDataConfig:
    """A Levanter data config whose training rows headrace delivers.

    Levanter builds missing caches if ``auto_build_caches`` allows it, and evaluates. Of the notes
    of ``headrace config from-levanter``, those about training are the config's ``notes``, which
    ``train_set`` logs.

    Args:
        config: Levanter's config; it is not changed.
        seq_len: Tokens in a row: the trainer's ``train_seq_len``, or its model's ``max_seq_len``.
        batch_size: The trainer's ``train_batch_size``, or ``{step: rows}``.
        seed: Seed of the order.
        settings: ``name=value`` settings that override the translated config.
        run_dir: Folder of the run's checkpoints, for its lock; None: runs are not compared.

    Raises:
        ConfigError: a setting that determines the tokens trained on has no counterpart in headrace.

    Example:
        >>> data = fed(config, seq_len=2048, batch_size=128)  # doctest: +SKIP
        >>> train_lm.main(dataclasses.replace(run, data=data))  # doctest: +SKIP
    """
    direct = [n for n, one in config.components.items() if isinstance(one, DirectDatasetComponent)]
    for trained in (n for n in direct if _has_weight(config, n)):
        cure = "Give it no weight, or mix its examples with headrace.MixtureDataset."
        raise ConfigError(
            "cannot be fed: its examples are made in Python",
            field=f"data.components.{trained}",
            cure=cure,
        )
    if COMPONENT in config.components:
        cure = (
            "Call it otherwise, and name its folder with cache_dir; a config that was fed before"
            " is not fed again."
        )
        raise ConfigError(
            "is the name of what is fed", field=f"data.components.{COMPONENT}", cure=cure
        )
    cached = {name: one for name, one in config.components.items() if name not in direct}
    translated, notes = _translated(
        replace(config, components=cached, train_weights=_weights_of(config, cached)),
        seq_len,
        batch_size,
        seed,
    )
    translated = decode(OwnConfig, with_overrides(translated, settings, OwnConfig))
    _build_missing(config, translated)
    translated, dataset = _opened(config, config_beside(run_dir, translated))
    rows = _rows(translated, dataset, named=False)
    values = {field.name: getattr(config, field.name) for field in fields(LmDataConfig)}
    sizes = [batch_size] if isinstance(batch_size, int) else list(batch_size.values())
    changes: dict[str, Any] = {
        "components": {
            **config.components,
            COMPONENT: DirectDatasetComponent(datasets={"train": rows}),
        },
        "train_weights": {COMPONENT: 1.0},
        "num_validation_sequences": None,  # headrace holds them out, and evaluates on them
        "mixture_block_size": math.gcd(
            *sizes
        ),  # Levanter's mixture then only reorders the rows of a batch
        "shuffle": False,
        "stop_strategy": "first_exhausted" if rows.is_finite() else "restart",
    }
    return FedDataConfig(
        **values | changes, own=translated, rows=rows, run_dir=run_dir, notes=notes
    )


def _translated(
    config: LmDataConfig, seq_len: int, batch_size: int | Mapping[int, int], seed: int
) -> tuple[dict[str, Any], list[str]]:
    """The config translated to headrace's, with caches only, and what differs from Levanter."""
    batch = (
        batch_size
        if isinstance(batch_size, int)
        else [[step, rows] for step, rows in batch_size.items()]
    )
    trainer = {"train_batch_size": batch, "seed": seed}
    data = yaml.safe_load(str(draccus.dump(config)))
    translation = translate({"data": data, "train_seq_len": seq_len, "trainer": trainer})
    for note in translation.notes:
        if note.decides:
            raise ConfigError("has no counterpart", field=note.field, cure=note.text)
    translation.config.pop("tokenizer", None)
    for name, component in translation.config["components"].items():
        component.pop("source", None)
        if config.cache_catalog is not None:
            component["cache"] = _listed_caches(config, name)
    # What is missing in headrace, Levanter does.
    of_training = (n for n in translation.notes if n.kind == "differs")
    return translation.config, [str(n) for n in of_training if n.field not in _OF_CACHES]


def _opened(config: LmDataConfig, own: OwnConfig) -> tuple[OwnConfig, Any]:
    """The rows of a config; for caches that do not record their tokenizer, it gets that of
    Levanter's config.
    """
    try:
        return own, own.dataset()
    except ConfigError as error:
        name = config.tokenizer
        unsure = str(error.field).endswith((".cache", "split_documents"))
        if not unsure or own.tokenizer is not None or name == "passthrough":
            raise
    stage = tokenizers._stage_tokenizer  # pyright: ignore[reportPrivateUsage]
    folder = name if os.path.isdir(name) else stage(name)
    with_tokenizer = replace(
        own, tokenizer=TokenizerConfig(folder, eos=config.the_tokenizer.eos_token)
    )
    return with_tokenizer, with_tokenizer.dataset()


def _listed_caches(config: LmDataConfig, name: str) -> str | list[str]:
    """Paths of a component's caches according to the catalog, which overrides the
    component itself.
    """
    from levanter.store.cache import CacheCatalog

    url = str(config.cache_catalog)
    catalog = CacheCatalog.load(url)
    children = getattr(config.components[name], "children", None)
    names = [name] if children is None else [f"{name}/{child}" for child in children]
    entries = {one: catalog.entry("train", one) for one in names}
    folders = [entry.cache_dir for entry in entries.values() if entry is not None]
    if len(folders) < len(names):
        absent = next(one for one, entry in entries.items() if entry is None)
        cure = "Write it again with build_cache_catalog, or leave it out."
        problem = f"has no entry for {absent!r} in train"
        raise ConfigError(problem, field="data.cache_catalog", value=url, cure=cure)
    return folders[0] if children is None else folders


def _build_missing(config: LmDataConfig, own: OwnConfig) -> None:
    """Lets Levanter build missing caches; existing ones may have either format, or be listed in a
    catalog.
    """
    if config.cache_catalog is not None:
        return
    forms = (LEVANTERS_LEDGER, LEDGER_NAME)
    paths = [path for one in own.components.values() for path in one.caches]
    if not all(any(files.exists(files.join(path, form)) for form in forms) for path in paths):
        config.build_caches("train")


def _weights_of(config: LmDataConfig, components: Mapping[str, Any]) -> Any:
    weights = config.train_weights
    if isinstance(weights, list):
        return [
            (step, {n: w for n, w in stage.items() if n in components}) for step, stage in weights
        ]
    return None if weights is None else {n: w for n, w in weights.items() if n in components}


def _has_weight(config: LmDataConfig, name: str) -> bool:
    weights = config.train_weights
    stages = [stage for _, stage in weights] if isinstance(weights, list) else [weights or {}]
    return any(stage.get(name, 0) > 0 for stage in stages)


def _rows(
    own: OwnConfig, dataset: Any, *, named: bool = True, position_axis: str = "position"
) -> HeadraceDataset:
    return HeadraceDataset(
        dataset,
        named=named,
        position_axis=position_axis,
        row_order="locality" if own.row_order == "locality" else "stream",
        prefetch_bytes=own.prefetch_bytes,
        row_exchange=own.exchange_setting,
    )


def _encoded(config: FedDataConfig, declared_type: Any = None) -> dict[str, Any]:
    """The resolved config, so that the run's log has all of it."""
    return {
        "config": yaml.safe_load(config.own.to_yaml()),
        "tokenizer": config.tokenizer,
        "run_dir": config.run_dir,
    }


draccus.encode.register(FedDataConfig, _encoded)  # pyright: ignore[reportFunctionMemberAccess]
