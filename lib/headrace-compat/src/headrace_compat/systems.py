"""Megatron-LM and nmoe, as ``compat`` of a config: their rows, their order, and the fields of a run
that they set.

.. code-block:: yaml

    compat: {system: megatron, split: "969,30,1"}     # or compat: nmoe
    seq_len: 4097                                     # --seq-length 4096, and the token to predict
    num_steps: 1000
    components: {web: {cache: caches/web, weight: 0.7}, code: {cache: caches/code, weight: 0.3}}

``megatron``: samples of Megatron-LM's GPT dataset with its blending
(:mod:`headrace_compat.gpt_index`); the order depends on the number of samples, so ``num_steps`` is
required. ``nmoe``: non-overlapping windows over all shards that wrap around at the end of a source,
drawn by smooth weighted round robin, with nmoe's stages. Both set ``policy``, ``shuffle`` and
``row_order``; features that the other system lacks are refused. For orders of rollouts see
:class:`~headrace_posttrain.rollouts.settings.RLSettings`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np

from headrace.config.compat import CompatConfig, CompatSystem
from headrace.config.lm_data import LmDataConfig
from headrace.data.columns import columns_by_component
from headrace.data.component import pairs_of_component
from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.pack.saved_plans import first_tokens
from headrace.store.cache import TokenCache
from headrace.store.layouts import LIMITS
from headrace_compat.constant_weights import stage_weights
from headrace_compat.gpt_index import GptIndex
from headrace_compat.listed import ListedDataset, Listing
from headrace_compat.megatron import megatron_sizes, split_documents
from headrace_compat.megatron_files import NOT_ONE_SEQUENCE

_OF_RUN = ("validation", "subset", "max_epochs", "amendments")
_OF_COMPONENT = (
    "packing",
    "buckets",
    "validation",
    "subset",
    "shuffle",
    "max_epochs",
    "max_tokens",
    "max_share",
    "remove",
)


class ListedSystem(CompatSystem):
    """A system whose rows are windows over a list of stretches of a cache.

    Attributes:
        policy: The mixing policy of its order.
        unknown: Fields of a run, besides those of all systems, that it does not have.
    """

    policy: ClassVar[str]
    unknown: ClassVar[tuple[str, ...]] = ()

    @property
    def settings(self) -> dict[str, Any]:
        return {"policy": self.policy, "shuffle": False, "row_order": "stream"}

    def apply(self, config: LmDataConfig) -> None:
        """Sets these fields in a config under construction.

        Raises:
            ConfigError: the config contradicts the system, or asks for a feature that it lacks.
        """
        for field in fields(config):
            if field.name in self.settings:
                value = self.settings[field.name]
                default = (
                    field.default if field.default_factory is MISSING else field.default_factory()
                )
                if getattr(config, field.name) not in (value, default):
                    self._refuse(
                        field.name, getattr(config, field.name), f"Write {value}, or leave it out."
                    )
                object.__setattr__(config, field.name, value)
        for name in (*_OF_RUN, *self.unknown):
            if getattr(config, name):
                self._refuse(name, getattr(config, name))
        for name, component in config.components.items():
            for field_name in _OF_COMPONENT:
                if getattr(component, field_name) is not None:
                    self._refuse(f"components.{name}.{field_name}", getattr(component, field_name))
        if isinstance(config.seq_len, dict):
            self._refuse("seq_len", config.seq_len, "Give one number.")

    def _refuse(
        self, field: str, value: object, cure: str = "Leave it out, or leave compat out."
    ) -> NoReturn:
        raise ConfigError(
            f"cannot be combined with compat: {self.setting.system}",
            field=field,
            value=value,
            cure=cure,
        )

    def datasets(
        self,
        config: LmDataConfig,
        caches: Mapping[str, TokenCache],
        side: Literal["train", "validation"],
    ) -> dict[str, Any]:
        own_columns = {
            name: component.columns or {} for name, component in config.components.items()
        }
        numbers = {
            name: config.components[name].document_numbers(name, caches[name]) for name in caches
        }
        columns = columns_by_component(numbers, config.columns or {}, own_columns)
        listings = self.listings(config, caches, side)
        datasets: dict[str, ListedDataset] = {}
        for name, cache in caches.items():
            component = config.components[name]
            with pairs_of_component(name):
                datasets[name] = ListedDataset(
                    cache,
                    config.phases[0][1],
                    listings[name],
                    split_documents=config.split_documents,
                    name=name,
                    loss_mask=component.loss_mask,
                    columns=columns[name],
                    pairs=component.pairs,
                )
        return datasets

    @abc.abstractmethod
    def listings(
        self, config: LmDataConfig, caches: Mapping[str, TokenCache], side: str
    ) -> dict[str, Listing]:
        """The stretches of each component; ConfigError if the split lacks this side."""


class Nmoe(ListedSystem):
    """``compat: nmoe``."""

    policy = "swrr"

    def __init__(self, setting: CompatConfig) -> None:
        super().__init__(setting)
        if setting.split is not None:
            cure = "Leave it out, or build caches of the shards that train."
            raise ConfigError(
                "is not known to nmoe", field="compat.split", value=setting.split, cure=cure
            )
        if not setting.extra_token:
            cure = "Leave it out: windows do not overlap."
            raise ConfigError(
                "is not known to nmoe", field="compat.extra_token", value=False, cure=cure
            )

    def listings(
        self, config: LmDataConfig, caches: Mapping[str, TokenCache], side: str
    ) -> dict[str, Listing]:
        if side == "validation":
            cure = "Keep shards apart, and make a config of them."
            raise ConfigError("has no validation side", field="compat", value="nmoe", cure=cure)
        seq_len = config.phases[0][1]
        return {name: _lapping(cache, seq_len) for name, cache in caches.items()}


class Megatron(ListedSystem):
    """``compat: megatron``."""

    policy = "greedy"
    unknown = ("stages",)

    def __init__(self, setting: CompatConfig) -> None:
        super().__init__(setting)
        split_documents(setting.split or "1", 0)

    def apply(self, config: LmDataConfig) -> None:
        super().apply(config)
        if config.num_steps is None:
            cure = "Give the steps of the whole run: its order follows from the number of samples."
            raise ConfigError(
                "is missing, and Megatron's order needs it", field="num_steps", cure=cure
            )

    def listings(
        self, config: LmDataConfig, caches: Mapping[str, TokenCache], side: str
    ) -> dict[str, Listing]:
        samples = _samples(config) if side == "train" else dict.fromkeys(caches)
        return {
            name: _gpt(cache, name, self.setting, config, samples[name], side)
            for name, cache in caches.items()
        }


def _samples(config: LmDataConfig) -> dict[str, int | None]:
    """Samples that Megatron-LM requests from each component; with several, a few more than the
    blend draws.
    """
    names = [*config.components]
    steps = config.num_steps or 0
    batch = BatchSchedule(config.batch_size)
    target = batch.rows_at(steps)[0]
    if len(names) == 1:
        return {names[0]: target}
    weights = stage_weights(config.plan(), "greedy")
    return {
        name: size for name, [size] in zip(names, megatron_sizes(weights, [target]), strict=True)
    }


def _gpt(
    cache: TokenCache,
    name: str,
    compat: CompatConfig,
    config: LmDataConfig,
    samples: int | None,
    side: str,
) -> Listing:
    overlap = int(compat.extra_token)
    seq_len = config.phases[0][1]
    if any(NOT_ONE_SEQUENCE in one.ledger.metadata.get(LIMITS, ()) for one in cache.members):
        raise ConfigError(
            "has documents that are not one sequence, and Megatron shuffles sequences: its samples"
            " would be others",
            field=f"components.{name}.cache",
            value=cache.path,
            cure="Write each document as one sequence (preprocess_data.py without"
            " --split-sentences), or leave compat out.",
        )
    documents = split_documents(compat.split or "1", cache.num_documents)[side == "validation"]
    if not documents:
        cure = "Give this part a share, or leave compat.split out."
        problem = f"leaves no document of component {name!r} for {side}"
        raise ConfigError(problem, field="compat.split", value=compat.split, cure=cure)
    first = first_tokens(cache)
    lengths = np.diff(first)
    index = GptIndex(
        lengths,
        np.arange(documents.start, documents.stop),
        stride=seq_len - overlap,
        samples=samples,
        seed=config.seed,
        overlap=overlap,
    )
    described = {
        "compat": "megatron",
        "documents": [documents.start, documents.stop],
        "samples": samples,
        "seed": config.seed,
    }
    start = first[index.documents]
    size = lengths[index.documents]
    return Listing(start, size, seq_len - overlap, index.order, index.order.size, described)


def _lapping(cache: TokenCache, seq_len: int) -> Listing:
    """Windows of nmoe: as many laps over the shards as it takes until a window begins at the first
    token again.
    """
    size = cache.part_tokens
    total = int(size.sum())
    if not total:
        raise ConfigError(
            "holds no tokens",
            field="cache",
            value=cache.path,
            cure="Build it from texts that hold some.",
        )
    windows = total // math.gcd(total, seq_len)
    return Listing(np.cumsum(size) - size, size, seq_len, None, windows, {"compat": "nmoe"})
