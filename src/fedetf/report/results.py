"""The results of a page: sentences, values, differences and their tests, as ``comparison`` judges them."""

from collections.abc import Sequence

from fedetf.comparison.judged import JUDGED, Judged
from fedetf.comparison.metric import ACCURACY
from fedetf.comparison.standing import Standing
from fedetf.methods import METHODS
from fedetf.metrics import Quantity
from fedetf.report.document import embedded
from fedetf.report.figures import critical_difference_figure
from fedetf.report.groups import Arrangement, Group
from fedetf.report.html import Html, heading, join, table, tag
from fedetf.report.numbers import DEVIATION, WORDS, number, p_values, seeds_of, with_interval
from fedetf.statistics import Spread, Verdict

DASH = "–"
MOST_NAMES = 4  # of methods in a sentence
MOST_SETTINGS = 2  # with more than that, the table says it better than sentences
NOT_SHOWN = "no difference shown to"
HEADS = {
    "general": ("General", "one model, last five rounds"),
    "final": ("Final", "one model, last round"),
    "personal": ("Personal", "each client's own"),
}


# --- in sentences -----------------------------------------------------------------------------------------------------


def takeaways(arranged: Arrangement) -> Html:
    """What came out, in sentences."""
    if len(arranged.settings) > MOST_SETTINGS or len(arranged.variants) == 1 < len(arranged.settings):
        return Html("")
    sentences = []
    for setting in arranged.settings:
        where = f", {setting}" if setting else ""
        for what, column in (("One model for all", "general"), ("One model for each client", "personal")):
            sentence = _outcome(arranged, setting, column)
            if sentence:
                sentences.append(tag("li", tag("span", f"{what}{where}", class_="what"), " ", sentence))
    return tag("ul", *sentences, class_="takeaways")


def _outcome(arranged: Arrangement, setting: str, column: str) -> Html | None:
    """How the method that all are compared with stands in one setting; without a comparison, what was reached."""
    judged = arranged.judged
    standings = [(judged.lines[place], judged.standings[place][column]) for place in judged.settings[setting]]
    there = [(group, standing) for group, standing in standings if standing.spread is not None]
    rivals = [(group, standing) for group, standing in there if not group.reference]
    chosen = [(group, standing) for group, standing in rivals if standing.difference is None]
    if len(chosen) != 1:  # nobody was run, or the method that all are compared with has no value here
        return tag("span", "The methods have no seed in common, or cannot be compared.") if rivals else None
    ((me, mine),) = chosen
    shown = [f"{what} {listed(names)}" for what, names in _sorted_out(rivals).items()]
    compared = f": {'; '.join(shown)}" if shown else ""
    beside = [f"{group.name} {_said(standing.spread, judged)}" for group, standing in there if group.reference]
    if column == "personal" and setting in judged.majority:
        beside.append(f"the majority class {_said(judged.majority[setting], judged)}")
    end = f" For reference: {', '.join(beside)}." if beside else ""
    return tag("span", tag("b", me.name), " reaches ", tag("b", _said(mine.spread, judged)), f"{compared}.{end}")


def _said(spread: Spread | None, judged: Judged[Group]) -> str:
    """A mean as the table has it, in a sentence."""
    mean = number(0.0 if spread is None else spread.mean, judged.metric)
    return f"{mean}\N{NO-BREAK SPACE}%" if judged.metric == ACCURACY else mean


def _sorted_out(standings: Sequence[tuple[Group, Standing]]) -> dict[str, list[str]]:
    """The others by what the differences show, seen from the method that they are compared with."""
    seen = {Verdict.BEHIND: "ahead of", Verdict.AHEAD: "behind", Verdict.SAME: "identical to"}
    names: dict[str, list[str]] = {word: [] for word in (*seen.values(), NOT_SHOWN)}
    for group, standing in standings:
        if standing.difference is not None and standing.verdict is not None:
            word = seen.get(standing.verdict)
            count = "" if word else f" (n = {standing.difference.n})"
            names[word or NOT_SHOWN].append(group.name + count)
    return {word: those for word, those in names.items() if those}


def listed(names: Sequence[str]) -> str:
    """Names in a sentence; of many, how many.

    >>> listed(["FedAvg", "FedProx", "FedETF"])
    'FedAvg, FedProx and FedETF'
    """
    if len(names) > MOST_NAMES:
        return f"{len(names)} methods"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- values -----------------------------------------------------------------------------------------------------------


def lead(arranged: Arrangement) -> Html:
    """What the numbers of the results are."""
    metric = arranged.judged.metric
    what = "Accuracy in percent" if metric == ACCURACY else f"{metric.title}. {metric.about}"
    better = "Lower" if metric.better == "lower" else "Higher"
    return tag(
        "p",
        f"{what}, mean over seeds; {DEVIATION}. Within a setting, only seeds that all methods have are counted. ",
        tag("b", "General"),
        " is the global model on the test set, the mean of the last five rounds (of all, if there are fewer); ",
        tag("b", "final"),
        " is the same model after the last round. ",
        tag("b", "Personal"),
        f" is each client's own model on its own test split, the mean over clients. {better} is better.",
        class_="lead",
    )


def _notes(arranged: Arrangement) -> Html:
    """What marks mean, and what is peculiar to some rows; nothing of what is not there."""
    said = [f"{WORDS}."] if arranged.judged.compared_with else []
    references = {g.name: METHODS[str(g.runs[0].settings["method.name"])] for g in arranged.groups if g.reference}
    if references:
        named = ", ".join(f"{name} ({method.summary.partition(':')[0]})" for name, method in references.items())
        said.append(f"References, which are not ranked: {named}.")
    if arranged.judged.majority:
        said.append("Majority class is what a client reaches by always answering with its most frequent class.")
    late = list(dict.fromkeys(group.name for group in arranged.groups if _completed_late(group)))
    if late:
        said.append(
            f"{listed(late)} changed the model after the last round, and these runs measured only that one: the general"
            " value is that of the final model, and no mean of five."
        )
    return tag("p", " ".join(said), class_="note") if said else Html("")


def _completed_late(group: Group) -> bool:
    """Whether a method completes its model after the last round, and the run is of a version that did so only once."""
    method = METHODS.get(str(group.runs[0].settings["method.name"]))
    known = method is not None and method.finishes and any(run.result.general is not None for run in group.runs)
    return known and not any(line.completed for run in group.runs for line in run.rounds)


def results(arranged: Arrangement) -> Html:
    """Methods × settings. With one method only, its settings are the rows."""
    if not arranged.groups:
        return tag("p", "No run is done yet.", class_="note")
    if len(arranged.variants) == 1 and len(arranged.settings) > 1:
        rows = [[name, *_values(arranged, arranged.variants[0], name)] for name in arranged.settings]
        return table([heading(["Setting", *_columns(arranged)])], rows, class_="results")
    rows = [
        [
            _row_name(arranged, variant),
            *(cell for name in arranged.settings for cell in _values(arranged, variant, name)),
        ]
        for variant in arranged.variants
    ]
    majority = arranged.judged.majority
    if majority:
        cells = (_majority_cells(arranged, majority.get(name)) for name in arranged.settings)
        rows.append([_reference("majority class"), *(cell for four in cells for cell in four)])
    heads = [heading([tag("th", "Method", scope="col"), *_columns(arranged) * len(arranged.settings)])]
    shown = table(_with_spans(arranged, heads, len(HEADS) + 1), rows, class_="results")
    return join([shown, _notes(arranged)])


def _with_spans(arranged: Arrangement, heads: Sequence[Html], columns: int) -> list[Html]:
    """Column headings, under the names of settings if there are several."""
    if len(arranged.settings) == 1:
        return list(heads)
    spans = [tag("th", name, scope="colgroup", colspan=str(columns), class_="span") for name in arranged.settings]
    return [heading([tag("td"), *spans]), *heads]


def _columns(arranged: Arrangement) -> list[Html]:
    of = ", %" if arranged.judged.metric == ACCURACY else ""
    heads = [tag("th", f"{name}{of}", tag("small", note), scope="col") for name, note in HEADS.values()]
    return [*heads, tag("th", "Seeds", scope="col", class_="number")]


def _row_name(arranged: Arrangement, variant: str) -> str:
    references = {group.name for group in arranged.groups if group.reference}
    return _reference(variant) if variant in references else variant


def _reference(name: str) -> Html:
    return tag("span", name, " ", tag("small", "reference"), class_="reference")


def _values(arranged: Arrangement, variant: str, setting: str) -> list[Html]:
    group = arranged.get(variant, setting)
    if group is None:
        return [_accuracy(None, False, arranged.judged.metric)] * len(HEADS) + [tag("td", DASH, class_="number quiet")]
    standings = arranged.judged.standings[arranged.groups.index(group)]
    cells = [_accuracy(standings[n].spread, standings[n].best and n in JUDGED, arranged.judged.metric) for n in HEADS]
    return [*cells, tag("td", seeds_of(standings, group.seeds), class_="number quiet")]


def _majority_cells(arranged: Arrangement, share: Spread | None) -> list[Html]:
    metric = arranged.judged.metric
    nothing, seeds = _accuracy(None, False, metric), DASH if share is None else str(share.count)
    return [nothing, nothing, _accuracy(share, False, metric), tag("td", seeds, class_="number quiet")]


def _accuracy(spread: Spread | None, best: bool, metric: Quantity) -> Html:
    if spread is None:
        return tag("td", tag("span", DASH, class_="mean"), class_="accuracy")
    deviation = "" if spread.std is None else f"±{number(spread.std, metric)}"
    mean = tag("b" if best else "span", number(spread.mean, metric), class_="mean")
    mark = tag("span", "best" if best else "", class_="rank")
    return tag("td", mean, tag("span", deviation, class_="std"), mark, class_="accuracy")


# --- differences ------------------------------------------------------------------------------------------------------


def differences(arranged: Arrangement, which: str = "") -> Html:
    """Every method against the chosen one, seed by seed; the tests behind it; and all settings together."""
    judged = arranged.judged
    if not judged.compared_with:
        return Html("")
    rows = []
    for variant in arranged.variants:
        groups = [arranged.get(variant, setting) for setting in arranged.settings]
        pairs = [_judged(judged, group) for group in groups]
        if any(standing.difference for pair in pairs for standing in pair):
            rows.append([variant, *(_difference(standing, judged.metric) for pair in pairs for standing in pair)])
    unit = ", points" if judged.metric == ACCURACY else ""
    names = [
        tag("th", f"{HEADS[name][0]}{unit}", tag("small", "difference, 95 % interval"), scope="col") for name in JUDGED
    ]
    heads = [heading([tag("th", "Method", scope="col"), *names * len(arranged.settings)])]
    lead = (
        f"Each method less {judged.compared_with}, on the same seeds: the same partition, sampling and first weights."
    )
    return join([
        tag("h3", f"Differences to {judged.compared_with}{which}"), tag("p", lead, class_="lead"),
        table(_with_spans(arranged, heads, len(JUDGED)), rows, class_="results differences"),
        tag("details", tag("summary", "Tests and the difference of each seed"), _tests(arranged)),
        *_overall(arranged),
    ])  # fmt: skip


def _judged(judged: Judged[Group], group: Group | None) -> list[Standing]:
    standings = {} if group is None else judged.standings[judged.lines.index(group)]
    return [standings.get(column, Standing(None)) for column in JUDGED]


def _difference(standing: Standing, metric: Quantity) -> Html:
    if standing.difference is None:
        return tag("td", DASH)
    word = tag("small", standing.words, class_=standing.verdict.name.lower() if standing.verdict else "")
    return tag("td", with_interval(standing.difference, metric), word, class_="difference")


def _tests(arranged: Arrangement) -> Html:
    judged = arranged.judged
    heads = ["Method", "Setting", "Column", "Seeds", "p: t after Holm, sign, Wilcoxon", "Difference of each seed"]
    rows = []
    for group, standings in zip(judged.lines, judged.standings, strict=True):
        for column in JUDGED:
            difference = standings[column].difference
            if difference is not None:
                each = (f"{seed}: {number(d, judged.metric, sign=True)}" for seed, d in difference.differences.items())
                where = [group.setting or DASH, HEADS[column][0], str(difference.n), p_values(standings[column])]
                rows.append([group.name, *where, ", ".join(each)])
    about = (
        "The t test is that of the interval. The sign test and Wilcoxon's are exact and assume less; below six seeds"
        " they cannot reach 5 %, whatever the differences. Zeros are dropped."
    )
    return join([tag("p", about, class_="note"), table([heading(heads)], rows, class_="tests")])


def _overall(arranged: Arrangement) -> list[Html]:
    parts = []
    for column, overall in arranged.judged.overall.items():
        name = HEADS[column][0]
        parts.append(tag("p", tag("b", name), ": ", overall.sentence))
        if overall.friedman.drawable:
            picture = embedded(critical_difference_figure(overall, name))
            caption = (
                "Mean ranks over the settings, the best at the left. A bar joins methods that are not shown to differ."
            )
            image = tag("img", src=picture, alt=overall.sentence)
            parts.append(tag("figure", image, tag("figcaption", tag("p", caption)), class_="picture"))
    return parts
