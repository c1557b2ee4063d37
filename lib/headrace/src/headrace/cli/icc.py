"""``headrace icc``: whether a corpus needs shuffling."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson

if TYPE_CHECKING:
    import numpy as np

    from headrace.probe import ShuffleProbe


def command(
    cache: Annotated[str, typer.Argument(help="A finished cache.", metavar="CACHE")],
    seq_len: Annotated[int, typer.Option(help="Tokens in a row.")] = 2048,
    batch_size: Annotated[int, typer.Option(help="Rows in a batch.")] = 512,
    block: Annotated[int | None, typer.Option(help="Rows in a block; one stored chunk by default.")] = None,
    losses: Annotated[
        str | None, typer.Option(help=".npy file with the loss of each row, from a model of yours.", metavar="FILE")
    ] = None,
    blocks: Annotated[int, typer.Option(help="Blocks to read, at most.")] = 4096,
    as_json: AsJson = False,
) -> None:
    """Show how alike neighbouring rows are, and so whether a corpus needs shuffling.

    Each row gets a loss: that of its tokens' frequencies, or one that you give. The share of its variance that lies
    between blocks (the intraclass correlation) says how much noisier the batches of each order are than those of a full
    shuffle. Only evenly spaced stretches of a large cache are read.

    For example:

        headrace icc caches/code

        headrace icc caches/code --seq-len 4096 --batch-size 1024 --losses losses.npy
    """
    from headrace.probe import probe_cache
    from headrace.store.cache import TokenCache

    given = None if losses is None else _load(losses)
    found = probe_cache(
        TokenCache.open(cache), seq_len, batch_size=batch_size, block=block, losses=given, max_blocks=blocks
    )
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        show(found)


def show(found: ShuffleProbe) -> None:
    """Prints what a probe found."""
    from rich.console import Console
    from rich.table import Table

    console, share = Console(highlight=False), found.share
    console.print(f"{found.rows:,} of {found.of_rows:,} rows, blocks of {found.block} rows, by {found.value}")
    console.print(f"Of the variance, {share.icc:.1%} lie between blocks (95 %: {share.low:.1%} to {share.high:.1%})\n")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("order")
    table.add_column(f"noise of a batch of {found.batch_size:,} rows, full shuffle = 1", justify="right")
    for order, noise in found.noise.items():
        table.add_row(order, f"{noise:.2f}")
    console.print(table)
    needs = "needs shuffling" if found.needs_shuffling else "may be read as it is stored, by this measure"
    console.print(f"\nThis corpus {needs}.")


def _load(path: str) -> np.ndarray:
    import numpy as np

    from headrace.errors import ConfigError

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read as an array ({error})", field="--losses", value=path, cure="numpy.save(FILE, losses)"
        ) from error
