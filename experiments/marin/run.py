"""Marin's steps with headrace's data: texts, two caches that are trained on, one that is evaluated
on, a training.

``web`` and ``held_out`` are tokenized by Marin's own step, ``code`` by headrace; the training is
Marin's ``train_lm``, and one line (``on_headrace``) lets headrace feed it. Evaluation is
Levanter's, on the held-out cache with its tag.

    MARIN_PREFIX=/tmp/marin WANDB_MODE=offline python experiments/marin/run.py --version dev          # the plan
    MARIN_PREFIX=/tmp/marin WANDB_MODE=offline python experiments/marin/run.py --version dev --run
"""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

from fray.types import ResourceConfig
from levanter.models.llama import LlamaConfig
from levanter.optim.config import AdamConfig
from marin.execution.artifact import Artifact, is_mutable_version
from marin.execution.lazy import OUT, ArtifactStep, apply
from marin.execution.remote import remote
from marin.experiment.cli import experiment_main
from marin.experiment.data import tokenized
from marin.experiment.train import train_lm
from marin.processing.tokenize.tokenize import TokenizedCache
from marin.training.training import LevanterCheckpoint, TrainLmOnPodConfig, run_levanter_train_lm
from rigging.filesystem.cluster_config import marin_prefix
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace import SourceConfig, TokenizerConfig, build_cache
from headrace_levanter import own_loader, with_fed_data

SOURCES = {"web": "w", "code": "c", "held_out": "w"}
WORDS = 200
SEQ_LEN = 64
BATCH = 8
STEPS = 20


def write_texts(output: str, documents: int) -> None:
    """Writes documents of each source, of words of its own."""
    for seed, (name, letter) in enumerate(SOURCES.items()):
        pick = random.Random(seed)
        folder = Path(output, name)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "texts.jsonl").open("w") as file:
            for _ in range(documents):
                words = [
                    f"{letter}{min(pick.randrange(WORDS), pick.randrange(WORDS))}"
                    for _ in range(100)
                ]
                file.write(json.dumps({"text": " ".join(words)}) + "\n")


def tokenizer_folder() -> str:
    """A tokenizer of whole words in a folder, so that nothing is fetched from a hub."""
    folder = Path(marin_prefix(), "tokenizer")
    if not folder.exists():
        words = ["<eos>", *(f"{letter}{n}" for letter in "wc" for n in range(WORDS))]
        model = Tokenizer(
            models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<eos>")
        )
        model.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>").save_pretrained(folder)
    return str(folder)


def build_with_headrace(output: str, texts: str, tokenizer: str) -> None:
    """A cache of headrace's own form, in the folder where Levanter's components look for what they
    train on.
    """
    restart = is_mutable_version(Path(output).name)  # a version named dev is made anew each time
    build_cache(
        SourceConfig([texts]),
        TokenizerConfig(f"{tokenizer}/tokenizer.json"),
        f"{output}/train",
        restart=restart,
    )


def train_on_headrace(pod: TrainLmOnPodConfig) -> None:
    """Marin's training job with headrace's rows and headrace's loader."""
    # Marin's caches do not name theirs
    tokenizer = f"tokenizer.path={pod.train_config.data.tokenizer}/tokenizer.json"
    config = with_fed_data(
        pod.train_config, settings=[tokenizer], run_dir=f"{pod.output_path}/checkpoints"
    )
    with own_loader():
        run_levanter_train_lm(dataclasses.replace(pod, train_config=config))


def on_headrace(step: ArtifactStep[LevanterCheckpoint]) -> ArtifactStep[LevanterCheckpoint]:
    """A training step whose data headrace delivers."""
    return dataclasses.replace(
        step, run=remote(train_on_headrace, resources=step.runtime_args["train_resources"])
    )


def build() -> ArtifactStep[LevanterCheckpoint]:
    """The steps; nothing runs here."""
    tokenizer = tokenizer_folder()
    texts = apply("texts", write_texts, artifact_type=Artifact, output=OUT, documents=400)
    web = tokenized("web", tokenizer=tokenizer, raw=texts, glob="web/*.jsonl")
    code = apply(
        "code",
        lambda output, folder, tokenizer: build_with_headrace(output, f"{folder}/code", tokenizer),
        artifact_type=TokenizedCache,
        output=OUT,
        folder=texts,
        tokenizer=tokenizer,
    )
    held_out = tokenized(
        "held_out",
        tokenizer=tokenizer,
        raw=texts,
        glob="held_out/*.jsonl",
        validation=True,
        tags=["held-out"],
    )
    return on_headrace(
        train_lm(
            name="tiny",
            model=LlamaConfig(
                max_seq_len=SEQ_LEN,
                hidden_dim=32,
                intermediate_dim=64,
                num_layers=1,
                num_heads=2,
                num_kv_heads=2,
                tokenizer=tokenizer,
            ),
            optimizer=AdamConfig(learning_rate=1e-2, warmup=0),
            datasets={web: 3.0, code: 1.0},
            validation=[held_out],
            batch_size=BATCH,
            seq_len=SEQ_LEN,
            num_train_steps=STEPS,
            steps_per_eval=STEPS,
            z_loss_weight=None,
            evals=None,
            resources=ResourceConfig.with_cpu(),
            run_id="tiny",
        )
    )


if __name__ == "__main__":
    experiment_main(build)()
