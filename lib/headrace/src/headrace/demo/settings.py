"""The settings of the demo, checked before anything slow is imported or written, and the folder
that it writes to.

Invariant: the demo deletes only what it made. It first marks its folder with
``headrace-demo.json``, refuses every other folder that is not empty, and replaces only files with
the names below.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError
from headrace.metrics import STATS_FOLDER

MARKER = "headrace-demo.json"
DEVICES = 4
DEVICES_AFTER = 2
"""CPU devices before the stop, and after it."""
_MIN_STEPS = 20


@dataclass(frozen=True)
class Scale:
    """How much text is used and how large a model is trained on it."""

    steps: int
    max_chars: int
    vocab_size: int
    batch_size: int
    seq_len: int
    dim: int
    layers: int
    heads: int
    peak_lr: float


FULL = Scale(
    240,
    8_000_000,
    vocab_size=4096,
    batch_size=32,
    seq_len=128,
    dim=96,
    layers=2,
    heads=4,
    peak_lr=5e-3,
)
QUICK = Scale(
    40,
    1_000_000,
    vocab_size=1024,
    batch_size=16,
    seq_len=64,
    dim=64,
    layers=1,
    heads=4,
    peak_lr=1e-2,
)


@dataclass(frozen=True)
class DemoSettings:
    """The options of the command line.

    Attributes:
        output: Folder for everything that the demo writes.
        steps: Training steps.
        scale: ``FULL`` or ``QUICK``.

    Raises:
        ConfigError: Too few steps to see anything.
    """

    output: Path = Path("headrace-demo")
    steps: int = FULL.steps
    scale: Scale = FULL

    def __post_init__(self) -> None:
        if self.steps < _MIN_STEPS:
            raise ConfigError(
                "is too few to see a loss fall",
                field="steps",
                value=self.steps,
                cure=f"Use {_MIN_STEPS} or more.",
            )


@dataclass
class DemoFolder:
    """Paths within the demo's folder. Use :meth:`claim`."""

    root: Path

    def __post_init__(self) -> None:
        self.text = self.root / "text"  # SOURCE.jsonl.gz
        self.tokenizer = self.root / "tokenizer.json"
        self.caches = self.root / "caches"  # a token cache for each source
        self.config = self.root / "config.yaml"  # for load_config
        # A folder each: model, optimizer, and the state of the data.
        self.checkpoints = self.root / "checkpoints"
        self.metrics = self.root / "metrics.jsonl"  # a line for each step
        self.summary = self.root / "summary.json"
        self.stats = self.root / STATS_FOLDER  # counters and losses, for the report
        self.report = self.root / "report.html"

    @classmethod
    def claim(cls, root: Path) -> DemoFolder:
        """Makes ``root`` the demo's folder, without what an earlier run left: a folder that is new,
        empty, or from an earlier demo.

        Raises:
            ConfigError: The folder contains something else, is a file, or cannot be written.
        """
        folder = cls(root)
        marker = root / MARKER
        try:
            if (
                root.exists()
                and not marker.is_file()
                and (not root.is_dir() or any(root.iterdir()))
            ):
                raise ConfigError(
                    "exists and is not a folder of an earlier demo",
                    field="output",
                    value=str(root),
                    cure="Choose another one with --output DIR; the demo overwrites nothing that"
                    " is not its own.",
                )
            root.mkdir(parents=True, exist_ok=True)
            marker.write_text("{}\n")
            for path in vars(folder).values():
                if path != root:
                    _remove(path)
        except OSError as error:
            raise ConfigError(
                f"cannot be written ({error.strerror or error})",
                field="output",
                value=str(root),
                cure="Choose another folder with --output DIR.",
            ) from error
        return folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
