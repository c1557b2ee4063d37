"""The demo's folder: what lies where in it, and which folders the demo may write into.

Invariant: the demo deletes nothing but what it made. It marks its folder with ``headrace-demo.json`` before anything
else, refuses every other folder that is not empty, and replaces only files of the names below. Text, tokenizer and
caches are kept between runs as long as the marker says that they would come out the same.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

MARKER = "headrace-demo.json"


@dataclass(frozen=True)
class DemoFolder:
    """Paths within the demo's folder. Use :meth:`claim`."""

    root: Path

    @classmethod
    def claim(cls, root: Path, recipe: dict[str, Any]) -> DemoFolder:
        """Makes ``root`` the demo's folder, without the results of an earlier run.

        Args:
            root: A folder that is new, empty, or of an earlier demo.
            recipe: All that decides text, tokenizer and caches (JSON values). Those of an earlier run are kept if its
                recipe was the same.

        Raises:
            ConfigError: The folder holds something else, is a file, or cannot be written.
        """
        folder = cls(root)
        marker = root / MARKER
        try:
            if root.exists() and not marker.is_file() and (not root.is_dir() or any(root.iterdir())):
                raise ConfigError(
                    "exists and is not a folder of an earlier demo",
                    field="output",
                    value=str(root),
                    cure="Choose another one with --output DIR; the demo overwrites nothing that is not its own.",
                )
            root.mkdir(parents=True, exist_ok=True)
            if _read_json(marker) != recipe:
                marker.write_text("{}\n")  # until the old text is gone, no recipe is true of this folder
                _remove(folder.text, folder.tokenizer, folder.caches)
                marker.write_text(json.dumps(recipe, indent=1) + "\n")
            _remove(folder.config, folder.checkpoints, folder.metrics, folder.summary, folder.picture)
        except OSError as error:
            raise ConfigError(
                f"cannot be written ({error.strerror or error})",
                field="output",
                value=str(root),
                cure="Choose another folder with --output DIR.",
            ) from error
        return folder

    @property
    def text(self) -> Path:
        """One ``SOURCE.jsonl.gz`` a source."""
        return self.root / "text"

    @property
    def tokenizer(self) -> Path:
        """The byte-pair encoder that the demo trains."""
        return self.root / "tokenizer.json"

    @property
    def caches(self) -> Path:
        """One token cache a source."""
        return self.root / "caches"

    @property
    def config(self) -> Path:
        """The run's ``LmDataConfig``, for ``load_config``."""
        return self.root / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        """One folder a checkpoint: model, optimizer, and where the data stands."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON line a step."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What was shown, with its figures."""
        return self.root / "summary.json"

    @property
    def picture(self) -> Path:
        """Loss and mixture over the steps."""
        return self.root / "loss.png"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):  # a marker that was cut off says nothing
        return None


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
