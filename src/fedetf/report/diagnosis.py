"""What ``fedetf diagnose`` found, in words."""

import math

from fedetf.diagnose import LEAST_GAIN, Diagnosis, Verdict
from fedetf.measure.skew import entropy_of
from fedetf.redact import bare
from fedetf.report.document import Section
from fedetf.report.figures import accuracy_figure, partition_figure
from fedetf.report.tables import percent

MOST_SITES = 50  # so many are listed one by one

NAMES = {"fedavg": "FedAvg", "fedetf": "FedETF"}


def diagnosis_title(found: Diagnosis) -> str:
    """The data and the trial in one line."""
    s = found.settings
    held = f"{len(found.partition)} clients, {s.data.describe()}"
    trial = f"{bare(s.model.name)}, {s.train.rounds} rounds of {s.train.epochs} epochs"
    return f"Diagnosis of {bare(s.data.name)}: {held}; trial: {trial}"


def diagnosis_sections(found: Diagnosis) -> list[Section]:
    """The page: advice first, then what it rests on."""
    return [_advice(found), _skew(found), _drift(found), _trial(found)]


def _advice(found: Diagnosis) -> Section:
    advice, seeds = found.advice, len(found.seeds)
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
    spread = 1.96 * math.sqrt(_share_variance(found) / found.test_samples)
    limits = (
        f"The interval covers seeds, not the choice of test images: with {found.test_samples} of them an accuracy is "
        f"known to about ±{100 * spread:.1f} points. A trial is short; more rounds or epochs can change the picture."
    )
    return Section(f"Advice: {advice.verdict.value}", [certainty, reasons[advice.verdict], limits])


def _skew(found: Diagnosis) -> Section:
    skew, partition = found.skew, found.partition
    C = len(partition.classes)
    shares = partition.counts.sum(axis=0) / partition.counts.sum()
    entropy = float(entropy_of(shares))  # what there is to know of the class
    level = skew.mutual_information / entropy if entropy > 0 else 0.0
    word = "none to speak of" if level < 0.05 else "mild" if level < 0.25 else "strong" if level < 0.6 else "extreme"
    sentences = [
        f"Label skew: {word}. Knowing the site tells {100 * level:.0f}% of what there is to know about the class "
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


def _drift(found: Diagnosis) -> Section:
    drift = found.drift
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


def _trial(found: Diagnosis) -> Section:
    columns = ["general accuracy", *(f"seed {seed}" for seed in found.seeds), "mean"]
    rows = [
        [NAMES[method], *map(percent, values), percent(sum(values) / len(values))]
        for method, values in found.general.items()
    ]
    curves = {NAMES[method]: values for method, values in found.curves.items()}
    measured = ["Of one model for all sites on the test set, mean of the last five rounds."]
    pictures = [accuracy_figure(curves, "the trial")] if found.settings.measure.every == 1 else []
    return Section("The trial", measured, columns, rows, pictures)


def _share_variance(found: Diagnosis) -> float:
    accuracy = sum(map(sum, found.general.values())) / sum(map(len, found.general.values()))
    return accuracy * (1 - accuracy)


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f} points"
