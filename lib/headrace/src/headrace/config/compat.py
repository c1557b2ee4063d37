"""``compat``: a run with the rows and order of another system, so that it can continue a run begun there.

.. code-block:: yaml

    compat: {system: megatron, split: "969,30,1"}     # or compat: nmoe
    seq_len: 4097                                     # --seq-length 4096, and the token to predict
    num_steps: 1000
    components: {web: {cache: caches/web, weight: 0.7}, code: {cache: caches/code, weight: 0.3}}

``megatron``: samples of Megatron-LM's GPT dataset with its blending (:mod:`headrace.order.gpt_index`); the order
depends on the number of samples, so ``num_steps`` is required. ``nmoe``: non-overlapping windows over all shards that
wrap around at the end of a source, drawn by smooth weighted round robin, with nmoe's stages. Both set ``policy``,
``shuffle`` and ``row_order``; features that the other system lacks are refused. For orders of rollouts see
:class:`~headrace.rl.dataset.RLSettings`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np

from headrace.data.columns import columns_by_component
from headrace.errors import ConfigError, check_choice
from headrace.mix.policies.kind import PolicyInputs, stage_weights
from headrace.mix.policies.megatron import megatron_sizes, split_documents
from headrace.mix.schedule import BatchSchedule
from headrace.order.gpt_index import GptIndex
from headrace.pack.saved_plans import first_tokens
from headrace.store.cache import TokenCache

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig
    from headrace.data.listed import Listing

POLICY_OF = {"megatron": "greedy", "nmoe": "swrr"}
"""Systems, and the mixing policy of each."""
_ELSEWHERE = {
    "slime": 'Its order of prompts is RLSettings(prompt_order="slime"), its schedule headrace.batch.dp_schedule.',
    "tinker": "Its datums are headrace.batch.sft_datum and rl_datum.",
    "swift": "Its packs are headrace.batch.matched_groups and plan_packs(long='keep'): docs/coming_from/coordexp.md.",
    "coordexp": "Its plans are packing: {algorithm: wfd, long: error, min_fill: 0.65}: docs/coming_from/coordexp.md.",
    "nanomoe": "Its batches are headrace.batch.to_nanomoe and from_nanomoe: docs/coming_from/nanomoe.md.",
    "nanoschnack": "Its order is policy: least_consumed: docs/coming_from/nanoschnack.md.",
}
_OF_RUN = ("validation", "subset", "max_epochs", "amendments")
_OF_COMPONENT = (
    "packing",
    "buckets",
    "subset",
    "shuffle",
    "max_epochs",
    "max_tokens",
    "max_share",
    "remove",
)


@dataclass(frozen=True)
class CompatConfig:
    """The system whose order a run follows. In a config, its name is enough: ``compat: nmoe``.

    Attributes:
        system: ``megatron`` or ``nmoe``.
        split: Megatron's ``--split``: shares of documents for training, validation and test, in this order; None: all
            documents train.
        extra_token: Whether Megatron's rows share a token with the next one, as with its
            ``add_extra_token_to_sequence`` (the default there); rows then hold one token more than its
            ``--seq-length``.

    Raises:
        ConfigError: no such system, or a setting that it does not have.

    Example:
        >>> CompatConfig("megatron", split="969,30,1").settings
        {'policy': 'greedy', 'shuffle': False, 'row_order': 'stream'}
    """

    SHORTHAND: ClassVar[str] = "system"

    system: str
    split: str | None = None
    extra_token: bool = True

    def __post_init__(self) -> None:
        if self.system in _ELSEWHERE:
            cure = _ELSEWHERE[self.system]
            raise ConfigError(
                "is no order of documents", field="compat.system", value=self.system, cure=cure
            )
        check_choice("compat.system", self.system, POLICY_OF)
        if self.split is not None:
            if self.system != "megatron":
                cure = "Leave it out, or build caches of the shards that train."
                raise ConfigError(
                    f"is not known to {self.system}",
                    field="compat.split",
                    value=self.split,
                    cure=cure,
                )
            split_documents(self.split, 0)
        if self.system != "megatron" and not self.extra_token:
            cure = "Leave it out: windows do not overlap."
            raise ConfigError(
                f"is not known to {self.system}", field="compat.extra_token", value=False, cure=cure
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the run that this sets."""
        return {"policy": POLICY_OF[self.system], "shuffle": False, "row_order": "stream"}

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
        for name in (*_OF_RUN, *(("stages",) if self.system == "megatron" else ())):
            if getattr(config, name):
                self._refuse(name, getattr(config, name))
        for name, component in config.components.items():
            for field_name in _OF_COMPONENT:
                if getattr(component, field_name) is not None:
                    self._refuse(f"components.{name}.{field_name}", getattr(component, field_name))
        if isinstance(config.seq_len, dict):
            self._refuse("seq_len", config.seq_len, "Give one number.")
        if self.system == "megatron" and config.num_steps is None:
            cure = "Give the steps of the whole run: its order follows from the number of samples."
            raise ConfigError(
                "is missing, and Megatron's order needs it", field="num_steps", cure=cure
            )

    def _refuse(
        self, field: str, value: object, cure: str = "Leave it out, or leave compat out."
    ) -> NoReturn:
        raise ConfigError(
            f"cannot be combined with compat: {self.system}", field=field, value=value, cure=cure
        )


def compat_datasets(
    config: LmDataConfig, caches: Mapping[str, TokenCache], side: Literal["train", "validation"]
) -> dict[str, Any]:
    """The datasets of a run with ``compat``, each a :class:`~headrace.data.listed.ListedDataset`.

    Args:
        config: The run.
        caches: Its caches by component.
        side: Which part of the split; validation is one epoch.

    Raises:
        ConfigError: as for :class:`~headrace.order.gpt_index.GptIndex`; the split lacks this part.
    """
    from headrace.data.listed import ListedDataset

    compat = config.compat
    seq_len = config.phases[0][1]
    assert compat is not None
    if compat.system == "nmoe":
        if side == "validation":
            cure = "Keep shards apart, and make a config of them."
            raise ConfigError(
                "has no validation side", field="compat", value=compat.system, cure=cure
            )
        listings = {name: _lapping(cache, seq_len) for name, cache in caches.items()}
    else:
        samples = _samples(config) if side == "train" else dict.fromkeys(caches)
        listings = {
            n: _gpt(cache, n, compat, config, samples[n], side) for n, cache in caches.items()
        }
    own_columns = {name: component.columns or {} for name, component in config.components.items()}
    columns = columns_by_component(caches, config.columns or {}, own_columns)
    return {
        name: ListedDataset(
            cache,
            seq_len,
            listings[name],
            split_documents=config.split_documents,
            name=name,
            loss_mask=config.components[name].loss_mask,
            columns=columns[name],
        )
        for name, cache in caches.items()
    }


def _samples(config: LmDataConfig) -> dict[str, int | None]:
    """Samples that Megatron-LM requests from each component; with several, a few more than the blend draws."""
    names = [*config.components]
    steps = config.num_steps or 0
    batch = BatchSchedule(config.batch_size)
    target = batch.rows_at(steps)[0]
    if len(names) == 1:
        return {names[0]: target}
    nothing = [None] * len(names)
    stages = config.resolved_stages({})
    weights = stage_weights(
        PolicyInputs(names, stages, batch, nothing, nothing, config.phases[0][1]), "greedy"
    )
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
    from headrace.data.listed import Listing

    overlap = int(compat.extra_token)
    seq_len = config.phases[0][1]
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
    """Windows of nmoe: as many laps over the shards as it takes until a window begins at the first token again."""
    from headrace.data.listed import Listing

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
