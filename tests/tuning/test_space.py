"""What is tuned by default: every number of a method, over a range that its default lies in."""

from typing import Annotated

import pytest
from pydantic import Field

import fedetf
from fedetf.methods import METHODS
from fedetf.methods.base import Method
from fedetf.ranges import Range
from fedetf.tuning.space import default_space


@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_a_method_has_a_range_around_its_default(name: str) -> None:
    method = METHODS[name]
    space = default_space(method, 0.04)
    for field, info in method.model_fields.items():
        number = isinstance(info.default, int | float) and not isinstance(info.default, bool)
        if number:
            values = space[f"method.{field}"]
            assert isinstance(values, Range)
            assert values.low <= info.default <= values.high
            for end in (values.low, values.high):
                method(**{field: end})  # both ends are allowed
    rate = space["train.lr"]
    assert (rate.low, rate.high) == pytest.approx((0.004 * method.suggested_rate, 0.4 * method.suggested_rate))


class Mine(Method):
    """A user's own."""

    tau: float = 0.5
    mu: Annotated[float, Range(0.1, 0.2)] = 0.15
    share: float = Field(0.9, ge=0, le=1)
    turns: int = 4
    shift: float = 0.0
    switch: bool = True
    kind: str = "a"


def test_numbers_of_your_own_are_tuned_as_well() -> None:
    assert default_space(Mine, 1.0) == {
        "train.lr": Range(0.1, 10.0),
        "method.tau": Range(0.05, 5.0),
        "method.mu": Range(0.1, 0.2),
        "method.share": Range(0.05, 0.95, log=False),
        "method.turns": Range(1, 40),
    }  # shift = 0 has no scale, and the others are no numbers
    assert Mine(mu=0.5).mu == 0.5  # a range is a proposal, not a bound
    assert fedetf.Range is Range
