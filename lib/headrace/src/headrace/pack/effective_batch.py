"""The batch size of a step under packing, where an example is a pack.

Trainers that pack run one pack per device and forward pass. With gradient accumulation unchanged,
the batch silently shrinks. This module derives accumulation again, counted in packs, and reports
what cannot be preserved.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.errors import ConfigError, check_at_least

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class EffectiveBatch:
    """The batch of a step, counted in packs.

    Attributes:
        per_device: Packs per device in one forward pass.
        accumulation: Forward passes per step.
        ranks: Devices that share a step.
        intended: Packs per step that were requested.
        accumulation_before: Forward passes configured before packing, if any.
    """

    per_device: int
    accumulation: int
    ranks: int
    intended: int
    accumulation_before: int | None = None

    @property
    def realised(self) -> int:
        """Packs per step."""
        return self.per_device * self.accumulation * self.ranks

    @property
    def preserved(self) -> bool:
        """Whether a step has exactly as many packs as requested."""
        return self.realised == self.intended

    def report(self) -> str:
        """The result in one sentence.

        Example:
            >>> packed_batch(ranks=3, effective_batch_size=16).report()
            '18 packs a step instead of 16: 1 a device x 6 forward passes x 3 ranks'
        """
        how = "as asked" if self.preserved else f"instead of {self.intended}"
        old_steps = self.accumulation_before
        changed = (
            "" if old_steps in (None, self.accumulation) else f" (accumulation was {old_steps})"
        )
        return (
            f"{self.realised} packs a step {how}: {self.per_device} a device x {self.accumulation}"
            f" forward passes x {self.ranks} ranks{changed}"
        )


def packed_batch(
    *,
    ranks: int,
    per_device: int = 1,
    accumulation: int | None = None,
    effective_batch_size: int | None = None,
    packs_per_device: int = 1,
    strict: bool = False,
) -> EffectiveBatch:
    """Derives the gradient accumulation that preserves a step's batch size when packing fixes the
    packs per device.

    Args:
        ranks: Devices that share a step.
        per_device: Examples per device in one forward pass, as configured before packing.
        accumulation: Forward passes per step, as configured; None: 1.
        effective_batch_size: Requested batch size of a step; None: the configured one, ``per_device
            x accumulation x ranks``.
        packs_per_device: Packs per device in one forward pass, with packing.
        strict: Whether a batch size that cannot be preserved is an error; otherwise it is rounded
            up to whole forward passes of all ranks, logged and reported.

    Returns:
        The batch, which counts packs.

    Raises:
        ConfigError: a number is not positive; or ``strict`` and the batch does not divide.

    Example:
        >>> batch = packed_batch(ranks=4, per_device=8, accumulation=2)
        >>> batch.accumulation, batch.realised, batch.preserved
        (16, 64, True)
    """
    check_at_least("ranks", ranks)
    check_at_least("per_device", per_device)
    check_at_least("accumulation", accumulation)
    check_at_least("packs_per_device", packs_per_device)
    check_at_least("effective_batch_size", effective_batch_size)
    intended = effective_batch_size or per_device * (accumulation or 1) * ranks
    at_once = packs_per_device * ranks
    derived = -(-intended // at_once)
    batch = EffectiveBatch(packs_per_device, derived, ranks, intended, accumulation)
    if not batch.preserved and strict:
        raise ConfigError(
            f"does not divide into forward passes of {at_once} packs ({packs_per_device} a device"
            f" x {ranks} ranks)",
            field="effective_batch_size",
            value=intended,
            cure=f"Use {batch.realised}, or {max(derived - 1, 1) * at_once}.",
        )
    _LOG.log(
        logging.INFO if batch.preserved else logging.WARNING, "packed batch: %s", batch.report()
    )
    return batch
