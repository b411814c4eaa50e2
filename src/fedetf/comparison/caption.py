"""What runs have in common, and what failed, in words."""

from collections.abc import Mapping, Sequence

from fedetf.comparison.plan import PlannedRun
from fedetf.redact import bare
from fedetf.runs.read import by_reason
from fedetf.settings import Settings


def caption(runs: Sequence[PlannedRun]) -> str:
    """What was run; where that differs, "this or that"."""
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.settings.seed for run in runs))
    return f"{conditions([run.settings for run in runs])}; seeds {seeds}"


def conditions(all_settings: Sequence[Settings], trained: bool = True) -> str:
    """What some runs have in common, for a reader; where they differ, "this or that"."""
    parts = zip(*(_conditions(settings, trained) for settings in all_settings), strict=True)
    return ", ".join(" or ".join(dict.fromkeys(part)) for part in parts)


def _conditions(s: Settings, trained: bool) -> list[str]:
    many = "all" if s.data.limit is None else f"{s.data.limit:,}"
    samples = "samples" if s.data.size is None else f"images of {s.data.size}×{s.data.size}"
    clients = "clients" if s.data.site_column else f"{s.data.clients} clients"
    data = [bare(s.data.name), f"{many} {samples}", clients, s.data.describe()]
    training = [f"batch {s.train.batch_size}", f"lr {s.train.lr:g}", f"fidelity {s.fidelity}"]
    taking_part = f"participation {s.train.participation:g}"
    return [*data, bare(s.model.name), taking_part, s.train.describe(), *training] if trained else data


def failures(failed: Mapping[str, str]) -> list[str]:
    """What to say of the runs that failed: a line for each reason."""
    return [f"Failed: {'; '.join(runs)}: {why}\n" for why, runs in by_reason(failed).items()]
