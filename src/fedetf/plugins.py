"""One rule for what can be chosen by name: methods, encoders, datasets, partitions, metrics, transforms.

A name is one of fedetf's own; or one that an installed package gives under the entry points ``fedetf.methods``,
``fedetf.encoders``, ``fedetf.datasets``, ``fedetf.partitions``, ``fedetf.metrics`` or ``fedetf.transforms``; or it says
where code of the user's own is: ``FILE.py:NAME``, ``package.module:NAME``. The room of each kind has its ``registry``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType
from typing import Any, Generic, TypeVar

from fedetf.errors import UserError, unknown
from fedetf.own_code import guarded, is_own, load_own

T = TypeVar("T")


@dataclass(frozen=True)
class Listed(Generic[T]):
    """A thing that can be chosen by name, and the package that brings it; or why it cannot be used."""

    name: str
    package: str
    thing: T | None
    error: str | None = None


class Registry(Generic[T]):
    """The things of one kind.

    Parameters
    ----------
    kind:
        What one of them is called, in messages.
    group:
        The entry points by which packages bring more of them.
    setting:
        How the user chooses one, for messages: ``"--method"``.
    builtins:
        Those of fedetf, by name. No package can replace one.
    check:
        ``check(found, name)`` gives back what a package or file holds under a name, or raises :class:`UserError`
        if it is nothing of this kind.
    own:
        Whether a name says where code of the user's own is.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        setting: str,
        builtins: Mapping[str, T],
        check: Callable[[Any, str], T],
        own: Callable[[str], bool] = is_own,
    ):
        self.kind = kind
        self.builtins = builtins
        self._group = group
        self._setting = setting
        self._check = check
        self._is_own = own

    def find(self, name: str) -> T:
        """What a name stands for; nothing else is imported."""
        if name in self.builtins:
            return self.builtins[name]
        if self._is_own(name):
            return self._check(load_own(name, self.kind, self._setting), name)
        entries = [entry for entry in self._entries() if entry.name == name]
        if not entries and name.endswith(".py"):
            raise UserError(f"{name!r} does not say which {self.kind} of the file; give {self._setting} {name}:NAME")
        if not entries:
            raise unknown(self.kind, name, self.names(), "FILE.py:NAME of your own")
        return self._load(entries)

    def is_known(self, name: str) -> bool:
        """Whether :meth:`find` knows where to look for a name."""
        return name in self.builtins or self._is_own(name) or any(entry.name == name for entry in self._entries())

    def names(self) -> list[str]:
        """Those of fedetf, in their order, then those of installed packages."""
        return list(dict.fromkeys([*self.builtins, *sorted(entry.name for entry in self._entries())]))

    def listing(self) -> list[Listed[T]]:
        """All of them in the order of :meth:`names`; a broken one with what is wrong with it."""
        own = [Listed(name, "fedetf", thing) for name, thing in self.builtins.items()]
        entries = sorted(self._entries(), key=lambda entry: entry.name)
        return own + [self._listed(entry, [e for e in entries if e.name == entry.name]) for entry in entries]

    def _listed(self, entry: EntryPoint, of_that_name: list[EntryPoint]) -> Listed[T]:
        try:
            if entry.name in self.builtins:
                raise UserError(f"fedetf has a {self.kind} of that name; choose this one by {entry.value}")
            return Listed(entry.name, _package(entry), self._load(of_that_name))
        except UserError as error:
            return Listed(entry.name, _package(entry), None, str(error))

    def _load(self, entries: list[EntryPoint]) -> T:
        """The one that packages have under a name."""
        first, *others = entries
        if others:
            packages = " and ".join(sorted(map(_package, entries)))
            choices = " or ".join(sorted(entry.value for entry in entries))
            raise UserError(f"{packages} both have a {self.kind} {first.name!r}; choose {self._setting} {choices}")
        what = f"the {self.kind} {first.name!r} of the package {_package(first)}"
        return self._check(guarded(first.load, f"{what} cannot be imported"), what)

    def _entries(self) -> list[EntryPoint]:
        return brought(self._group)


def brought(group: str) -> list[EntryPoint]:
    """What installed packages bring under a group of entry points; nothing of it is imported."""
    return list(guarded(lambda: entry_points(group=group), "the entry points of a package cannot be read"))


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value.partition(":")[0]


def first_line(thing: Any) -> str:
    """What a function or class says of itself: the first line of its docstring, without the full stop.

    >>> first_line(Registry), first_line(None)
    ('The things of one kind', '')
    """
    text = thing.__doc__ if isinstance(thing, (type, FunctionType)) else None
    return (text or "").strip().partition("\n")[0].removesuffix(".")
