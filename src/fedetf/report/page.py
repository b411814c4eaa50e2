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
from fedetf.comparison.best import at_their_best
from fedetf.errors import UserError
from fedetf.files import make_folder, packaged, write_whole
from fedetf.report import results, sections
from fedetf.report.clients import client_rows, lead, shortfall_lines
from fedetf.report.curves import (
    ACCURACY,
    CLIENTS,
    FINETUNING,
    LOSS,
    OVER_BYTES,
    OVER_PASSES,
    Chart,
    curve,
    measure_charts,
)
from fedetf.report.groups import BY_ACCURACY, Arrangement, Group, Judging, arrange, show
from fedetf.report.html import Html, heading, join, safe_json, table, tag, text
from fedetf.report.target import target_lead, target_rows
from fedetf.runs.read import Problem, Run, gather

SCRIPTS = ("chart.js", "holds.js", "page.js")
LIVE_SCRIPTS = ("chart.js", "holds.js", "live.js", "page.js")  # live.js sees the page before anything is drawn in it
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


def write_report(
    folders: Sequence[str | Path],
    out: str | Path,
    about: About | None = None,
    target: float | None = None,
    judging: Judging = BY_ACCURACY,
) -> Report:
    """Write one HTML page about the runs in some folders (run folders, or folders that hold any at any depth).

    Runs that are unfinished or damaged are named on the page and left out of its numbers. ``about`` stands above all;
    with a ``target``, a general accuracy, the page says what it takes to reach it. ``judging`` says which metric its
    tables have, and which method all others are compared with.
    """
    path = Path(out)
    if path.suffix != ".html" or path.is_dir():
        raise UserError(f"the report is an HTML file; give --out a name that ends with .html, not {str(path)!r}")
    runs, left_out = gather([Path(folder) for folder in folders])
    if not runs:
        first = left_out[0]
        raise UserError(f"no finished run to report on; for example {first.folder}: {first.reason}")
    arranged = arrange(runs, judging)
    left_out = [*left_out, *arranged.doubles]
    make_folder(path.parent)
    write_whole(path, render(arranged, left_out, about, target=target).encode())
    return Report(path, sum(len(group.runs) for group in arranged.groups), left_out)


def render(
    arranged: Arrangement,
    left_out: Sequence[Problem] = (),
    about: About | None = None,
    live: bool = False,
    target: float | None = None,
) -> str:
    """The page; a live one is served, and keeps itself current."""
    finished = arranged.finished
    main, more = measure_charts(arranged)
    charts = [ACCURACY, OVER_BYTES, OVER_PASSES, LOSS, FINETUNING, CLIENTS, *main, *more]
    holdings = _holdings(arranged)
    counted = {(group.variant, group.setting): group for group in finished.judged.counted}  # on the table's seeds
    groups = [counted.get((group.variant, group.setting), group) for group in arranged.groups]
    drawn = {chart.key: _data(chart, arranged, groups) for chart in charts}
    references = list(dict.fromkeys(group.name for group in arranged.groups if group.reference))
    data = {
        "variants": arranged.variants,
        "settings": arranged.settings,
        "references": references,
        "charts": drawn,
        "holdings": holdings,
    }
    parts = {
        "policy": policy(live),
        "title": text(about.title if about else sections.title(arranged)),
        "about": tag("ul", *(tag("li", said) for said in about.sentences), class_="about") if about else "",
        "subtitle": text(sections.subtitle(arranged)),
        "takeaways": results.takeaways(finished),
        "running": sections.running(arranged),
        "problems": join([sections.problems(left_out), sections.absences(arranged)]),
        "lead": results.lead(finished),
        "results": results.results(finished),
        "differences": join([results.differences(finished), _best(finished)]),
        "views": _views(arranged),
        "accuracy": _figure(ACCURACY, wide=True),
        "loss": _fold("Training loss", [_figure(LOSS)]),
        "costs": _fold("Over bytes and image passes instead of rounds", [_figure(OVER_BYTES), _figure(OVER_PASSES)]),
        "measures": _measures(main, more),
        "finetuning": _finetuning(bool(drawn[FINETUNING.key]["curves"])),
        "clients": _clients(finished),
        "holdings": sections.choice("holding", [h["name"] for h in holdings], "Partition"),
        "described": join(tag("p", h["text"], class_="described") for h in holdings[:1]),
        "cost": sections.cost(finished),
        "target": "" if target is None else _target(finished, target),
        "differing": sections.differing_settings(arranged),
        "common": sections.common_settings(arranged),
        "commands": sections.commands(arranged),
        "made": f"Made by fedetf {__version__} on {time.strftime('%Y-%m-%d')}.",
        "style": _file("page.css"),
        "data": safe_json(data),
        "script": _script(live),
    }
    return Template(_file("page.html")).substitute(parts)


def _best(arranged: Arrangement) -> Html:
    """Each method at its best, where several settings of one were run."""
    best = at_their_best([run for group in arranged.groups for run in group.runs])
    if not best.runs:
        return tag("p", f"{best.note}.", class_="note") if best.note else Html("")
    against = arranged.judged.chosen_method
    chosen = arrange(best.runs, Judging(arranged.judging.metric, against))
    note = tag("p", f"{best.note}.", class_="note")
    return join(
        [
            tag("h3", "Each at its best"),
            note,
            results.results(chosen),
            results.differences(chosen, ", each at its best"),
        ]
    )


def policy(live: bool = False) -> str:
    """What the page may do: run its own script, by its hash, and nothing else; a live one asks its own server too."""
    digest = base64.b64encode(hashlib.sha256(_script(live).encode()).digest()).decode()
    asks = "; connect-src 'self'" if live else ""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'{asks}"


def _script(live: bool) -> str:
    return "\n".join(_file(name) for name in (LIVE_SCRIPTS if live else SCRIPTS))


def _file(name: str) -> str:
    return packaged("report", name)


# --- what the script draws --------------------------------------------------------------------------------------------


def _data(chart: Chart, arranged: Arrangement, groups: Sequence[Group]) -> dict[str, Any]:
    curves = []
    for group in groups:
        drawn = curve(group.runs, chart.of, chart.along)
        if drawn is not None:
            place = [arranged.variants.index(group.variant), arranged.settings.index(group.setting)]
            curves.append({"at": place, **drawn})
    return {"x": chart.x, "percent": chart.percent, "cost": chart.along is not None, "curves": curves}


def _holdings(arranged: Arrangement) -> list[dict[str, Any]]:
    """Each partition once, with its name."""
    distinct: dict[str, tuple[Run, list[int]]] = {}
    for run in (run for name in arranged.settings for g in arranged.groups if g.setting == name for run in g.runs):
        key = json.dumps([run.holdings.classes, *(client.counts for client in run.holdings.clients)])
        seeds = distinct.setdefault(key, (run, []))[1]
        seeds += [run.seed] if run.seed not in seeds else []
    return [_holding(run, seeds) for run, seeds in distinct.values()]


def _holding(run: Run, seeds: Sequence[int]) -> dict[str, Any]:
    s, clients = run.settings, run.holdings.clients
    how = s.get("data.partition")
    dealt = f"alpha = {show(s.get('data.alpha'))}" if how == "dirichlet" else how
    if s.get("data.site_column") is not None:
        dealt = f"one for each {s['data.site_column']}"
    clients_text = f"{len(clients)} sites" if run.holdings.elsewhere else f"{len(clients)} clients, {dealt}"
    return {
        "name": f"{show(s.get('data.name'))}, {clients_text}, seed {', '.join(map(str, seeds))}",
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


def _clients(arranged: Arrangement) -> Html:
    """How clients fare, and who is below what; of the first nothing where no run has personal models."""
    groups = arranged.judged.counted
    rows, low = client_rows(groups), shortfall_lines(groups)
    named = tag("ul", *(tag("li", line) for line in low), class_="note") if low else Html("")
    title = tag("h2", "How the clients fare")
    if not rows:
        return tag("section", title, named, id="clients") if low else named
    picture = tag("div", _figure(CLIENTS, wide=True), class_="scripted")
    said = tag("p", lead(groups), class_="lead")
    rows = [rows[0], *([*row, tag("td", worst, class_="long")] for *row, worst in rows[1:])]
    return tag("section", title, said, _rows(rows), named, picture, id="clients")


def _target(arranged: Arrangement, target: float) -> Html:
    said = tag("p", target_lead(target), class_="lead")
    return join([tag("h3", "To the target"), said, _rows(target_rows(arranged.judged.counted, target))])


def _rows(rows: Sequence[Sequence[str]]) -> Html:
    return table([heading(rows[0])], rows[1:])


def _finetuning(there: bool) -> Html:
    if there:
        return _figure(FINETUNING, wide=True)
    return tag("p", "No run here has a finetuning stage that is measured step by step.", class_="note")
