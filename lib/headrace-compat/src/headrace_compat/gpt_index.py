"""Megatron-LM's GPT index: the tokens of sample k of a corpus, for runs that must continue as they
began there.

Documents are shuffled, all epochs at once, and concatenated; sample k begins at token ``k *
stride`` of that stream; then samples are shuffled. One ``numpy.random.RandomState`` does both. The
last epoch is shuffled separately if fewer than 80 % of its samples are needed, so that these are
not spread over the whole run.

The order depends on the number of samples: with more of them, it differs from the first sample on.
Price: 4 bytes per document and epoch, 4 bytes per sample, and a shuffle of each, 20 ns per element,
when a run starts; nothing is written. Reference: Megatron-LM
``megatron/core/datasets/gpt_dataset.py`` at d98e8a6; its sample index follows from the lengths of
the documents in order and is not stored here.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64, UInt

from headrace.errors import ConfigError, check_at_least

_APART = 0.80  # of the last epoch's samples: with fewer, it is shuffled separately


class GptIndex:
    """The order of a corpus.

    Args:
        lengths: Tokens of each document.
        documents: Numbers of the documents of the split.
        stride: Tokens from one sample to the next: Megatron's sequence length.
        samples: Number of samples of the run; None: those of one epoch.
        seed: Megatron's ``--seed``.
        overlap: Tokens that a sample shares with the next one: 1, the token to predict; 0 without
            ``add_extra_token_to_sequence``.

    Attributes:
        epochs: Passes over the documents.
        last_epoch_apart: Whether the last one is shuffled separately.
        documents: Documents of all epochs, in order.
        order: Sample at each position of the run; there may be more than requested.

    Raises:
        ConfigError: the documents do not fill a sample; an invalid number.

    Example:
        >>> index = GptIndex(np.array([5, 3, 6]), np.arange(3), stride=4, samples=5, seed=1)
        >>> index.epochs, index.documents.tolist(), index.order.tolist()
        (2, [2, 1, 1, 0, 0, 2], [4, 2, 0, 5, 3, 1])
    """

    def __init__(
        self,
        lengths: Int64[np.ndarray, " n"],
        documents: Int64[np.ndarray, " d"],
        *,
        stride: int,
        samples: int | None,
        seed: int,
        overlap: int = 1,
    ) -> None:
        check_at_least("stride", stride)
        if not 0 <= seed < 1 << 32:
            cure = "Give Megatron's --seed."
            raise ConfigError(
                "must lie in 0 .. 2**32 - 1 for Megatron's order",
                field="seed",
                value=seed,
                cure=cure,
            )
        tokens = int(lengths[documents].sum())
        per_epoch = (tokens - overlap) // stride
        if per_epoch < 1:
            problem = (
                f"is longer than the {tokens:,} tokens of the split's {documents.size:,} documents"
            )
            cure = "Use a shorter seq_len, a larger corpus or another split."
            raise ConfigError(problem, field="seq_len", value=stride + overlap, cure=cure)
        self.epochs = 1 if samples is None else max(-(-(samples * stride + overlap) // tokens), 1)
        self.last_epoch_apart = False
        total = (self.epochs * tokens - overlap) // stride
        of_earlier = ((self.epochs - 1) * tokens - overlap) // stride
        if samples is not None and self.epochs > 1:
            self.last_epoch_apart = samples - of_earlier < int(_APART * per_epoch)
        state = np.random.RandomState(seed)
        passes = [self.epochs - 1, 1] if self.last_epoch_apart else [self.epochs]
        self.documents: Int32[np.ndarray, " d"] = np.concatenate(
            [_shuffled(documents, n, state) for n in passes]
        )
        parts = [(0, of_earlier), (of_earlier, total)] if self.last_epoch_apart else [(0, total)]
        dtype = np.uint32 if total < np.iinfo(np.uint32).max - 1 else np.int64
        orders = [np.arange(begin, end, dtype=dtype) for begin, end in parts]
        for order in orders:
            state.shuffle(order)
        self.order: UInt[np.ndarray, " s"] = np.concatenate(orders)


def _shuffled(
    documents: Int64[np.ndarray, " d"], passes: int, state: np.random.RandomState
) -> Int32[np.ndarray, " e"]:
    order = np.tile(documents.astype(np.int32), passes)
    state.shuffle(order)
    return order
