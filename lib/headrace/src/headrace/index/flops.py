"""What a document costs a transformer: FLOPs of the forward pass, linear in its tokens but for attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class TransformerCost:
    """A dense decoder with grouped queries and gated feed-forward layers.

    Attributes:
        hidden_size: Width.
        num_layers: Layers.
        num_heads: Query heads.
        head_size: Channels of a head.
        num_kv_heads: Heads of keys and values.
        ffn_size: Width of the feed-forward layers.
        vocab_size: Size of the vocabulary.

    Example:
        >>> model = TransformerCost(1024, 12, 16, 64, 4, 4096, 32000)
        >>> float(model.flops(np.array([1000]))[0])
        455016448000.0
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    head_size: int
    num_kv_heads: int
    ffn_size: int
    vocab_size: int

    def flops(self, lengths: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        """FLOPs of the forward pass over documents that attend to themselves only, causally.

        Args:
            lengths: Tokens of each document.
        """
        n = np.asarray(lengths, np.float64)
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        weights = self.hidden_size * (2 * queries + 2 * keys + 3 * self.ffn_size)
        attention = 2 * queries * n  # scores and values, of which causal attention needs half
        return n * (self.num_layers * (2 * weights + attention) + 2 * self.hidden_size * self.vocab_size)
