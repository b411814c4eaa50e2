"""What decides a run, said once.

Settings are of three kinds:

- **Where a run happens** (:data:`WHERE`): ``engine.name``, ``workers``, ``device``, ``checkpoint``, ``address``. They
  say where and how fast, and change nothing in what comes out. With the places where it is logged
  (``measure.mlflow``, ``measure.wandb``) they are :data:`MAY_CHANGE`: another attempt may choose them anew.
- **What is noted of it**: all else in ``measure.*``. The run takes the same course, to the same model and the same
  accuracies, but its folder holds more or less about it.
- **What is done**: everything else, ``engine.threads``, ``compile`` and ``precision`` included, since bits depend on
  them. A setting that is added later is of this kind until it is named here.

So there are two questions. Does a folder hold the run that is asked for (``compare``, ``resume``, ``reproduce``)? That
takes the last two kinds: :func:`decides_folder`. Have two runs the same numbers, so that a page shows one of them, and
need their settings no name of their own? That takes the last kind: :func:`decides_numbers`.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from fedetf.methods import Method, method_of
from fedetf.settings import ADDRESSES, Settings, flat

WHERE = frozenset(f"engine.{name}" for name in ("name", "workers", "device", "checkpoint", "address"))
MAY_CHANGE = WHERE | ADDRESSES | {"measure.wandb"}
NOTED = "measure."
CHOICES = frozenset(
    ("train", name)
    for name in (
        "lr",
        "lr_head",
        "lr_decay",
        "optimiser",
        "momentum",
        "keep_momentum",
        "weight_decay",
        "sam",
        "batch_size",
    )
)
METHODS_OWN = ("method.", "personal.")  # what makes variants of a method; all else is the setting that it is tried in


def decides_folder(key: str) -> bool:
    """Whether a setting, by its dotted key, decides what a run's folder holds."""
    return key not in MAY_CHANGE


def decides_numbers(key: str) -> bool:
    """Whether it decides the model and the accuracies that come out."""
    return decides_folder(key) and not key.startswith(NOTED)


def is_methods_own(key: str) -> bool:
    """Whether it tells variants of a method apart, rather than the settings in which methods are compared."""
    return key.startswith(METHODS_OWN)


def is_choice(key: str) -> bool:
    """Whether it is chosen for a method, as a learning rate is, rather than being what methods are compared on."""
    section, _, name = key.partition(".")
    return key != "method.name" and (is_methods_own(key) or section == "server" or (section, name) in CHOICES)


def problem(settings: Mapping[str, Any]) -> str:
    """What methods are compared on, of settings by dotted key: all but the seed, the method and what is its choice."""
    own = ("seed", "method.name")
    values = {k: v for k, v in settings.items() if decides_numbers(k) and not is_choice(k) and k not in own}
    return repr(sorted(values.items()))


def as_asked(there: Settings, asked: Settings) -> Settings:
    """The settings that a run folder holds, less what it found in its data: the model, the number of sites."""
    if asked.model.name == "auto":
        there = there.model_copy(update={"model": asked.model})
    if there.data.site_column is not None:
        from_data = {"clients": asked.data.clients, "site_column": asked.data.site_column}
        there = there.model_copy(update={"data": there.data.model_copy(update=from_data)})
    return there


def identity(settings: Settings, own: type[Method] | None = None) -> dict[str, Any]:
    """All that decides what a run's folder holds, by dotted key; of the method all of its numbers, given or not.

    ``own`` is the method's class, if it is at hand.
    """
    method = method_of(settings, own)
    numbers = {"name": settings.method.name, **method.model_dump(exclude_none=True)}
    tree = {**settings.model_dump(exclude_none=True), "method": numbers}
    return {key: value for key, value in flat(tree).items() if decides_folder(key)}


def digest(settings: Settings) -> str:
    """Eight letters, the same for all runs that differ in their seed, or in what decides no folder.

    Only what is not as by default is part of it, so that a setting that is added later changes no folder's name.
    """
    given = flat(settings.model_dump(exclude_defaults=True))
    if given.get("model.name") == "cnn":  # it was the default once, and names were made without it
        del given["model.name"]
    decisive = {**{key: value for key, value in given.items() if decides_folder(key)}, "seed": 0}
    return hashlib.blake2b(repr(sorted(decisive.items())).encode(), digest_size=4).hexdigest()
