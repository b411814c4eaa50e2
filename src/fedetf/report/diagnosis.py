"""What ``fedetf diagnose`` found, in words."""

import math

from fedetf.comparison.caption import NO_STAGE, reductions
from fedetf.comparison.metric import ACCURACY
from fedetf.diagnose import LEAST_GAIN, Diagnosis, Verdict
from fedetf.heterogeneity import ToldApart, word
from fedetf.metrics.skew import entropy_of
from fedetf.redact import bare
from fedetf.report.document import Section
from fedetf.report.figures import accuracy_figure, partition_figure
from fedetf.report.numbers import DEVIATION, mean_and_deviation
from fedetf.report.tables import percent
from fedetf.settings import flat
from fedetf.statistics import Spread, paired

MOST_SITES = 50  # the most that are listed one by one

NAMES = {"fedavg": "FedAvg", "fedetf": "FedETF"}

MADE_FOR = {
    "labels": "Sites hold different mixes of classes. Made for that: fedetf, fedgela and spherefed (a fixed "
    "classifier), fedlc and fedrs (logits that know who holds what), fedntd and ccvr; with any "
    "method, server.weights=disco.",
    "sizes": "Sites differ in size, and large ones decide: they weigh more and train longer. server.weights=uniform "
    "gives all the same weight, train.steps the same training, and fednova is made for unequal numbers of steps.",
    "features": "Inputs look different from site to site. fedbn is made for that: the normalisation layers of the "
    "encoder stay at each site; or give each site its own model, with ditto, apfl or fedala.",
    "nothing": "Sites hold much the same, so fedavg is likely to do; the trial below measures it.",
}


def diagnosis_title(diagnosis: Diagnosis) -> str:
    """The data and the trial in one line."""
    s = diagnosis.settings
    clients = f"{len(diagnosis.partition)} clients, {s.data.describe()}"
    left_out = [what for what in reductions(flat(s.model_dump())) if what != NO_STAGE]  # a trial never has that stage
    trial = ", ".join([bare(s.model.name), s.train.describe(), *left_out])
    return f"Diagnosis of {bare(s.data.name)}: {clients}; trial: {trial}"


def diagnosis_sections(diagnosis: Diagnosis) -> list[Section]:
    """The page: advice first, then what it rests on."""
    return [_advice(diagnosis), _kinds(diagnosis), _skew(diagnosis), _drift(diagnosis), _trial(diagnosis)]


def _advice(diagnosis: Diagnosis) -> Section:
    advice, seeds = diagnosis.advice, len(diagnosis.seeds)
    if advice.verdict is Verdict.DID_NOT_LEARN:
        return _no_advice(diagnosis)
    gain = f"FedETF − FedAvg = {_points(advice.difference)} of general accuracy"
    if math.isnan(advice.low):
        certainty = f"{gain}, from a single seed: no interval can be given. Try three: --seeds 7,8,9."
    else:
        interval = f"{_points(advice.low)} to {_points(advice.high)}"
        chance = f"The chance of a gain of {100 * LEAST_GAIN:.0f} point or more is about {100 * advice.chance:.0f}%"
        certainty = f"{gain} (95% interval over {seeds} seeds: {interval}). {chance}, as far as the seeds tell."
    reasons = {
        Verdict.HELPS: "The gain is larger than what the seeds alone explain. Use FedETF.",
        Verdict.WORSE: "FedAvg is better by more than the seeds alone explain. Use FedAvg.",
        Verdict.NOT_NEEDED: "A gain that matters is unlikely. FedAvg will do.",
        Verdict.MAY_HELP: "A gain is likely, but the seeds differ too much to be sure. Try more of them with --seeds.",
        Verdict.UNCLEAR: "The seeds differ too much to say. Try more of them with --seeds, or more --rounds.",
    }
    spread = 1.96 * math.sqrt(_share_variance(diagnosis) / diagnosis.test_samples)
    limits = (
        f"The interval covers seeds, not the choice of test samples: with {diagnosis.test_samples} of them an accuracy "
        f"is known to about ±{100 * spread:.1f} points. A trial is short; more rounds or epochs can change the picture."
    )
    return Section(f"Advice: {advice.verdict.value}", [certainty, reasons[advice.verdict], limits])


def _no_advice(diagnosis: Diagnosis) -> Section:
    said = (
        f"The most frequent class of the test set alone gives {percent(diagnosis.chance)}. With most seeds neither "
        f"method is above that by more than {100 * LEAST_GAIN:.0f} point (exact binomial test on "
        f"{diagnosis.test_samples} samples, 5%), so what they differ by tells nothing."
    )
    remedy = "Give the trial a chance: more --rounds or --epochs, another rate (--set train.lr=...), or more data."
    return Section(f"No advice: {diagnosis.advice.verdict.value}", [said, remedy])


def _kinds(diagnosis: Diagnosis) -> Section:
    """In labels, in sizes, in features; and which methods are made for what there is."""
    heterogeneity = diagnosis.heterogeneity
    levels = {
        "labels": heterogeneity.labels,
        "sizes": heterogeneity.sizes,
        "features": heterogeneity.features or "not known",
    }
    there = [kind for kind, level in levels.items() if level not in ("none", "not known")]
    title = "What kind of heterogeneity: " + (" and ".join(there) if there else "none to speak of")
    return Section(
        title,
        [_told_apart(heterogeneity.told_apart), *(MADE_FOR[kind] for kind in there or ["nothing"])],
        ["in", "how much"],
        [[kind, level] for kind, level in levels.items()],
    )


def _told_apart(told_apart: ToldApart | None) -> str:
    if told_apart is None:
        return "Features: there are too few samples or sites to say whether sites see different inputs."
    share, chance = percent(told_apart.accuracy), percent(told_apart.chance)
    measured = (
        f"a classifier that is told the class guesses the site of {told_apart.rows:,} held-out samples right in "
        f"{share} of cases, where chance gives {chance} "
        f"({told_apart.sites} sites, permutation test p = {told_apart.p:.3g})"
    )
    if word(told_apart.level) == "none":
        return f"Features: no difference shown; {measured}."
    return f"Features: samples of the same class look different from site to site; {measured}."


def _skew(diagnosis: Diagnosis) -> Section:
    skew, partition = diagnosis.skew, diagnosis.partition
    C = len(partition.classes)
    shares = partition.counts.sum(axis=0) / partition.counts.sum()
    entropy = float(entropy_of(shares))  # what there is to know of the class
    level = skew.mutual_information / entropy if entropy > 0 else 0.0
    much = diagnosis.heterogeneity.labels.replace("none", "none to speak of")
    sentences = [
        f"Label skew: {much}. Knowing the site tells {100 * level:.0f}% of what there is to know about the class "
        f"(mutual information {skew.mutual_information:.2f} of {entropy:.2f} nats).",
        f"A site holds {skew.mean('effective_classes'):.1f} classes in effect, of {C} (mean over sites); "
        f"{skew.single_class} of {len(skew.clients)} hold a single one. "
        f"A class is held by {skew.holders[0]} to {skew.holders[2]} sites.",
        f"The largest site has {skew.size_ratio:.1f} times the samples of the smallest (Gini {skew.size_gini:.2f}).",
    ]
    rows = [
        [
            partition.name(client.client),
            str(client.samples),
            f"{client.classes}/{C}",
            f"{client.effective_classes:.1f}",
            percent(client.largest),
            f"{client.tv:.2f}",
        ]
        for client in skew.clients[:MOST_SITES]
    ]
    if len(skew.clients) > MOST_SITES:
        sentences.append(f"The first {MOST_SITES} sites:")
    columns = ["site", "samples", "classes", "effective classes", "largest class", "distance from all (TV)"]
    return Section("Who holds what", sentences, columns, rows, [partition_figure(partition, "who holds what")])


def _drift(diagnosis: Diagnosis) -> Section:
    drift = diagnosis.drift
    if math.isnan(drift.classifiers):
        return Section("Drift of local classifiers", ["With a single site nothing can drift apart."])
    agreed = f"the sites' weight vectors for the same class agree to a cosine of {drift.classifiers:.2f}"
    if not math.isnan(drift.updates):  # of a frozen encoder there are none
        agreed += f", and the changes that they made to the encoder in that round to {drift.updates:.2f}"
    return Section(
        "Drift of local classifiers",
        [
            f"After the local training of FedAvg's last round, {agreed} "
            "(1: all agree; 0: unrelated; below 0: they pull against each other).",
            "FedETF's classifier is fixed: there it cannot drift.",
        ],
    )


def _trial(diagnosis: Diagnosis) -> Section:
    columns = ["general accuracy", *(f"seed {seed}" for seed in diagnosis.seeds), "mean ± std (%)"]
    rows = [
        [NAMES[method], *map(percent, values), mean_and_deviation(Spread.of(values), ACCURACY)]
        for method, values in diagnosis.general.items()
    ]
    curves = {NAMES[method]: values for method, values in diagnosis.curves.items()}
    measured = [f"Of one model for all sites on the test set, mean of the last five rounds; {DEVIATION}."]
    by_seed = {method: dict(zip(diagnosis.seeds, values, strict=True)) for method, values in diagnosis.general.items()}
    pair = paired(by_seed["fedetf"], by_seed["fedavg"])
    if pair is not None and pair.n > 1:
        exact = f"sign test p = {pair.sign_p:.2g}, Wilcoxon's p = {pair.wilcoxon_p:.2g}"
        measured.append(
            f"FedETF against FedAvg, seed by seed, by exact tests that assume less than the interval: {exact}."
        )
    pictures = [accuracy_figure(curves, "the trial")] if diagnosis.settings.measure.every == 1 else []
    return Section("The trial", measured, columns, rows, pictures)


def _share_variance(diagnosis: Diagnosis) -> float:
    accuracy = sum(map(sum, diagnosis.general.values())) / sum(map(len, diagnosis.general.values()))
    return accuracy * (1 - accuracy)


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f} points"
