"""The report: one HTML file that needs nothing else, from any number of run folders."""

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from fedetf import __version__
from fedetf.errors import UserError
from fedetf.files import make_folder, packaged, write_whole
from fedetf.report import sections
from fedetf.report.curves import ACCURACY, FINETUNING, LOSS, Chart, curve, measure_charts
from fedetf.report.groups import Arrangement, arrange, show
from fedetf.report.html import Html, join, safe_json, tag, text
from fedetf.runs.read import Problem, Run, gather

SCRIPTS = ("chart.js", "holds.js", "page.js")
MOST_CLIENTS = 100  # in the chart of who holds what


@dataclass(frozen=True)
class Report:
    """What :func:`write_report` returns."""

    path: Path
    runs: int
    left_out: list[Problem]


@dataclass(frozen=True)
class About:
    """What the runs of a page were made for."""

    title: str
    sentences: Sequence[str]


def write_report(folders: Sequence[str | Path], out: str | Path, about: About | None = None) -> Report:
    """Write one HTML page about the runs in some folders (run folders, or folders that hold any at any depth).

    Runs that are unfinished or damaged are named on the page and left out of its numbers. ``about`` stands above all.
    """
    path = Path(out)
    if path.suffix != ".html" or path.is_dir():
        raise UserError(f"the report is an HTML file; give --out a name that ends with .html, not {str(path)!r}")
    runs, left_out = gather([Path(folder) for folder in folders])
    if not runs:
        first = left_out[0]
        raise UserError(f"no finished run to report on; for example {first.folder}: {first.reason}")
    arranged = arrange(runs)
    left_out = [*left_out, *arranged.doubles]
    make_folder(path.parent)
    write_whole(path, render(arranged, left_out, about).encode())
    return Report(path, sum(len(group.runs) for group in arranged.groups), left_out)


def render(arranged: Arrangement, left_out: Sequence[Problem] = (), about: About | None = None) -> str:
    """The page."""
    main, more = measure_charts(arranged)
    charts = [ACCURACY, LOSS, FINETUNING, *main, *more]
    holdings = _holdings(arranged)
    script = "\n".join(_file(name) for name in SCRIPTS)
    drawn = {chart.key: _data(chart, arranged) for chart in charts}
    data = {"variants": arranged.variants, "settings": arranged.settings, "charts": drawn, "holdings": holdings}
    parts = {
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {_hash(script)}",
        "title": text(about.title if about else sections.title(arranged)),
        "about": tag("ul", *(tag("li", said) for said in about.sentences), class_="about") if about else "",
        "subtitle": text(sections.subtitle(arranged)),
        "takeaways": sections.takeaways(arranged),
        "problems": join([sections.problems(left_out), sections.absences(arranged)]),
        "results": sections.results(arranged),
        "views": _views(arranged),
        "accuracy": _figure(ACCURACY, wide=True),
        "loss": _fold("Training loss", [_figure(LOSS)]),
        "measures": _measures(main, more),
        "finetuning": _finetuning(bool(drawn[FINETUNING.key]["curves"])),
        "holdings": sections.choice("holding", [h["name"] for h in holdings], "Partition"),
        "described": join(tag("p", h["text"], class_="described") for h in holdings[:1]),
        "cost": sections.cost(arranged),
        "differing": sections.differing_settings(arranged),
        "common": sections.common_settings(arranged),
        "commands": sections.commands(arranged),
        "made": f"Made by fedetf {__version__} on {time.strftime('%Y-%m-%d')}.",
        "style": _file("page.css"),
        "data": safe_json(data),
        "script": script,
    }
    return Template(_file("page.html")).substitute(parts)


def _file(name: str) -> str:
    return packaged("report", name)


def _hash(script: str) -> str:
    """The script as the page's policy names it: no other script runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


# --- what the script draws --------------------------------------------------------------------------------------------


def _data(chart: Chart, arranged: Arrangement) -> dict[str, Any]:
    curves = []
    for group in arranged.groups:
        drawn = curve(group.runs, chart.of)
        if drawn is not None:
            place = [arranged.variants.index(group.variant), arranged.settings.index(group.setting)]
            curves.append({"at": place, **drawn})
    return {"x": chart.x, "percent": chart.percent, "curves": curves}


def _holdings(arranged: Arrangement) -> list[dict[str, Any]]:
    """Each partition once, with its name."""
    distinct: dict[str, tuple[Run, list[int]]] = {}
    for run in (run for name in arranged.settings for g in arranged.groups if g.setting == name for run in g.runs):
        key = json.dumps([run.holdings.classes, *(held.counts for held in run.holdings.clients)])
        seeds = distinct.setdefault(key, (run, []))[1]
        seeds += [run.result.seed] if run.result.seed not in seeds else []
    return [_holding(run, seeds) for run, seeds in distinct.values()]


def _holding(run: Run, seeds: Sequence[int]) -> dict[str, Any]:
    s, clients = run.settings, run.holdings.clients
    how = s.get("data.partition")
    dealt = f"alpha = {show(s.get('data.alpha'))}" if how == "dirichlet" else how
    if s.get("data.site_column") is not None:
        dealt = f"one for each {s['data.site_column']}"
    held = f"{len(clients)} sites" if run.holdings.elsewhere else f"{len(clients)} clients, {dealt}"
    return {
        "name": f"{show(s.get('data.name'))}, {held}, seed {', '.join(map(str, seeds))}",
        "text": sections.describe_holdings(run),
        "classes": run.holdings.classes,
        "clients": len(clients),
        "counts": [] if run.holdings.elsewhere else [client.counts for client in clients[:MOST_CLIENTS]],
    }


# --- where it is drawn ------------------------------------------------------------------------------------------------


def _figure(chart: Chart, wide: bool = False) -> Html:
    caption = tag("figcaption", tag("h3", chart.title), *([tag("p", chart.caption)] if chart.caption else []))
    return tag("figure", caption, class_="chart wide" if wide else "chart", data_chart=chart.key)


def _fold(summary: str, inside: Sequence[Html]) -> Html:
    return tag("details", tag("summary", summary), tag("div", *inside, class_="charts"))


def _views(arranged: Arrangement) -> Html:
    """What can be compared in the charts: methods in one setting, or the settings of one method."""
    by_setting = [_option(f"all methods, {name}", "setting", i) for i, name in enumerate(arranged.settings)]
    by_variant = [_option(f"{name}, all settings", "variant", i) for i, name in enumerate(arranged.variants)]
    if len(arranged.settings) == 1:
        by_setting, by_variant = [_option("all methods", "setting", 0)], []
    elif len(arranged.variants) == 1:
        by_setting = []
    return join([*by_setting, *by_variant])


def _option(name: str, kind: str, index: int) -> Html:
    return tag("option", name, value=f"{kind}:{index}")


def _measures(main: Sequence[Chart], more: Sequence[Chart]) -> Html:
    if not main and not more:
        how = tag("code", "--set measure.collapse=true")
        return tag("p", "These runs did not record them. Repeat a run with ", how, " to see them here.", class_="note")
    shown = tag("div", *map(_figure, main), class_="charts")
    return join([shown, *([_fold("More measures", [_figure(chart) for chart in more])] if more else [])])


def _finetuning(there: bool) -> Html:
    if there:
        return _figure(FINETUNING, wide=True)
    return tag("p", "No run here has a finetuning stage that is measured step by step (FedETF has).", class_="note")
