r"""MaxText's own training loop on headrace's batches: the model, loss and checkpoints of the
``maxtext`` package.

    python examples/maxtext_train.py run.yaml --folder out --steps 20 base_emb_dim=512

What stands behind the options goes to MaxText's config. Started again with more steps, the run goes
on from its last checkpoint, which has the iterator's state beside the model's. MaxText needs Python
3.12 and brings its dependencies as extras (``maxtext[tpu]``, ``maxtext[cuda12]``). For a CPU::

    pip install maxtext headrace jax flax optax orbax-checkpoint grain absl-py aqtp qwix pydantic \
        tensorboardX transformers sentencepiece omegaconf psutil etils chex drjax tokamax \
        ml-goodput-measurement cloud-accelerator-diagnostics cloud-tpu-diagnostics \
        google-cloud-mldiagnostics google-cloud-storage gcsfs tiktoken tensorflow-cpu datasets \
        tensorflow-datasets jsonlines pathwaysutils einshape google-jetstream math-verify jinja2 \
        pillow
"""

# maxtext is no dependency of headrace, so its types may not be there
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from headrace import LmDataConfig, load_config
from headrace.adapters import MaxTextIterator
from headrace.mix import BatchSchedule

TINY = {
    "hardware": "cpu",
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_decoder_layers": 2,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "head_dim": 16,
    "attention": "dot_product",
    "dtype": "float32",
    "learning_rate": 0.01,
    "warmup_steps_fraction": 0.1,
    "remat_policy": "minimal",
}
"""A model for a CPU; larger ones are named on the command line."""


def maxtext_arguments(
    config: LmDataConfig, folder: Path, steps: int, overrides: list[str]
) -> list[str]:
    """MaxText's command line for a run on this data: what both must know is taken from headrace's
    config.
    """
    import jax
    import maxtext

    settings = {
        **TINY,
        "run_name": "headrace",
        "base_output_directory": folder.resolve(),
        "dataset_type": "grain",  # so that MaxText's checkpoints hold the iterator
        "grain_train_files": "headrace",  # MaxText asks for a name; nothing opens it
        "max_target_length": config.seq_len,
        "per_device_batch_size": BatchSchedule(config.batch_size).max_size / jax.device_count(),
        "vocab_size": -(-config.vocab_size // 128) * 128,
        "steps": steps,
        "learning_rate_schedule_steps": config.num_steps
        or steps,  # the same, wherever the run is stopped
        "metrics_file": folder.resolve() / "metrics.jsonl",
        "enable_checkpointing": True,
        "async_checkpointing": False,
        "checkpoint_period": 5,
        "enable_tensorboard": False,
        "enable_goodput_recording": False,
        "monitor_goodput": False,
        "skip_jax_distributed_system": True,
    }
    base = Path(maxtext.__file__).parent / "configs" / "base.yml"
    return [
        "maxtext",
        str(base),
        *(f"{name}={value}" for name, value in settings.items()),
        *overrides,
    ]


def run(config: LmDataConfig, folder: Path, steps: int, overrides: list[str]) -> dict[int, float]:
    """Trains up to this step; the loss of every step so far, by step."""
    from maxtext.input_pipeline import input_pipeline_interface
    from maxtext.trainers.pre_train import train
    from maxtext.utils.sharding import get_input_data_sharding

    def create_data_iterator(maxtext_config: Any, mesh: Any) -> tuple[MaxTextIterator, None]:
        loader = config.loader(sharding=get_input_data_sharding(maxtext_config, mesh))
        return MaxTextIterator(loader), None

    input_pipeline_interface.create_data_iterator = (
        create_data_iterator  # the one place where MaxText asks for data
    )
    folder.mkdir(parents=True, exist_ok=True)
    train.main(maxtext_arguments(config, folder, steps, overrides))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {int(line["step"]): line["learning/loss"] for line in lines}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    args, overrides = parser.parse_known_args()
    for step, loss in run(load_config(args.config), args.folder, args.steps, overrides).items():
        print(step, f"{loss:.4f}")
