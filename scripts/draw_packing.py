"""Draws docs/images/packing.svg: sixty documents in packs, by three algorithms.

Run it so: ``python scripts/draw_packing.py docs/images/packing.svg``.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np

from headrace.pack import plan_packs

CAPACITY = 4096
BLOCK = 16_384
WIDTH = 240
ROW = 9
SHOWN = (("next_fit", "in order"), ("windowed", "neighbours"), ("bfd", "best fit decreasing"))


def drawing() -> str:
    """The picture as SVG: a bar is a pack, a box a document, its colour the stored block that it
    begins in.
    """
    drawn = np.exp(np.random.default_rng(3).standard_normal(60)) * 600
    lengths = np.clip(np.rint(drawn), 60, CAPACITY).astype(np.int64)
    block = (np.cumsum(lengths) - lengths) // BLOCK
    plans = [plan_packs(lengths, CAPACITY, name, block_tokens=BLOCK) for name, _ in SHOWN]
    height = 46 + max(map(len, plans)) * (ROW + 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * (WIDTH + 24)} {height}" font-family="sans-serif">',
        f'<rect width="100%" height="{height}" fill="#ffffff"/>',
    ]
    for column, ((name, what), plan) in enumerate(zip(SHOWN, plans, strict=True)):
        left = 12 + column * (WIDTH + 24)
        parts.append(f'<text x="{left}" y="16" font-size="12" fill="#222">{name}: {what}</text>')
        said = f"{len(plan)} packs, {plan.fill:.1%} full"
        parts.append(f'<text x="{left}" y="31" font-size="10" fill="#666">{said}</text>')
        for pack, (first, stop) in enumerate(pairwise(plan.bounds.tolist())):
            top = 40 + pack * (ROW + 3)
            at = 0.0
            parts.append(
                f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{ROW}" fill="#e8e8e8"/>'
            )
            for item in range(first, stop):
                wide = int(plan.items.size[item]) / CAPACITY * WIDTH
                hue = int(block[plan.items.document[item]]) * 67 % 360
                parts.append(
                    f'<rect x="{left + at:.1f}" y="{top}" width="{max(wide - 0.8, 0.4):.1f}" height="{ROW}"'
                    f' fill="hsl({hue},55%,55%)"/>'
                )
                at += wide
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(drawing())


if __name__ == "__main__":
    main()
