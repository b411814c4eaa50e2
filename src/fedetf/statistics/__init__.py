"""What a few seeds, many settings or many clients say: tests and intervals, usable alone, with SciPy underneath."""

from fedetf.statistics.clients import Clients, describe_clients
from fedetf.statistics.many import Friedman, critical_difference, friedman, groups, holm
from fedetf.statistics.paired import Paired, Verdict, paired, verdicts
from fedetf.statistics.resampling import bootstrap
from fedetf.statistics.spread import Spread

__all__ = [
    "Clients",
    "Friedman",
    "Paired",
    "Spread",
    "Verdict",
    "bootstrap",
    "critical_difference",
    "describe_clients",
    "friedman",
    "groups",
    "holm",
    "paired",
    "verdicts",
]
