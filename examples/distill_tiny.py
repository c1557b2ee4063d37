"""Distillation in seconds: a student that sees what a teacher thinks of each token learns more of
the same text.

    python examples/distill_tiny.py --folder /tmp/distill --steps 300

The language is a chain of 64 symbols. The teacher has counted the pairs of 200,000 of them; the
student gets 2,000, once with labels alone and once with the teacher's eight likeliest symbols and
their log probabilities at each token. These lie in the cache as columns beside the tokens,
`headrace build` takes them from the records, and batches bring them along. Both students are then
asked for text that neither has seen.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from headrace import (
    ComponentConfig,
    LmDataConfig,
    PackedBatch,
    SourceConfig,
    TokenizerConfig,
    build_cache,
)
from headrace.batch import token_nll, unified_loss
from headrace.ingest import LeafConfig
from headrace_posttrain import distillation_loss

SYMBOLS = 64
TOP = 8
DOCUMENT = 50
TAUGHT = 2_000
COUNTED = 200_000
COLUMNS = {"teacher_ids": "topk", "teacher_log_probs": "topk_log_probs"}
OPTIMIZER = optax.adam(0.05)


def write_text(language: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Symbols of the chain, int64 ``[length]``."""
    edges = language.cumsum(axis=1)
    draws = rng.random(length)
    text = np.zeros(length, np.int64)
    for at in range(1, length):
        text[at] = min(int(np.searchsorted(edges[text[at - 1]], draws[at])), SYMBOLS - 1)
    return text


def teach(text: np.ndarray) -> np.ndarray:
    """The teacher: log probabilities ``[SYMBOLS, SYMBOLS]`` of what follows each symbol, by
    counting pairs.
    """
    counts = np.full((SYMBOLS, SYMBOLS), 0.1)
    np.add.at(counts, (text[:-1], text[1:]), 1)
    return np.log(counts / counts.sum(axis=1, keepdims=True))


def write_records(path: Path, text: np.ndarray, teacher: np.ndarray) -> None:
    """Documents with what the teacher says of each of their tokens, given the one before it."""
    with path.open("w") as file:
        for document in np.split(text, range(DOCUMENT, text.size, DOCUMENT)):
            said = teacher[np.append(0, document[:-1])]
            ids = np.argsort(-said, axis=1)[:, :TOP]
            top = np.take_along_axis(said, ids, axis=1)
            record = {
                "input_ids": document.tolist(),
                "ids": ids.tolist(),
                "log_probs": top.round(4).tolist(),
            }
            file.write(json.dumps(record) + "\n")


def build(folder: Path, text: np.ndarray, teacher: np.ndarray) -> LmDataConfig:
    """The cache, and the config of a run over it. On the command line:

    headrace build taught.jsonl --kind tokens --ids 64 --leaf topk=ids:int32:token:8 ...
    """
    write_records(folder / "taught.jsonl", text, teacher)
    leaves = {
        "topk": LeafConfig("ids", "int32", width=TOP),
        "topk_log_probs": LeafConfig("log_probs", "float32", width=TOP),
    }
    source = SourceConfig([str(folder / "taught.jsonl")], kind="tokens", leaves=leaves)
    build_cache(source, TokenizerConfig(f"ids:{SYMBOLS}"), str(folder / "cache"), progress=False)
    component = {"taught": ComponentConfig(str(folder / "cache"))}
    return LmDataConfig(component, seq_len=DOCUMENT, batch_size=16, columns={**COLUMNS})


def loss_of(table: jax.Array, batch: PackedBatch, *, distilled: bool) -> jax.Array:
    """What a student is trained on: the labels, or the teacher's distributions beside them."""
    logits = table[batch.tokens]
    if not distilled:
        return unified_loss(logits, batch)
    return distillation_loss(logits, batch, *map(batch.of_labels, COLUMNS))


@partial(jax.jit, static_argnames="distilled")
def train_step(table: jax.Array, state: optax.OptState, batch: PackedBatch, *, distilled: bool):
    """One step of Adam."""
    gradient = jax.grad(loss_of)(table, batch, distilled=distilled)
    updates, state = OPTIMIZER.update(gradient, state)
    return jnp.asarray(optax.apply_updates(table, updates)), state


def train(config: LmDataConfig, steps: int, *, distilled: bool) -> jax.Array:
    """A student: logits ``[SYMBOLS, SYMBOLS]`` of what follows each symbol."""
    table = jnp.zeros((SYMBOLS, SYMBOLS))
    state = OPTIMIZER.init(table)
    with config.loader(jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("data",))) as loader:
        for _, batch in zip(range(steps), loader, strict=False):
            table, state = train_step(table, state, batch, distilled=distilled)
    return table


def run(folder: Path, steps: int, seed: int = 0) -> dict[str, float]:
    """Nats a token on text that no student has seen, of the teacher and of both students."""
    rng = np.random.default_rng(seed)
    language = rng.dirichlet(np.full(SYMBOLS, 0.1), SYMBOLS)
    teacher = teach(write_text(language, COUNTED, rng))
    config = build(folder, write_text(language, TAUGHT, rng), teacher)
    unseen = write_text(language, 20_000, rng)
    students = {
        name: train(config, steps, distilled=name == "distilled")
        for name in ("labels", "distilled")
    }
    models = {"teacher": jnp.asarray(teacher), **students}
    return {
        name: float(token_nll(table[unseen[:-1]], unseen[1:]).mean())
        for name, table in models.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, nats in run(folder, args.steps).items():
            print(f"{name:10s} {nats:.4f} nats a token")
