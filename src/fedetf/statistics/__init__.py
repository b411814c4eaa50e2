"""What a few seeds, many settings or many clients say: tests and intervals, usable alone, with SciPy underneath.

They name SciPy's parts in full, ``scipy.stats.t``: so these load when they are first used, and no run waits for them.
"""

from fedetf.statistics.chance import above_chance
from fedetf.statistics.clients import Clients, below, describe_clients
from fedetf.statistics.many import Friedman, critical_difference, friedman, groups, holm
from fedetf.statistics.paired import LEVEL, Paired, Verdict, corrected, paired, verdicts
from fedetf.statistics.resampling import bootstrap
from fedetf.statistics.spread import Spread

__all__ = [
    "LEVEL",
    "Clients",
    "Friedman",
    "Paired",
    "Spread",
    "Verdict",
    "above_chance",
    "below",
    "bootstrap",
    "corrected",
    "critical_difference",
    "describe_clients",
    "friedman",
    "groups",
    "holm",
    "paired",
    "verdicts",
]
