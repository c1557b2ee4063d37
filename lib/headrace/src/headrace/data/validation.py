"""What a :class:`~headrace.index.validation_config.ValidationConfig` means for a token dataset: its two sides."""

from __future__ import annotations

from typing import cast

from headrace.data.dataset import PlannedDataset
from headrace.data.packing import PackedTokenDataset
from headrace.data.token_seq import TokenSeqDataset
from headrace.errors import ConfigError
from headrace.index.validation_config import ValidationConfig


def split_sides(
    dataset: TokenSeqDataset | PackedTokenDataset,
    split: ValidationConfig,
    *,
    block_tokens: int | None = None,
    seq_len: int | None = None,
) -> tuple[PlannedDataset, PlannedDataset]:
    """Train and validation side, the same tokens whatever the length of rows (of packs: if documents are held out).

    Args:
        dataset: All of a component.
        split: What is held out.
        block_tokens: Tokens of the blocks that are held out, if by blocks; None: as the split says.
        seq_len: Tokens in a row of both sides; None: as in ``dataset``.

    Raises:
        ConfigError: what the split says does not fit the dataset or the blocks; rows longer than a block.

    Example:
        >>> import headrace.testing
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=500), seq_len=8)
        >>> short, long = (split_sides(dataset, ValidationConfig(8), seq_len=n)[1] for n in (8, 32))
        >>> len(short) == 4 * len(long), len(long) > 0
        (True, True)
    """
    if split.by == "documents":
        train, validation = dataset.holdout_documents(split.groups_of, seed=split.seed)
        return (train, validation) if seq_len is None else (train.with_rows(seq_len), validation.with_rows(seq_len))
    if block_tokens is None:
        block_tokens = (split.io_block_size or dataset.holdout_block_size(split.groups_of)) * dataset.seq_len
    elif split.io_block_size not in (None, block_tokens // dataset.seq_len):
        raise ConfigError(
            f"differs from the blocks of {block_tokens // dataset.seq_len} rows in which seq_len changes",
            field="validation.io_block_size",
            value=split.io_block_size,
            cure="Leave it out.",
        )
    if seq_len not in (None, dataset.seq_len):
        dataset = dataset.with_rows(seq_len, block_tokens=block_tokens)
    sides = dataset.holdout(split.groups_of, seed=split.seed, io_block_size=block_tokens // dataset.seq_len)
    return cast("tuple[PlannedDataset, PlannedDataset]", sides)
