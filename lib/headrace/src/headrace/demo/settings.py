"""What the demo is told to do, checked before anything slow is imported or written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.demo.corpus import python_version
from headrace.errors import ConfigError

RECIPE_VERSION = 1
"""Changes when text or tokenizer would come out differently: the text of an older folder is then taken anew."""

_MIN_STEPS = 20


@dataclass(frozen=True)
class Scale:
    """How much text is taken and how large a model is trained on it."""

    steps: int
    max_chars: int
    vocab_size: int
    batch_size: int
    seq_len: int
    dim: int
    layers: int
    heads: int
    peak_lr: float


FULL = Scale(240, 8_000_000, vocab_size=4096, batch_size=32, seq_len=128, dim=96, layers=2, heads=4, peak_lr=5e-3)
QUICK = Scale(40, 1_000_000, vocab_size=1024, batch_size=16, seq_len=64, dim=64, layers=1, heads=4, peak_lr=1e-2)


@dataclass(frozen=True)
class DemoSettings:
    """What the command line sets.

    Attributes:
        output: Folder for everything that the demo leaves.
        steps: Training steps.
        devices: CPU devices before the stop; after it half as many go on (2 after 1).
        seed: Seed of the order and of the model.
        scale: ``FULL`` or ``QUICK``.

    Raises:
        ConfigError: Too few steps to see anything, or a batch that does not divide over the devices.
    """

    output: Path = Path("headrace-demo")
    steps: int = FULL.steps
    devices: int = 4
    seed: int = 0
    scale: Scale = FULL

    def __post_init__(self) -> None:
        if self.steps < _MIN_STEPS:
            raise ConfigError(
                "is too few to see a loss fall", field="steps", value=self.steps, cure=f"Use {_MIN_STEPS} or more."
            )
        rows = self.scale.batch_size
        if self.devices < 1 or rows % self.devices:
            fitting = ", ".join(str(d) for d in range(1, rows + 1) if rows % d == 0)
            raise ConfigError(
                f"must divide the batch of {rows} rows", field="devices", value=self.devices, cure=f"Use {fitting}."
            )

    @property
    def text_recipe(self) -> dict[str, object]:
        """All that decides text, tokenizer and caches, as JSON values."""
        return {
            "version": RECIPE_VERSION,
            "python": python_version(),
            "max_chars": self.scale.max_chars,
            "vocab_size": self.scale.vocab_size,
        }

    @property
    def devices_after(self) -> int:
        """Devices after the stop: another number than before it."""
        return self.devices // 2 if self.devices > 1 else 2
