"""How far a run has come: a step, and which run it is of. It fits into any checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace.errors import ConfigError, as_whole, check_at_least

FINGERPRINT_DIGITS = 32


@dataclass(frozen=True)
class LoaderState:
    """Where a run is: a few bytes of JSON that fit into any checkpoint.

    Attributes:
        step: The next step to load, which is the number of completed steps.
        fingerprint: Fingerprint of the run's plan.

    Example:
        >>> LoaderState.from_dict(LoaderState(step=120, fingerprint="ab").to_dict())
        LoaderState(step=120, fingerprint='ab')
    """

    step: int
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def to_pytree(self) -> dict[str, np.ndarray]:
        """As two small arrays, for checkpoints of arrays: Orbax's, equinox's, Levanter's.

        Only the values differ between runs, so restore it into ``LoaderState.like()``.

        Example:
            >>> state = LoaderState(step=120, fingerprint="0f" * 16)
            >>> {k: (v.dtype.name, v.shape) for k, v in state.to_pytree().items()}
            {'step': ('int32', ()), 'fingerprint': ('uint8', (16,))}
            >>> LoaderState.from_pytree(state.to_pytree()) == state
            True
        """
        digest = np.frombuffer(bytes.fromhex(self.fingerprint), np.uint8)
        return {"step": np.asarray(self.step, np.int32), "fingerprint": digest}

    @classmethod
    def like(cls) -> dict[str, np.ndarray]:
        """Arrays of the shapes and dtypes of :meth:`to_pytree`."""
        return cls(0, "00" * (FINGERPRINT_DIGITS // 2)).to_pytree()

    @classmethod
    def from_pytree(cls, tree: Mapping[str, Any]) -> LoaderState:
        """From the arrays of :meth:`to_pytree` as a checkpoint restores them, numpy's or jax's.

        Raises:
            ConfigError: an array is missing or of another shape.
        """
        try:
            step = np.asarray(tree["step"])
            digest = np.asarray(tree["fingerprint"])
        except KeyError as error:
            raise ConfigError(f"has no {error}", field="state", value=sorted(tree)) from error
        if step.shape != () or digest.ndim != 1 or int(step) < 0:
            raise ConfigError(
                "is not a loader's state", field="state", value=[step.shape, digest.shape]
            )
        return cls(int(step), digest.astype(np.uint8).tobytes().hex())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoaderState:
        """From JSON values.

        Raises:
            ConfigError: a key is missing or of the wrong kind, or the step is below 0.
        """
        step, fingerprint = (
            (data.get(k) for k in ("step", "fingerprint"))
            if isinstance(data, Mapping)
            else (None, None)
        )
        if type(step) is not int or step < 0 or not isinstance(fingerprint, str):
            cure = "It needs 'step', from 0, and 'fingerprint', as get_state or to_dict gave them."
            raise ConfigError("is not a loader's state", field="state", value=data, cure=cure)
        return cls(step, fingerprint)


def steps_done(step: int) -> int:
    """A number of steps, whatever its integer type; ConfigError if it is none."""
    step = as_whole("step", step)
    check_at_least("step", step, 0, "Give the number of steps that are done.")
    return step
