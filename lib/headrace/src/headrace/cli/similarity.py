"""What ``headrace cache inspect --icc`` measures: how similar neighbouring rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.options import cache_at
from headrace.cli.shown import figures_table, say, say_json, terminal, working
from headrace.errors import ConfigError, format_count

if TYPE_CHECKING:
    import numpy as np

    from headrace.analysis.probe import ShuffleProbe


def show_similarity(
    cache: str,
    *,
    seq_len: int,
    batch_size: int,
    block: int | None,
    blocks: int,
    losses: str | None,
    save: bool,
    as_json: bool,
) -> None:
    """Measures the similarity of the rows of a finished cache, and prints or saves it.

    Each row gets a loss: that of its tokens' frequencies, or one from the file ``losses``. The
    share of the variance that lies between blocks (the intraclass correlation) shows how much
    noisier each order's batches are than those of a full shuffle. In a large cache, only evenly
    spaced stretches are read.
    """
    from headrace.analysis.probe import probe_cache, save_probe

    values = None if losses is None else _load(losses)
    opened = cache_at(cache)
    with working("reading blocks"):
        probe = probe_cache(
            opened, seq_len, batch_size=batch_size, block=block, losses=values, max_blocks=blocks
        )
    if save:
        say(f"saved: {save_probe(opened, seq_len, probe)}", err=True)
    if as_json:
        say_json(probe.to_dict())
    else:
        _show_probe(probe)


def _show_probe(probe: ShuffleProbe) -> None:
    """Prints the result of a probe."""
    console = terminal()
    share = probe.share
    console.print(
        f"{probe.rows:,} of {probe.of_rows:,} rows, blocks of {probe.block} rows, by {probe.value}"
    )
    console.print(
        f"{share.icc:z.1%} of the variance lies between blocks (95%: {share.low:z.1%} to"
        f" {share.high:z.1%})\n"
    )
    table = figures_table(
        "order", f"noise of a batch of {format_count(probe.batch_size, 'row')}, full shuffle = 1"
    )
    for order, noise in probe.noise.items():
        table.add_row(order, f"{noise:.2f}")
    console.print(table)
    needs = (
        "needs shuffling"
        if probe.needs_shuffling
        else "can be read in stored order, by this measure"
    )
    console.print(f"\nThis corpus {needs}.")


def _load(path: str) -> np.ndarray:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a .npy file of numbers"
        cure = "Write it with numpy.save(FILE, losses), one loss per row."
        raise ConfigError(
            f"cannot be read ({why})", field="--losses", value=path, cure=cure
        ) from error
