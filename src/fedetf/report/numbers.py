"""Values and differences as every table shows them: accuracies in percent, all else as it is."""

from collections.abc import Mapping, Sequence

from fedetf.comparison.metric import ACCURACY
from fedetf.comparison.standing import Standing
from fedetf.metrics import Quantity
from fedetf.statistics import Paired, Spread

DEVIATION = "± is the sample standard deviation over seeds (divided by n − 1)"
WORDS = (
    "Words and bold follow the 95 % interval of the paired differences, after Holm's correction: words for all "
    "comparisons of a setting with that one method, bold for all other pairs in a column, since the best is picked by "
    "the same numbers. The intervals shown are not corrected. In bold: the best, and those that are not shown to be "
    "behind it, or behind that one method; nothing is in bold if no method is shown to be behind"
)
COLUMNS = (
    "General is the global model on the test set, the mean of the last five rounds (of all, if there are fewer); final "
    "model is the same after the last round, which `fedetf run` calls general; personal is each client's own model on "
    "its own test split, the mean over clients"
)
TESTS = "p values: of the t test after Holm's correction / the exact sign test / Wilcoxon's signed ranks, exact"


def number(value: float, metric: Quantity, sign: bool = False) -> str:
    """A value of a metric, or a difference of two with its ``sign``.

    >>> number(0.1234, ACCURACY), number(-0.1234, ACCURACY, sign=True)
    ('12.34', '−12.34')
    """
    plus = "+" if sign else ""
    shown = f"{100 * value:{plus}.2f}" if metric.name == ACCURACY.name else f"{value:{plus}.4f}"
    return shown.replace("-", "−")


def mean_and_deviation(spread: Spread | None, metric: Quantity, missing: str = "-") -> str:
    """Mean±std; of a single value, that value."""
    if spread is None:
        return missing
    deviation = "" if spread.std is None else f"±{number(spread.std, metric)}"
    return f"{number(spread.mean, metric)}{deviation}"


def with_interval(difference: Paired | None, metric: Quantity, missing: str = "-") -> str:
    """A difference and its 95 % interval."""
    if difference is None:
        return missing
    mean = number(difference.mean, metric, sign=True)
    if difference.low is None or difference.high is None:
        return mean
    low, high = (number(end, metric, sign=True) for end in (difference.low, difference.high))
    return f"{mean} [{low}, {high}]"


def p_values(standing: Standing, missing: str = "-") -> str:
    """Of the t test after Holm's correction, of the exact sign test and of Wilcoxon's."""
    if standing.difference is None or standing.p is None:
        return missing
    return " / ".join(f"{p:.2g}" for p in (standing.p, standing.difference.sign_p, standing.difference.wilcoxon_p))


def seeds_of(standings: Mapping[str, Standing], own: Sequence[int]) -> str:
    """How many seeds a line's values are over, and how many it has."""
    used = max((standing.spread.count for standing in standings.values() if standing.spread), default=len(own))
    return str(used) if used == len(own) else f"{used} of {len(own)}"


def unit(metric: Quantity) -> str:
    """What stands in brackets behind a heading."""
    return "%" if metric.name == ACCURACY.name else metric.title
