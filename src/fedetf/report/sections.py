"""The parts of the page that are there without JavaScript: sentences and tables."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedetf.comparison.ranking import Spread, rank
from fedetf.own_code import asks_for_code
from fedetf.redact import bare, without_folders
from fedetf.report.groups import Arrangement, Group, show
from fedetf.report.html import Html, heading, join, table, tag
from fedetf.runs.read import ACCURACIES, Problem, Run, in_words

DASH = "–"
MOST_SETTINGS = 2  # with more than that, the table says it better than sentences


# --- the head of the page ---------------------------------------------------------------------------------------------


def title(arranged: Arrangement) -> str:
    """The page in a few words."""
    methods = list(dict.fromkeys(variant.partition(" (")[0] for variant in arranged.variants))
    datasets = list(dict.fromkeys(show(run.settings.get("data.name")) for g in arranged.groups for run in g.runs))
    compared = " and ".join(methods) if len(methods) < 3 else f"{len(methods)} methods"
    return f"{compared} on {', '.join(datasets)}"


def subtitle(arranged: Arrangement) -> str:
    """What all runs have in common."""
    parts = [("model.name", "{}"), ("data.clients", "{} clients"), ("train.participation", "participation {}")]
    if arranged.common.get("data.site_column"):
        parts.insert(2, ("data.site_column", "one for each {}"))
    elif arranged.common.get("data.partition") == "dirichlet" and not any(_elsewhere(arranged)):
        parts.insert(2, ("data.alpha", "alpha = {}"))
    parts += [("train.rounds", "{} rounds"), ("train.epochs", "local epochs {}"), ("train.lr", "learning rate {}")]
    parts += [("fidelity", "fidelity {}")]
    shared = [form.format(show(arranged.common[key])) for key, form in parts if key in arranged.common]
    seeds = sorted({seed for group in arranged.groups for seed in group.seeds})
    shared.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}")
    return " · ".join(shared)


def _elsewhere(arranged: Arrangement) -> Iterator[bool]:
    return (run.holdings.elsewhere for group in arranged.groups for run in group.runs)


def takeaways(arranged: Arrangement) -> Html:
    """What came out, in sentences."""
    if len(arranged.settings) > MOST_SETTINGS or len(arranged.variants) == 1 < len(arranged.settings):
        return Html("")
    sentences = []
    for setting in arranged.settings:
        groups = [group for group in arranged.groups if group.setting == setting]
        where = f", {setting}" if setting else ""
        for what, metric in (("One model for all", "general"), ("One model for each client", "personal")):
            sentence = _best(groups, metric)
            if sentence:
                sentences.append(tag("li", tag("span", f"{what}{where}", class_="what"), " ", sentence))
    return tag("ul", *sentences, class_="takeaways")


def _best(groups: Sequence[Group], metric: str) -> Html | None:
    ranking = rank([group.scores(metric) for group in groups])
    ranked = zip(groups, ranking.spreads, strict=True)
    measured = [(found.mean, found.std, group.variant) for group, found in ranked if found is not None]
    if not measured:
        any_value = any(group.scores(metric) for group in groups)
        return tag("span", "No seed was run by all methods, so they cannot be compared.") if any_value else None
    note = _on_seeds(groups, metric, ranking.seeds)
    best, spread = max((mean, spread) for mean, spread, _ in measured)
    value = tag("b", f"{100 * best:.1f}\N{NO-BREAK SPACE}%")
    first = [name for mean, _, name in measured if f"{100 * mean:.1f}" == f"{100 * best:.1f}"]
    others = [each for each in measured if each[-1] not in first]
    if len(measured) == 1:
        return tag("span", f"{first[0]} reaches ", value, ".")
    if len(first) > 1:
        return tag("span", tag("b", f"{', '.join(first[:-1])} and {first[-1]}"), " are level at ", value, f"{note}.")
    rival, rival_spread, name = next((each for each in others if each[-1] == "FedAvg"), max(others))
    points = f"{100 * (best - rival):.1f}"
    if best - rival < max(spread, rival_spread):  # see the lead of the table: this may be chance
        note += ", less than the seeds differ by"
    return tag("span", tag("b", first[0]), " is best with ", value, f", {points} points above {name}{note}.")


def _on_seeds(groups: Sequence[Group], metric: str, seeds: Sequence[int]) -> str:
    """What to say of the seeds that a ranking rests on."""
    if len(seeds) == 1:
        return " (one seed: this may be chance)"
    more = any(set(group.scores(metric)) - set(seeds) for group in groups)
    return f" (on {len(seeds)} seeds that all have)" if more else ""


def problems(left_out: Sequence[Problem]) -> Html:
    """The runs that are not shown."""
    if not left_out:
        return Html("")
    said = [(without_folders(folders), without_folders(reason)) for folders, reason in in_words(left_out)]
    items = [tag("li", tag("code", folders), " ", reason) for folders, reason in said]
    count = "One folder is" if len(left_out) == 1 else f"{len(left_out)} folders are"
    return tag("aside", tag("p", tag("b", f"{count} not shown")), tag("ul", *items), class_="problems")


def absences(arranged: Arrangement) -> Html:
    """Whose updates were not part of a round, and why."""
    items = []
    for run in (run for group in arranged.groups for run in group.runs):
        sites, reasons = run.holdings.sites, dict[tuple[int, str], list[int]]()
        for line in run.rounds:
            for client, why in {**line.missing, **line.refused}.items():
                reasons.setdefault((client, why), []).append(line.round)
        for (client, why), rounds in reasons.items():
            name = sites[client] if client < len(sites) else f"client {client}"
            when = f"round{'s' if len(rounds) > 1 else ''} {', '.join(map(str, rounds))}"
            items.append(tag("li", tag("code", bare(str(run.folder))), f" {name}, {when}: {why}"))
    if not items:
        return Html("")
    return tag("aside", tag("p", tag("b", "Updates that were left out")), tag("ul", *items), class_="problems")


# --- results ----------------------------------------------------------------------------------------------------------

PLACES = {None: "", 1: "1st", 2: "2nd"}


def results(arranged: Arrangement) -> Html:
    """Methods × settings. With one method only, its settings are the rows."""
    if len(arranged.variants) == 1 and len(arranged.settings) > 1:
        rows = [[name, *_pair(arranged.get(arranged.variants[0], name), ("", ""))] for name in arranged.settings]
        return table([heading(["Setting", *_columns()])], rows, class_="results")
    marks = {setting: _marks(arranged, setting) for setting in arranged.settings}
    rows = []
    for variant in arranged.variants:
        cells: list[str] = [variant]
        for setting in arranged.settings:
            cells += _pair(arranged.get(variant, setting), marks[setting].get(variant, ("", "")))
        rows.append(cells)
    heads = [heading([tag("th", "Method", scope="col"), *_columns() * len(arranged.settings)])]
    if len(arranged.settings) > 1:
        spans = [tag("th", name, scope="colgroup", colspan="3", class_="span") for name in arranged.settings]
        heads.insert(0, heading([tag("td"), *spans]))
    return table(heads, rows, class_="results")


def _columns() -> list[Html]:
    accuracies = [("General, %", "one model for all"), ("Personal, %", "one for each client")]
    columns = [tag("th", name, tag("small", note), scope="col", class_="accuracy") for name, note in accuracies]
    return [*columns, tag("th", "Seeds", scope="col", class_="number")]


def _pair(group: Group | None, marks: Sequence[str]) -> list[Html]:
    if group is None:
        return [_accuracy(None, ""), _accuracy(None, ""), tag("td", DASH, class_="number quiet")]
    accuracies = [_accuracy(group.spread(metric), mark) for metric, mark in zip(ACCURACIES, marks, strict=True)]
    return [*accuracies, tag("td", str(len(group.seeds)), class_="number quiet")]


def _accuracy(spread: Spread | None, mark: str) -> Html:
    if spread is None:
        return tag("td", tag("span", DASH, class_="mean"), class_="accuracy")
    deviation = f"±{100 * spread.std:.2f}" if spread.count > 1 else ""
    mean = tag("b" if mark else "span", f"{100 * spread.mean:.2f}", class_="mean")
    return tag("td", mean, tag("span", deviation, class_="std"), tag("span", mark, class_="rank"), class_="accuracy")


def _marks(arranged: Arrangement, setting: str) -> dict[str, list[str]]:
    """Of each variant in a setting, its place in general and in personal accuracy, if it is among the best."""
    groups = [group for group in arranged.groups if group.setting == setting]
    places = [rank([group.scores(metric) for group in groups]).places for metric in ACCURACIES]
    pairs = zip(groups, zip(*places, strict=True), strict=True)
    return {group.variant: [PLACES[place] for place in both] for group, both in pairs}


# --- who holds what ---------------------------------------------------------------------------------------------------


def describe_holdings(run: Run) -> str:
    """A partition in a sentence."""
    if run.holdings.elsewhere:
        return f"{len(run.holdings.clients)} sites. What each of them holds, it alone knows."
    counts = [held.counts for held in run.holdings.clients]
    sizes = [sum(row) for row in counts]
    held = [sum(n > 0 for n in row) for row in counts]
    single = held.count(1)
    alone = f", {single} of them hold{'s' if single == 1 else ''} one class only" if single else ""
    classes = f"{sum(held) / len(held):.1f} of {len(run.holdings.classes)} classes on average"
    named = ", ".join(f"{k}: {name}" for k, name in enumerate(run.holdings.sites))
    names = f" They are {named}." if named else ""
    return f"{len(counts)} clients with {min(sizes):,} to {max(sizes):,} training samples and {classes}{alone}.{names}"


# --- cost and settings ------------------------------------------------------------------------------------------------


def _name_of(group: Group, arranged: Arrangement) -> list[str]:
    return [group.variant, *([group.setting] if len(arranged.settings) > 1 else [])]


def _names(arranged: Arrangement) -> list[str]:
    return ["Method", *(["Setting"] if len(arranged.settings) > 1 else [])]


def cost(arranged: Arrangement) -> Html:
    """What each method took: means over seeds."""
    columns: list[tuple[str, str, Callable[[Run], float]]] = [
        ("Sent", "MiB per client", lambda run: run.result.bytes_up / run.result.clients / 2**20),
        ("Received", "MiB per client", lambda run: run.result.bytes_down / run.result.clients / 2**20),
        ("Local epochs", "in the rounds", lambda run: run.result.epochs_train),
        ("Local epochs", "personal stage", lambda run: run.result.epochs_personal),
        ("Seconds", "all rounds", lambda run: sum(line.seconds for line in run.rounds)),
    ]
    heads = [tag("th", name, tag("small", note), scope="col", class_="number") for name, note, _ in columns]
    rows = []
    for group in arranged.groups:
        means = (sum(map(of, group.runs)) / len(group.runs) for _, _, of in columns)
        rows.append([*_name_of(group, arranged), *(tag("td", _amount(mean), class_="number") for mean in means)])
    return table([heading([*_names(arranged), *heads])], rows)


def _amount(value: float) -> str:
    """A number with about three digits."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def differing_settings(arranged: Arrangement) -> Html:
    """One row for each method in each setting, with what sets it apart."""
    runs = [run for group in arranged.groups for run in group.runs]
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    columns = [k for k in keys if k not in arranged.common and k != "seed" and not k.startswith("method.")]
    heads = ["Method", *columns, "the method's own numbers", "seeds"]
    rows = []
    for group in arranged.groups:
        values = [", ".join(dict.fromkeys(show(run.settings.get(k)) for run in group.runs)) for k in columns]
        own = {k.removeprefix("method."): v for k, v in group.runs[0].settings.items() if k.startswith("method.")}
        numbers = ", ".join(f"{k} = {show(v)}" for k, v in own.items() if k != "name") or DASH
        rows.append([group.variant, *values, numbers, ", ".join(map(str, group.seeds))])
    return table([heading(heads)], rows, class_="settings")


def common_settings(arranged: Arrangement) -> Html:
    """What all runs share, by dotted key."""
    rows = [[key, show(value)] for key, value in arranged.common.items()]
    return table([heading(["Setting", "Value"])], rows, class_="settings")


# --- commands ---------------------------------------------------------------------------------------------------------


def commands(arranged: Arrangement) -> Html:
    """Where each number comes from, and the commands that repeat it."""
    runs = [run for group in arranged.groups for run in group.runs]
    whole = {
        f"{without_folders(line)} --out {_again(run.folder.parent)}": None for run in runs for line in run.commands
    }
    lines = [tag("pre", tag("code", line)) for line in whole]
    if lines:
        lines.insert(0, tag("p", "The whole comparison, all methods and seeds:"))
    rows = [
        [bare(str(run.folder)), str(run.result.seed), *_accuracies(run), tag("code", _command(run))] for run in runs
    ]
    heads = ["Run folder", "Seed", "General, %", "Personal, %", "Command that repeats it"]
    return join([*lines, table([heading(heads)], rows, class_="runs")])


def _command(run: Run) -> str:
    if run.holdings.elsewhere:
        return "was run by real sites: flwr run APP, with the settings in its config.toml"
    if run.settings.get("data.partition") == "given":
        return "was given its data in Python: fedetf.run(data=…)"
    trust = " --trust-code" if asks_for_code(run.settings) else ""
    config = shlex.quote(f"{bare(str(run.folder))}/config.toml")
    return f"fedetf run {config}{trust} --out {_again(run.folder)}"


def _again(folder: Path) -> str:
    return shlex.quote(f"{bare(str(folder))}-again")


def _accuracies(run: Run) -> list[str]:
    values = (run.result.general_last5, run.result.personal)
    return [DASH if value is None else f"{100 * value:.2f}" for value in values]


def choice(name: str, options: Sequence[str], label: str) -> Html:
    """A select, for the script to fill a chart by."""
    items = [tag("option", option, value=str(number)) for number, option in enumerate(options)]
    return tag("label", label, " ", tag("select", *items, id=name), class_="choice")
