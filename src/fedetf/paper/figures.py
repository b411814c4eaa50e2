"""The paper's figures, drawn from an experiment's runs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from fedetf.core.state import load_state
from fedetf.data import Partition
from fedetf.paper.run import Reproduction
from fedetf.report.figures import MARKERS, draw_holdings
from fedetf.runs.folder import CLASSIFIERS
from fedetf.runs.read import Run, read_holdings

Floats = NDArray[np.float64]
FEDETF = "FedETF, d = C"  # the row of Figure 6 whose steps are drawn
STYLES = ["-", "--", ":", "-."]


def figure1(reproduction: Reproduction) -> Figure:
    """How skewed data bias the clients' classifiers: one row of pictures for each degree of skew."""
    columns = reproduction.columns
    (row,) = reproduction.rows(columns[0])
    columns = [column for column in columns if (row, column) in reproduction.results.runs]
    examples = [reproduction.results.runs[row, column][0] for column in columns]
    figure = Figure(figsize=(13, 2.6 * len(columns)), layout="constrained")
    grid = figure.add_gridspec(len(columns), 4, width_ratios=[1.2, 1, 1, 1])
    _draw_decline(figure.add_subplot(grid[:, 0]), reproduction, row, columns)
    vectors = [_class_vectors(run) for run in examples]
    lowest = min(_cosines(each).min() for each in vectors)
    for place, (column, run) in enumerate(zip(columns, examples, strict=True)):
        holdings, cosines, tsne = (figure.add_subplot(grid[place, panel]) for panel in (1, 2, 3))
        counts = [client.counts for client in run.holdings.clients]
        draw_holdings(holdings, np.array(counts), size=80)
        holdings.set(title=f"who holds what, {column}, seed {run.seed}", xlabel="client", ylabel="class")
        _draw_cosines(figure, cosines, vectors[place], float(lowest))
        _draw_tsne(tsne, vectors[place])
    return figure


def _draw_decline(axes: Axes, reproduction: Reproduction, row: str, columns: Sequence[str]) -> None:
    """Accuracy and agreement over the degrees of skew, mean over the seeds."""
    shown = {
        "general": "accuracy of the global model",
        "classifier_consistency": "agreement of the clients' classifiers",
        "prototype_consistency": "agreement of the clients' features",
    }
    for (metric, label), marker, style in zip(shown.items(), MARKERS, STYLES, strict=False):
        values = [reproduction.results.values(row, column, metric) for column in columns]
        axes.plot(
            columns, [float(np.mean(v)) if v else np.nan for v in values], marker=marker, linestyle=style, label=label
        )
    axes.set(title="accuracy and agreement over the skew", ylabel="accuracy, or mean cosine of pairs of clients")
    axes.legend(frameon=False)
    axes.grid(alpha=0.2)


def _class_vectors(run: Run) -> Floats:
    """``[K, C, D]``, each of length 1."""
    state = load_state(run.folder / CLASSIFIERS)
    vectors = np.stack([state[key].numpy().astype(np.float64) for key in sorted(state, key=int)])
    unit: Floats = vectors / np.linalg.norm(vectors, axis=2, keepdims=True).clip(min=1e-12)
    return unit


def _cosines(vectors: Floats) -> Floats:
    """``[K, K]``: mean over the classes of the cosine of two clients' class vectors."""
    cosines: Floats = np.einsum("kcd,jcd->kj", vectors, vectors) / vectors.shape[1]
    return cosines


def _draw_cosines(figure: Figure, axes: Axes, vectors: Floats, lowest: float) -> None:
    image = axes.imshow(_cosines(vectors), vmin=lowest, vmax=1, cmap="viridis")
    figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set(title="cosines of classifiers", xlabel="client", ylabel="client")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))


def _draw_tsne(axes: Axes, vectors: Floats) -> None:
    """The clients' class vectors in the plane; a colour and a number for each class."""
    from sklearn.manifold import TSNE  # half a second that other figures need not wait

    clients, classes, dim = vectors.shape
    points = vectors.reshape(-1, dim)
    perplexity = max(2.0, min(30.0, clients))
    tsne = TSNE(perplexity=perplexity, method="exact", init="pca", random_state=0)  # a few hundred points at most
    placed = tsne.fit_transform(points).reshape(clients, classes, 2)
    for c in range(classes):
        axes.scatter(placed[:, c, 0], placed[:, c, 1], s=14, marker=MARKERS[c % len(MARKERS)])
        middle = np.median(placed[:, c], axis=0)
        nearest = placed[np.linalg.norm(placed[:, c] - middle, axis=1).argmin(), c]
        axes.annotate(str(c), nearest, xytext=(0, 3), textcoords="offset points", ha="center", weight="bold")
    axes.margins(0.1)
    axes.set(title="t-SNE of class vectors", xlabel="a mark: a class at a client", xticks=[], yticks=[])


def figure4(reproduction: Reproduction) -> Figure:
    """General accuracy over the rounds, a panel for each setting."""
    columns = reproduction.columns
    figure = Figure(figsize=(6 * len(columns), 4.2), layout="constrained")
    for axes, column in zip(np.atleast_1d(figure.subplots(1, len(columns))), columns, strict=True):
        _draw_curves(axes, reproduction, column, "general")
        axes.set(title=reproduction.heading(column), ylabel="general accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(frameon=False)
    return figure


def figure5(reproduction: Reproduction) -> Figure:
    """Feature alignment, neural collapse and drift over the rounds; below, the first two measured in other ways."""
    panels = {
        "prototype_consistency": "(a) prototype consistency of clients\nhigher: features agree",
        "nc2_uncentred": "(b) neural-collapse error, class means as they are\nlower: closer to a simplex ETF",
        "model_consistency": "(c) consistency of local models\nhigher: less drift",
        "prototype_consistency_raw": "(a) in another way: prototype consistency\nof the encoder's features h for both",
        "nc2": "(b) in another way: neural-collapse error,\ncentred class means",
        "prototype_consistency_centred": "(a) in a third way: prototype consistency,\ncentred class means",
    }
    (column,) = reproduction.columns
    figure = Figure(figsize=(13, 8), layout="constrained")
    for axes, (metric, title) in zip(figure.subplots(2, 3).flat, panels.items(), strict=True):
        _draw_curves(axes, reproduction, column, metric)
        axes.set(title=title)
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.legend(frameon=False)
    return figure


def figure6(reproduction: Reproduction) -> Figure:
    """The ETF's dimension d, and personal accuracy after each step of finetuning."""
    (column,) = reproduction.columns
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    accuracy, error, steps = figure.subplots(1, 3)
    variants = {_dimension(reproduction, row): row for row in reproduction.rows(column) if row != "FedAvg"}
    for axes, metric, title in (
        (accuracy, "general", "(a) general accuracy"),
        (error, "nc2_uncentred", "(a) neural-collapse error,\nclass means as they are"),
    ):
        points = [(str(d), reproduction.results.values(row, column, metric)) for d, row in sorted(variants.items())]
        drawn = {d: values for d, values in points if values}
        for d, values in drawn.items():
            axes.errorbar(d, np.mean(values), yerr=np.std(values), marker="o", color="tab:blue", capsize=3)
        axes.set(title=title, xlabel="dimension d of the ETF")
        axes.set_ylim(0, 1.15 * max(map(max, drawn.values()), default=1.0))  # small differences shall look small
        axes.grid(alpha=0.2)
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0))
    _draw_finetuning(steps, reproduction, column)
    return figure


def _dimension(reproduction: Reproduction, row: str) -> int:
    trial = next(trial for trial in reproduction.trials if trial.row == row)
    given = trial.run.settings.method.model_dump().get("dim")
    if given is not None:
        return int(given)
    return len(read_holdings(trial.run.folder).classes)


def _draw_finetuning(axes: Axes, reproduction: Reproduction, column: str) -> None:
    curves = [run.result.personal_curve for run in reproduction.results.runs.get((FEDETF, column), [])]
    if curves:
        axes.plot(np.mean(curves, axis=0), marker="o", markersize=4, label="FedETF")
    baseline = reproduction.results.values("FedAvg", column, "personal")
    if baseline:
        axes.axhline(float(np.mean(baseline)), linestyle="--", color="tab:orange", label="FedAvg, finetuned")
    explained = "step (0: global model; 1: extractor finetuned;\nfrom 2 on: turns of ETF and projection)"
    axes.set(title="(b) personal accuracy, step by step", xlabel=explained)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False)
    axes.grid(alpha=0.2)


def figure7(reproduction: Reproduction) -> Figure:
    """Who holds what at two degrees of skew."""
    partitions: Mapping[str, Partition] = reproduction.partitions
    figure = Figure(figsize=(6.5 * len(partitions), 4.2), layout="constrained")
    for axes, (column, partition) in zip(figure.subplots(1, len(partitions)), partitions.items(), strict=True):
        draw_holdings(axes, partition.counts, size=300)
        axes.set(
            title=reproduction.heading(column),
            xlabel="client",
            ylabel=f"class (largest disc: {partition.counts.max()} samples)",
        )
        axes.set_yticks(range(len(partition.classes)), partition.classes)
    return figure


def _draw_curves(axes: Axes, reproduction: Reproduction, column: str, metric: str) -> None:
    """For each row the mean of its seeds in the rounds that were measured, and a band from lowest to highest."""
    looks = zip(cycle(MARKERS), cycle(STYLES), strict=False)
    for row, (marker, style) in zip(reproduction.rows(column), looks, strict=False):
        runs = reproduction.results.runs.get((row, column), [])
        if not runs:
            continue
        curves = np.array([run.curve(metric) for run in runs])
        measured = np.flatnonzero(~np.isnan(curves).any(axis=0))
        rounds, seen = measured + 1, curves[:, measured]
        (line,) = axes.plot(rounds, seen.mean(axis=0), marker=marker, linestyle=style, markersize=4, label=row)
        if len(seen) > 1:
            axes.fill_between(rounds, seen.min(axis=0), seen.max(axis=0), color=line.get_color(), alpha=0.15)
    axes.set(xlabel="round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.2)


FIGURES: dict[str, Callable[[Reproduction], Figure]] = {
    "fig1": figure1,
    "fig4": figure4,
    "fig5": figure5,
    "fig6": figure6,
    "fig7": figure7,
}
