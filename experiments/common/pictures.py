"""How the pictures of the experiments look."""

from __future__ import annotations

from matplotlib.figure import Figure

COLORS = ("#222222", "#ddaa33", "#88ccee", "#4477aa", "#aa3377", "#cc6699", "#999999", "#44aa99")


def new_figure(title: str, *, width: float = 8, height: float = 4) -> Figure:
    """A figure with its title at the left."""
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    return figure
