"""Levanter's trainer with headrace's own loader: ``Trainer.train`` gets whole batches, at the
loader's speed.

    python examples/levanter_trainer.py run.yaml --folder runs --steps 200

The trainer keeps the checkpoints; the state's step is all that the loader needs to go on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import haliax as hax
import jax
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig
from levanter.models.gpt2 import Gpt2Config
from levanter.models.lm_model import LmExample, LmHeadModel
from levanter.optim.config import AdamConfig
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

from headrace import LmDataConfig, load_config, open_run
from headrace_levanter import LmLoader


def loss_of(
    model: LmHeadModel, example: LmExample, *, key: jax.Array | None = None
) -> hax.NamedArray:
    """Levanter's own loss: the example's weights, and its mask that keeps attention within
    documents.
    """
    return model.compute_next_token_loss(example, key=key)


def run(config: LmDataConfig, folder: Path, steps: int) -> list[float]:
    """Trains up to ``steps`` steps, going on from the latest checkpoint; the losses of the steps it
    did.
    """
    settings = TrainerConfig(
        id="run",
        tracker=NoopConfig(),
        log_dir=folder / "logs",
        train_batch_size=config.batch_size,
        num_train_steps=steps,
        require_accelerator=False,
        log_jaxprs=False,
        log_xla_hlo=False,
        watch=WatchConfig(watch_targets=[]),
        checkpointer=CheckpointerConfig(base_path=str(folder), save_interval=None),
    )
    model = Gpt2Config(max_seq_len=config.seq_len, hidden_dim=16, num_layers=1, num_heads=2)
    optimizer = AdamConfig(learning_rate=1e-3, lr_schedule="constant", warmup=0)
    losses: list[float] = []
    with Trainer(settings, optimizer.build(steps), loss_of) as trainer:
        last = settings.checkpointer.create(
            trainer.run_id
        )  # the trainer's own writes behind: none can wait for it
        vocab = hax.Axis("vocab", config.vocab_size)
        state = trainer.initial_state(
            jax.random.PRNGKey(0), model_init=lambda: model.build(vocab, key=jax.random.PRNGKey(1))
        )  # the latest checkpoint, if there is one
        # refuses another plan
        opened = open_run(folder / "run" / "headrace", config, int(state.step))
        loader = LmLoader.of(trainer, opened.config or config)
        with loader.iter_from_step(state.step) as batches:
            for info in trainer.training_steps(state, batches):
                losses.append(info.loss)
            if losses:
                last.on_step(tree=info.state.saveable_state, step=info.step, force=True)
                last.wait_until_finished()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--folder", type=Path, default=Path("levanter-run"))
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    for step, loss in enumerate(run(load_config(args.config), args.folder, args.steps)):
        print(f"{step:4d}  {loss:.4f}")
