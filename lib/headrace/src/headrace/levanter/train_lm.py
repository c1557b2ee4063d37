"""``python -m headrace.levanter.train_lm --config_path run.yaml``: Levanter's ``train_lm`` on headrace's data.

The file is one of Levanter's but for its ``data`` (see :class:`~headrace.levanter.config.HeadraceDataConfig`) and for
``loader``, which says whose loader reads it. Checkpoints, evaluation, tracking and resuming are Levanter's own.

No ``from __future__ import annotations`` here: Levanter reads the types off :func:`main`.
"""

import contextlib
import dataclasses
import sys
from typing import Literal

try:
    import levanter.config
    from levanter.main import train_lm
except ModuleNotFoundError as missing:
    if __name__ != "__main__" or (missing.name or "").split(".")[0] not in ("levanter", "haliax"):
        raise
    from headrace.levanter import INSTALL

    sys.exit(f"headrace.levanter.train_lm needs the package marin-levanter. {INSTALL}")

from headrace.levanter.config import HeadraceDataConfig
from headrace.levanter.loader import own_loader


@dataclasses.dataclass
class TrainLmConfig(train_lm.TrainLmConfig):
    """Levanter's ``TrainLmConfig`` with headrace's data.

    Attributes:
        data: The data.
        loader: ``headrace``: its own loader feeds the trainer; ``levanter``: Levanter's loader reads example by
            example. Both deliver the same batches.
    """

    data: HeadraceDataConfig = dataclasses.field(default_factory=HeadraceDataConfig)  # pyright: ignore
    loader: Literal["headrace", "levanter"] = "headrace"


def main(config: TrainLmConfig) -> None:
    """Trains, going on from the run's latest checkpoint.

    A run that has an id (``trainer.id``) keeps its manifest beside its checkpoints, unless ``data.run_dir`` says where:
    resumed with other data, another order or mixture, it is refused.
    """
    trainer = config.trainer
    if config.data.run_dir is None and trainer.id is not None:
        run_dir = trainer.checkpointer.expanded_path(trainer.id)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, run_dir=run_dir))
    with own_loader() if config.loader == "headrace" else contextlib.nullcontext():
        train_lm.main(config)


if __name__ == "__main__":
    levanter.config.main(main)()
