"""What every comparison is seen against: ``local``, each client alone, and ``pooled``, all data in one place.

They are no rivals: the one exchanges nothing, the other breaks the rule that data stays. Tables name them apart, and
nothing is ranked by them.
"""

from collections.abc import Sequence

from fedetf.errors import UserError
from fedetf.methods import METHODS, Method, method_of
from fedetf.settings import Settings

FAMILY = "reference"


def is_reference(method: str) -> bool:
    """Whether a method, by its name, is a reference."""
    return method in METHODS and METHODS[method].family == FAMILY


def with_references(methods: Sequence[str | type[Method]]) -> list[str | type[Method]]:
    """The methods, and after them the references that are not among them."""
    return [*methods, *(name for name in METHODS if is_reference(name) and name not in methods)]


def is_possible(settings: Settings) -> bool:
    """Whether a reference can be run so; nobody can hide anything, for example, where all data is in one place."""
    try:
        method_of(settings).check(settings)
    except UserError:
        return False
    return True
