"""Progress, tables and pictures."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import fedetf
from fedetf.data import Partition
from fedetf.report.figures import accuracy_figure, partition_figure, save_figure
from fedetf.report.progress import LiveProgress, LiveRuns, PlainProgress, make_progress, make_runs_progress
from fedetf.report.tables import partition_table, percent, result_table


def shown(renderable: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def partition(counts: list[list[int]]) -> Partition:
    train = [np.arange(sum(row)) for row in counts]
    return Partition(train, train, np.array(counts), [f"class {c}" for c in range(len(counts[0]))])


def test_percent() -> None:
    assert percent(0.12345) == "12.3 %"
    assert percent(None) == "-"


def test_partition_table() -> None:
    text = shown(partition_table(partition([[5, 0, 2], [0, 0, 9]])))
    assert "2/3  class 0: 5, class 2: 2" in text
    assert "1/3  class 2: 9" in text


def test_result_table_names_what_each_number_is() -> None:
    result = fedetf.run(clients=3, rounds=1, epochs=1, settings={"data.limit": 100, "personal.enabled": False})
    text = shown(result_table(result.job, result.outcome))
    assert f"{100 * result.general:.1f} %" in text
    assert "personal" not in text  # the stage was left out
    assert "last" not in text  # of one round


@pytest.mark.parametrize("live", [True, False])
def test_progress_shows_round_loss_accuracy_and_the_personal_stage(live: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=live, width=120)
    progress = make_progress(console)
    assert isinstance(progress, LiveProgress if live else PlainProgress)
    result = fedetf.run(
        clients=3, rounds=2, epochs=1, listeners=[progress], settings={"data.limit": 100, "personal.rounds": 1}
    )
    text = console.file.getvalue()
    assert "2/2" in text
    assert f"loss {result.rounds[-1].loss:.3f}" in text
    assert f"general {percent(result.general)}" in text
    assert "personal models" in text
    assert "3/3" in text
    assert "left" in text


@pytest.mark.parametrize("clients", [2, 150])
def test_partition_figure_has_a_disc_for_each_share(clients: int, tmp_path) -> None:
    counts = [[5, 0, 2], [0, 0, 9]] * (clients // 2)
    figure = partition_figure(partition(counts), "title")
    (axes,) = figure.axes
    (discs,) = axes.collections
    assert len(discs.get_offsets()) == 3 * min(clients, 100) // 2
    areas = discs.get_sizes()
    assert areas[2] == max(areas)  # nine samples, the most
    assert ("first 100 of 150 clients" in axes.get_title()) == (clients > 100)
    assert save_figure(figure, tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_partition_figure_names_sites() -> None:
    figure = partition_figure(replace(partition([[5, 1], [0, 9]]), sites=["north", "south"]), "title")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["north", "south"]
    assert figure.axes[0].get_xlabel() == "site"


def test_accuracy_figure_draws_the_mean_of_the_seeds() -> None:
    figure = accuracy_figure({"a": [[0.1, 0.2], [0.3, 0.4]], "b": [[0.5, 0.6]]}, "title")
    first, second = figure.axes[0].lines
    np.testing.assert_allclose(first.get_ydata(), [20, 30])
    np.testing.assert_allclose(second.get_ydata(), [50, 60])
    assert first.get_label() == "a (mean and range of 2 seeds)"
    assert first.get_marker() != second.get_marker()


def test_live_view_of_a_comparison(tmp_path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False)
    view = make_runs_progress(console)
    assert isinstance(view, LiveRuns)
    settings = {"data.limit": 100, "personal.rounds": 1}
    for _ in range(2):
        fedetf.compare(
            ["fedavg"],
            [7],
            references=False,
            clients=3,
            rounds=1,
            epochs=1,
            settings=settings,
            out=tmp_path / "grid",
            progress=view,
        )
    view.close()
    text = console.file.getvalue()
    assert "[1/1] fedavg, seed 7: done" in text
    assert "[1/1] fedavg, seed 7: was done before" in text
    assert "1/1" in text
