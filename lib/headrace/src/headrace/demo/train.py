"""Trains a small transformer on the data of run.yaml in the same folder. ``headrace init`` wrote
this file; edit it as you like.

    python train.py               # resumes the run, if it has begun
    python train.py --run runs/2  # another run

A checkpoint contains the model, the optimizer and the state of the data. It is written atomically,
so a kill costs only the steps since the last one. Ctrl-C and SIGTERM save a checkpoint before the
run ends.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax.sharding import NamedSharding, PartitionSpec

from headrace import HeadraceError, LmDataConfig, RunLog, load_config, open_run
from headrace.demo import Transformer, make_optimizer, train_step
from headrace.report import gather, write_report
from headrace.run import LoaderState


def save(path: Path, state: Any) -> None:
    """Writes a checkpoint to a temporary path and renames it, then deletes all but
    the two newest.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        eqx.tree_serialise_leaves(file, state)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    for old in sorted(path.parent.glob("step-*.eqx"))[:-2]:
        old.unlink()


def restore(folder: Path, fresh: Any) -> tuple[Any, LoaderState | None]:
    """The model, the optimizer and the state of the data in the newest checkpoint; ``fresh`` if
    there is none.
    """
    newest = max(folder.glob("step-*.eqx"), default=None)
    if newest is None:
        return fresh, None
    *state, data = eqx.tree_deserialise_leaves(newest, (*fresh, LoaderState.like()))
    print(f"resumes from {newest}")
    return tuple(state), LoaderState.from_pytree(data)


def train(config: LmDataConfig, folder: Path, save_every: int) -> bool:
    """Trains until the run's last step or until a signal arrives; returns whether it reached the
    end.
    """
    steps = config.num_steps or 1000
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    optimizer = make_optimizer(steps, peak_lr=3e-3)
    model = Transformer(
        config.vocab_size, dim=128, layers=2, heads=4, key=jax.random.key(config.seed)
    )
    fresh = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    state, reached = restore(folder / "checkpoints", fresh)
    # refused, with the difference, if run.yaml now means other data for a step that is done
    run = open_run(folder, config, reached or 0)
    step = 0 if reached is None else reached.step
    if step < steps:
        print(f"steps {step:,} to {steps - 1:,}; the first compiles and takes longer", flush=True)
    with (
        run.loader() as loader,
        RunLog(loader, folder, config=run.config) as log,
        loader.iter_from_step(step) as batches,
    ):
        everywhere = NamedSharding(loader.placement.sharding.mesh, PartitionSpec())
        state = eqx.filter_shard(state, everywhere)  # on every device
        while step < steps and not signals:
            model, optimizer_state, loss = train_step(state[0], state[1], optimizer, next(batches))
            state = (model, optimizer_state)
            log(step)
            step += 1
            if step % 10 == 0 or step == steps:
                print(f"step {step:6,} of {steps:,}  loss {float(loss):.4f}", flush=True)
            if step % save_every == 0 or step == steps or signals:
                save(
                    folder / "checkpoints" / f"step-{step:08d}.eqx",
                    (*state, run.state(step).to_pytree()),
                )
    return step == steps


def main() -> None:
    """Reads the command line, trains, and writes the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, default=Path("runs/1"), help="folder of the run")
    parser.add_argument(
        "--save-every", type=int, default=50, metavar="STEPS", help="steps between checkpoints"
    )
    args = parser.parse_args()
    os.chdir(Path(__file__).parent)  # run.yaml and its caches are here
    try:
        finished = train(load_config("run.yaml"), args.run, args.save_every)
    except HeadraceError as error:
        raise SystemExit(f"error {error}") from None
    if not finished:
        print("stopped and saved; run the same command again to resume")
        return
    page = args.run / "report.html"
    try:
        write_report(gather(str(args.run)), str(page))
        print(f"done; {page} shows what the run was fed")
    except HeadraceError as error:
        print(f"done, without a report: {error}")


if __name__ == "__main__":
    main()
