"""The parts of the page that are there without JavaScript: sentences and tables."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from fedetf.comparison.caption import reductions, unusual
from fedetf.own_code import asks_for_code
from fedetf.redact import bare, without_folders
from fedetf.report.groups import Arrangement, Group, show, stage
from fedetf.report.html import Html, heading, join, table, tag
from fedetf.runs.read import Problem, Run, in_words
from fedetf.settings import DataSettings

DASH = "–"


# --- the head of the page ---------------------------------------------------------------------------------------------


def title(arranged: Arrangement) -> str:
    """The page in a few words."""
    methods = list(dict.fromkeys(variant.partition(" (")[0] for variant in arranged.variants))
    datasets = list(dict.fromkeys(show(run.settings.get("data.name")) for g in arranged.groups for run in g.runs))
    references = {group.name for group in arranged.groups if group.reference}
    methods = [name for name in methods if name not in references] or methods
    compared = " and ".join(methods) if len(methods) < 3 else f"{len(methods)} methods"
    runs = [run for group in arranged.groups for run in group.runs]
    less = dict.fromkeys(said for run in runs for said in reductions(run.settings))
    reduced = f" (reduced: {', '.join(less)})" if less else ""
    return f"{compared} on {', '.join(datasets)}{reduced}"


def subtitle(arranged: Arrangement) -> str:
    """What all runs have in common."""
    common = arranged.common
    parts = [("model.name", "{}"), ("data.clients", "{} clients"), ("train.participation", "participation {}")]
    if common.get("data.site_column"):
        parts.insert(2, ("data.site_column", "one for each {}"))
    elif common.get("data.partition") == "dirichlet" and not any(_elsewhere(arranged)):
        parts.insert(2, ("data.alpha", "alpha = {}"))
    parts += [("train.rounds", "{} rounds")]
    if "train.steps" not in arranged.axes:
        by_steps = common.get("train.steps") is not None
        parts += [("train.steps", "local steps {}") if by_steps else ("train.epochs", "local epochs {}")]
    parts += [("train.lr", "learning rate {}"), ("fidelity", "fidelity {}")]
    shared = [form.format(show(common[key])) for key, form in parts if key in common]
    dealt = {key.removeprefix("data."): value for key, value in common.items() if key.startswith("data.")}
    shared += [*DataSettings.model_construct(**dealt).alterations(), *unusual(common)]
    seeds = sorted({seed for group in arranged.groups for seed in group.seeds})
    shared.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}")
    return " · ".join(shared)


def _elsewhere(arranged: Arrangement) -> Iterator[bool]:
    return (run.holdings.elsewhere for group in arranged.groups for run in group.runs)


def running(arranged: Arrangement) -> Html:
    """How far the runs are that are not done."""
    there = [(group, run) for group in arranged.groups for run in group.runs if not run.done]
    if not there:
        return Html("")
    heads = [*_names(arranged), "Seed", "Round", "General, %", "Seconds a round", "Last round", "Run folder"]
    rows = []
    for group, run in there:
        variant, *setting = _name_of(group, arranged)
        names = [variant.removesuffix(stage(run)), *setting, str(run.seed)]
        rows.append([*names, *_progress(run), bare(str(run.folder))])
    count = "One run is" if len(there) == 1 else f"{len(there)} runs are"
    said = tag("p", tag("b", f"{count} not done yet"))
    return tag("aside", said, table([heading(heads)], rows), class_="running")


def _progress(run: Run) -> list[str]:
    """Its round of how many, its accuracy, how long a round takes and when the last one ended."""
    done, of = len(run.rounds), show(run.settings.get("train.rounds"))
    general = next((line.general for line in reversed(run.rounds) if line.general is not None), None)
    reached = tag("td", f"{done} of {of}", class_="number", data_folder=bare(str(run.folder)), data_round=str(done))
    if not run.rounds:
        return [reached, DASH, DASH, DASH]
    seconds = sum(line.seconds for line in run.rounds) / done
    ended = datetime.fromtimestamp(run.written).astimezone()
    usual = {"datetime": ended.isoformat(timespec="seconds"), "data_usual": f"{seconds:.3g}"}
    at = tag("time", f"{ended:%Y-%m-%d %H:%M:%S}", **usual)
    return [reached, DASH if general is None else f"{100 * general:.2f}", _amount(seconds), tag("td", at)]


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


# --- who holds what ---------------------------------------------------------------------------------------------------


def describe_holdings(run: Run) -> str:
    """A partition in a sentence."""
    if run.holdings.elsewhere:
        return f"{len(run.holdings.clients)} sites. What each of them holds, it alone knows."
    counts = [client.counts for client in run.holdings.clients]
    sizes = [sum(row) for row in counts]
    classes_held = [sum(n > 0 for n in row) for row in counts]
    single = classes_held.count(1)
    alone = f", {single} of them hold{'s' if single == 1 else ''} one class only" if single else ""
    classes = f"{sum(classes_held) / len(classes_held):.1f} of {len(run.holdings.classes)} classes on average"
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
        ("Sent", "MiB per client", lambda run: run.result.bytes_up / run.result.training / 2**20),
        ("Received", "MiB per client", lambda run: run.result.bytes_down / run.result.training / 2**20),
        ("Local epochs", "in the rounds", lambda run: run.result.epochs_train),
        ("Local epochs", "personal stage", lambda run: run.result.epochs_personal),
        ("Seconds", "all rounds", lambda run: sum(line.seconds for line in run.rounds)),
    ]
    if any(run.tuning_passes is not None for group in arranged.groups for run in group.runs):
        columns.append(("Image passes", "in the rounds", lambda run: sum(line.images for line in run.rounds)))
        columns.append(("Image passes", "of its tuning", lambda run: run.tuning_passes or 0))
    heads = [tag("th", name, tag("small", note), scope="col", class_="number") for name, note, _ in columns]
    rows = []
    for group in arranged.judged.counted:
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
