"""``compat``: a run with the rows and order of another system, so that it can continue a run begun
there.

.. code-block:: yaml

    compat: {system: megatron, split: "969,30,1"}     # or compat: nmoe

The core knows only how a config names a system. What a system's rows are, and which fields of the
run it sets, is said by the package that brings it, ``headrace[compat]``, under an entry point of
``headrace.systems``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headrace import extensions
from headrace.errors import ConfigError, check_choice
from headrace.store.cache import TokenCache

_ELSEWHERE = {
    "slime": 'Its order of prompts is RLSettings(prompt_order="slime"), '
    "its schedule headrace_posttrain.dp_schedule.",
    "tinker": "Its datums are headrace_compat.sft_datum and rl_datum.",
    "swift": "Its packs are headrace_posttrain.matched_groups and plan_packs(long='keep'): "
    "docs/coming_from/coordexp.md.",
    "coordexp": "Its plans are packing: {algorithm: wfd, long: error, min_fill: 0.65}:"
    " docs/coming_from/coordexp.md.",
    "nanomoe": "Its batches are headrace_compat.to_nanomoe and from_nanomoe:"
    " docs/coming_from/nanomoe.md.",
    "nanoschnack": "Its order is policy: least_consumed: docs/coming_from/nanoschnack.md.",
}
"""Systems that have no order of documents, and where theirs is."""


class CompatSystem(abc.ABC):
    """Another system, whose rows and order a run follows. Configs are those of the run,
    :class:`~headrace.config.lm_data.LmDataConfig`.

    Args:
        setting: What the config says of it; ConfigError for a setting that the system does not
            have.
    """

    def __init__(self, setting: CompatConfig) -> None:
        self.setting = setting

    @property
    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """Fields of the run that the system sets."""

    @abc.abstractmethod
    def apply(self, config: Any) -> None:
        """Sets these fields in a config under construction; ConfigError if the config contradicts
        them.
        """

    @abc.abstractmethod
    def datasets(
        self,
        config: Any,
        caches: Mapping[str, TokenCache],
        side: Literal["train", "validation"],
    ) -> dict[str, Any]:
        """The datasets of the components ``caches``, for one side of the system's split."""


@dataclass(frozen=True)
class CompatConfig:
    """The system whose order a run follows. In a config, its name is enough: ``compat: nmoe``.

    Attributes:
        system: ``megatron`` or ``nmoe``; needs ``headrace[compat]``.
        split: Megatron's ``--split``: shares of documents for training, validation and test, in
            this order; None: all documents train.
        extra_token: Whether Megatron's rows share a token with the next one, as with its
            ``add_extra_token_to_sequence`` (the default there); rows then hold one token more than
            its ``--seq-length``.

    Raises:
        ConfigError: no such system, or a setting that it does not have; its package is not
            installed.

    Example:
        >>> CompatConfig("megatron", split="969,30,1").load().settings
        {'policy': 'greedy', 'shuffle': False, 'row_order': 'stream'}
    """

    SHORTHAND: ClassVar[str] = "system"

    system: str
    split: str | None = None
    extra_token: bool = True

    def __post_init__(self) -> None:
        self.load()

    def load(self) -> CompatSystem:
        """The system, with this setting."""
        if self.system in _ELSEWHERE:
            raise ConfigError(
                "is no order of documents",
                field="compat.system",
                value=self.system,
                cure=_ELSEWHERE[self.system],
            )
        installed_systems = extensions.names_of(extensions.SYSTEMS)
        check_choice("compat.system", self.system, installed_systems)
        system = extensions.load_extension(extensions.SYSTEMS, self.system, "compat.system")
        return system(self)
