"""Pictures: who holds what, and accuracy over the rounds."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedetf.comparison.overall import Overall
from fedetf.data import Partition
from fedetf.files import write_whole

MOST_CLIENTS = 100
MOST_LABELS = 20
MARKERS = "osD^vPX*<>"  # so that curves differ without colour too


def partition_figure(partition: Partition, title: str) -> Figure:
    """Who holds what: a disc for each client and class, its area in proportion to the number of samples."""
    counts = partition.counts[:MOST_CLIENTS]
    K, C = counts.shape
    figure = Figure(figsize=(min(3 + 0.3 * K, 14), min(2 + 0.25 * C, 10)), layout="constrained")
    axes = figure.add_subplot()
    draw_holdings(axes, counts, size=300)
    shown = f", first {K} of {len(partition)} clients" if len(partition) > K else ""
    axes.set(
        title=f"{title}{shown}",
        xlabel="site" if partition.sites else "client",
        ylabel=f"class (largest disc: {counts.max()} samples)",
    )
    if C <= MOST_LABELS:
        axes.set_yticks(range(C), partition.classes)
    if partition.sites and K <= MOST_LABELS:
        axes.set_xticks(range(K), partition.sites[:K], rotation=45, ha="right")
    return figure


def draw_holdings(axes: Axes, counts: NDArray[np.int64], size: float) -> None:
    """A disc for each client and class of counts ``[K, C]``; the largest has the area ``size``."""
    clients, classes = np.nonzero(counts)
    axes.scatter(clients, classes, s=size * counts[clients, classes] / counts.max() + 1, alpha=0.7, edgecolors="none")
    axes.set(xlim=(-0.8, counts.shape[0] - 0.2), ylim=(-0.8, counts.shape[1] - 0.2))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.2)


def accuracy_figure(curves: Mapping[str, Sequence[Sequence[float]]], title: str) -> Figure:
    """General accuracy over the rounds: for each name the mean of its seeds, and a band from lowest to highest."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, seeds), marker in zip(curves.items(), MARKERS * len(curves), strict=False):
        _draw_curve(axes, name, 100 * np.asarray(seeds), marker)
    axes.set(title=title, xlabel="round", ylabel="general accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    axes.grid(alpha=0.2)
    return figure


def _draw_curve(axes: Axes, name: str, seeds: np.ndarray, marker: str) -> None:
    rounds = np.arange(1, seeds.shape[1] + 1)
    label = f"{name} (mean and range of {len(seeds)} seeds)" if len(seeds) > 1 else name
    (line,) = axes.plot(rounds, seeds.mean(axis=0), marker=marker, markevery=max(1, len(rounds) // 10), label=label)
    if len(seeds) > 1:
        axes.fill_between(rounds, seeds.min(axis=0), seeds.max(axis=0), color=line.get_color(), alpha=0.15)


def critical_difference_figure(overall: Overall, title: str) -> Figure:
    """Demšar's diagram: mean ranks on a line, the best at the left, and a bar over methods not shown to differ."""
    friedman, k = overall.friedman, len(overall.methods)
    order = sorted(range(k), key=lambda i: friedman.ranks[i])
    half = (k + 1) // 2  # the better half is named at the left, the other at the right
    figure = Figure(figsize=(7, 1.3 + 0.28 * (half + len(friedman.groups))), layout="constrained")
    axes = figure.add_subplot()
    for place, i in enumerate(order):
        left = place < half
        y = -1 - 0.5 * len(friedman.groups) - (place if left else k - 1 - place)
        edge = 0.6 if left else k + 0.4
        axes.plot([friedman.ranks[i], friedman.ranks[i], edge], [0, y, y], color="0.4", linewidth=0.8)
        text = (
            f"{overall.methods[i]} {friedman.ranks[i]:.2f} "
            if left
            else f" {friedman.ranks[i]:.2f} {overall.methods[i]}"
        )
        axes.text(edge, y, text, ha="right" if left else "left", va="center", fontsize="small")
    for level, members in enumerate(friedman.groups, start=1):
        ends = [friedman.ranks[members[0]] - 0.04, friedman.ranks[members[-1]] + 0.04]
        axes.plot(ends, [-0.5 * level] * 2, color="C0", linewidth=3, solid_capstyle="butt")
    axes.plot([1, 1 + friedman.width], [1.1, 1.1], color="0.1", linewidth=1.5, marker="|")
    axes.text(
        1 + friedman.width / 2,
        1.25,
        f"critical difference {friedman.width:.2f}",
        ha="center",
        va="bottom",
        fontsize="small",
    )
    axes.plot([1, k], [0, 0], color="0.1", linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.15], color="0.1", linewidth=1)
        axes.text(rank, 0.2, str(rank), ha="center", va="bottom", fontsize="small")
    axes.set(title=f"{title}: mean ranks over {friedman.blocks} settings", xlim=(-0.9, k + 1.9))
    axes.set_ylim(top=2.1)
    axes.axis("off")
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a picture as its name's ending says, PNG or PDF, and return where it is."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150)
    write_whole(path, content.getvalue())
    return path
