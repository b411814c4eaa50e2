"""What runs have in common, and what failed, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedetf.comparison.plan import PlannedRun
from fedetf.redact import bare
from fedetf.runs.read import by_reason
from fedetf.settings import PersonalSettings, Settings, flat

NO_STAGE = "no personal stage"
USUAL = flat(Settings().model_dump())
TOLD = ("update.", "server.", "system.", "engine.precision")  # what is said of a run wherever it is not as usual


def caption(runs: Sequence[PlannedRun]) -> str:
    """What was run; where that differs, "this or that"."""
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.settings.seed for run in runs))
    return f"{conditions([run.settings for run in runs])}; seeds {seeds}"


def conditions(all_settings: Sequence[Settings], trained: bool = True) -> str:
    """What some runs have in common, for a reader; where they differ, "this or that"."""
    parts = zip(*(_conditions(settings, trained) for settings in all_settings), strict=True)
    return ", ".join(" or ".join(filter(None, dict.fromkeys(part))) for part in parts if any(part))


def _conditions(s: Settings, trained: bool) -> list[str]:
    many = "all" if s.data.limit is None else f"{s.data.limit:,}"
    samples = "samples" if s.data.size is None else f"images of {s.data.size}×{s.data.size}"
    tested = "the whole test set" if s.data.test_limit is None else f"{s.data.test_limit:,} test samples"
    clients = "clients" if s.data.site_column else f"{s.data.clients} clients"
    data = [bare(s.data.name), f"{many} {samples}", tested, clients, s.data.dealt(), ", ".join(s.data.alterations())]
    values = flat(s.model_dump())
    stage = ", ".join(_stage(values)) or "the whole personal stage"
    training = [f"batch {s.train.batch_size}", f"lr {s.train.lr:g}", stage, f"fidelity {s.fidelity}"]
    training += [", ".join(_held_out(values)), ", ".join(unusual(values))]
    taking_part = f"participation {s.train.participation:g}"
    return [*data, bare(s.model.name), taking_part, s.train.describe(), *training] if trained else data


def unusual(settings: Mapping[str, Any]) -> list[str]:
    """What is done to updates, by the server or by the system, and is not so by default; ``settings`` by dotted key.

    >>> unusual({"update.bits": 8, "update.top_k": 1.0, "system.dropout": 0.25})
    ['update.bits = 8', 'system.dropout = 0.25']
    >>> unusual({"server.nosuch": 1})  # of a folder from elsewhere
    []
    """
    told = {key: value for key, value in settings.items() if key.startswith(TOLD) and value != USUAL.get(key, value)}
    return [f"{key} = {value}" for key, value in told.items()]


def reductions(settings: Mapping[str, Any]) -> list[str]:
    """What of a run is less than it could be, in words; ``settings`` by dotted key.

    >>> reductions({"data.limit": 5000, "personal.rounds": 2, "data.unseen": 1})
    ['5,000 training samples', '1 unseen client', 'personal stage of 2 turns']
    """
    limits = (("data.limit", "training samples"), ("data.test_limit", "test samples"))
    fewer = [f"{settings[key]:,} {what}" for key, what in limits if settings.get(key) is not None]
    size = settings.get("data.size")
    smaller = [f"{size}×{size} pixels"] if size is not None else []
    unseen = settings.get("data.unseen")
    never = [f"{unseen} unseen client{'s' if unseen != 1 else ''}"] if unseen else []
    return [*fewer, *smaller, *_held_out(settings), *never, *_stage(settings)]


def _held_out(settings: Mapping[str, Any]) -> list[str]:
    """What of the training data is kept to validate."""
    share = settings.get("data.validation_fraction")
    return [f"{100 * share:g} % of the training data held out to validate"] if share else []


def _stage(settings: Mapping[str, Any]) -> list[str]:
    """In what the personal stage is shorter than by default."""
    if settings.get("personal.enabled") is False:
        return [NO_STAGE]
    turns, epochs = settings.get("personal.rounds"), settings.get("personal.epochs")
    short = []
    if turns is not None and turns < PersonalSettings().rounds:
        short.append(f"personal stage of {turns} turn{'s' if turns != 1 else ''}")
    if epochs is not None and epochs < settings.get("train.epochs", epochs):
        short.append(f"personal phases of {epochs} epoch{'s' if epochs != 1 else ''}")
    return short


def failures(failed: Mapping[str, str]) -> list[str]:
    """What to say of the runs that failed: a line for each reason."""
    return [f"Failed: {'; '.join(runs)}: {why}\n" for why, runs in by_reason(failed).items()]
