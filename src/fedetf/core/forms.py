"""What travels besides the model, as a method declares it: what engines check and documents show."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedetf.core.state import State

Length = int | Literal["classes", "features"]


@dataclass(frozen=True)
class Rows:
    """Statistics with one row for each class that a client holds; ``classes`` beside them, ``[rows]``, names these."""

    dtype: torch.dtype
    dimensions: int  # of a row: 0 for a number, 1 for ``[D]``, 2 for ``[D, D]``


@dataclass(frozen=True)
class LikeParameters:
    """One tensor for each parameter of the net that clients train and send: ``NAME.encoder.…``, ``NAME.head.…``."""

    part: str = ""  # only parameters whose names begin so: ``"head."``


@dataclass(frozen=True)
class Vector:
    """A tensor of a fixed shape, given by numbers or as ``"classes"`` and ``"features"``; ``()`` is one number."""

    shape: tuple[Length, ...] = ()
    dtype: torch.dtype = torch.float32


Form = Rows | LikeParameters | Vector
Forms = Mapping[str, Form]


@dataclass(frozen=True)
class Sizes:
    """What the forms of a run depend on."""

    classes: int
    features: int
    parameters: Mapping[str, Tensor]  # those that clients train and send; only their shapes and types are used

    def of(self, name: str, form: LikeParameters | Vector) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The tensors that a form stands for, with type and shape."""
        if isinstance(form, LikeParameters):
            named = {key: tensor for key, tensor in self.parameters.items() if key.startswith(form.part)}
            return {f"{name}.{key}": (tensor.dtype, tuple(tensor.shape)) for key, tensor in named.items()}
        lengths = {"classes": self.classes, "features": self.features}
        return {name: (form.dtype, tuple(lengths[n] if isinstance(n, str) else n for n in form.shape))}

    def nbytes(self, forms: Forms) -> int:
        """How many bytes these cost to send, if a client holds every class."""
        has_rows = any(isinstance(form, Rows) for form in forms.values())
        total = self.classes * torch.int64.itemsize if has_rows else 0  # which classes the rows are of, said once
        for name, form in forms.items():
            if isinstance(form, Rows):
                total += self.classes * self.features**form.dimensions * form.dtype.itemsize
            else:
                total += sum(dtype.itemsize * math.prod(shape) for dtype, shape in self.of(name, form).values())
        return total


def class_means(per_class: Sequence[tuple[int, int, Tensor]]) -> State:
    """Rows of (class, number of samples, mean ``[D]``) as ``classes``, ``counts`` and ``means``; empty without any."""
    if not per_class:
        return {}
    classes, counts, means = zip(*per_class, strict=True)
    device = means[0].device
    return {
        "classes": torch.tensor(classes, device=device),
        "counts": torch.tensor(counts, device=device),
        "means": torch.stack(means),
    }


def misfit(extras: State, forms: Forms, sizes: Sizes, samples: float = math.inf) -> str | None:
    """What is wrong with what a client sent beside or instead of the model; None if it is what the method declares.

    A client that holds nothing sends no rows. All others send all of them, of at most ``samples`` samples.
    """
    rows = {name: form for name, form in forms.items() if isinstance(form, Rows)}
    others = {name: form for name, form in forms.items() if not isinstance(form, Rows)}
    whole = {key: kind for name, form in others.items() for key, kind in sizes.of(name, form).items()}
    given = {name: tensor for name, tensor in extras.items() if name not in whole}
    wanted = {"classes", *rows} if rows else set()
    if not whole.keys() <= extras.keys() or (given and given.keys() != wanted):
        sent, agreed = (", ".join(sorted(names)) or "nothing" for names in (extras, wanted | whole.keys()))
        return f"besides the model it sends {sent}; this method sends {agreed}"
    for name, (dtype, shape) in whole.items():
        if (extras[name].dtype, tuple(extras[name].shape)) != (dtype, shape):
            return _other_form(name, extras[name], dtype, shape)
    return _unfit_rows(given, rows, sizes, samples) if given else None


def _unfit_rows(given: State, rows: Mapping[str, Rows], sizes: Sizes, samples: float) -> str | None:
    classes = given["classes"]
    if classes.ndim != 1 or classes.dtype != torch.int64 or len(classes.unique()) < len(classes):
        return "its statistics do not say which classes they are of"
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < sizes.classes:
        return f"its statistics are of a class that is none of 0 to {sizes.classes - 1}"
    for name, row in rows.items():
        tensor, shape = given[name], (len(classes), *[sizes.features] * row.dimensions)
        if tensor.dtype != row.dtype or tuple(tensor.shape) != shape:
            return _other_form(name, tensor, row.dtype, shape)
        if not tensor.is_floating_point() and (tensor < 1).any():
            return f"{name} has a count below 1"
        if not tensor.is_floating_point() and sum(tensor.flatten().tolist()) > samples:  # in whole numbers of any size
            return f"its {name} are of more samples than the {samples} that it may have"
    return None


def _other_form(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}"
