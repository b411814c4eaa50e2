"""Updates that cost less to send: the client sends its update through some transforms, the server takes them back."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fedetf.core.state import State, select, widest
from fedetf.errors import RunError, UserError
from fedetf.own_code import guarded
from fedetf.plugins import Registry
from fedetf.settings import UpdateSettings
from fedetf.transforms.base import Shapes, Transform
from fedetf.transforms.quantise import Quantise
from fedetf.transforms.topk import TopK

__all__ = ["Compression", "Quantise", "TopK", "Transform", "make_compression", "registry"]


CODED = "coded/"  # before the names of what travels instead of the update


@dataclass(frozen=True)
class Compression:
    """Transforms of the update of the trained tensors, with error feedback (Seide et al. 2014, Stich et al. 2018).

    p = (w_k − wᵗ) + e_k is sent; what the transforms lose of it, e_k ← p − decoded, waits with the client for its next
    round. Buffers and statistics travel as they are.
    """

    transforms: Sequence[Transform]

    def encode(self, sent: State, received: State, names: Collection[str], residual: State) -> State:
        """What travels instead of ``sent``; ``residual``, e_k by name, becomes that of the next round."""
        if not self.transforms:
            return sent
        update = {}
        for name in names:
            trained, before, waiting = (t[name].to(widest(t[name].device)) for t in (sent, received, residual))
            update[name] = (trained - before + waiting).to(sent[name].dtype)
        coded = update
        for transform in self.transforms:
            coded = transform.encode(coded)
        decoded = self._decoded(coded, {name: tuple(tensor.shape) for name, tensor in update.items()})
        for name, tensor in update.items():
            residual[name] = tensor - decoded[name]
        rest = {name: tensor for name, tensor in sent.items() if name not in update}
        return rest | {CODED + name: tensor for name, tensor in coded.items()}

    def decode(self, sent: State, received: State, names: Collection[str]) -> State:
        """What the client would have sent, less what was lost; a RunError says what cannot be decoded."""
        if not self.transforms:
            return sent
        coded = {name.removeprefix(CODED): tensor for name, tensor in sent.items() if name.startswith(CODED)}
        rest = {name: tensor for name, tensor in sent.items() if not name.startswith(CODED)}
        try:
            update = self._decoded(coded, {name: tuple(received[name].shape) for name in names})
        except (LookupError, RuntimeError, ValueError) as error:  # what comes from outside may be anything
            raise RunError(f"the update cannot be decoded: {str(error).splitlines()[0]}") from None
        for name in names:
            before = received[name].to(widest(received[name].device))
            rest[name] = (before + update[name].to(before)).to(received[name].dtype)
        return rest

    def _decoded(self, sent: State, shapes: Shapes) -> State:
        forms = [shapes]
        for transform in self.transforms[:-1]:
            forms.append(transform.shapes(forms[-1]))
        for transform, form in zip(reversed(self.transforms), reversed(forms), strict=True):
            sent = transform.decode(sent, form)
        return select(sent, shapes)


def make_compression(settings: UpdateSettings) -> Compression:
    """The transforms of ``update.transform``, ``update.top_k`` and ``update.bits``; none in their neutral positions."""
    transforms: list[Transform] = []
    if settings.transform is not None:
        made = registry.find(settings.transform)
        transforms.append(guarded(made, f"the transform {settings.transform} cannot be made"))
    if settings.top_k < 1:
        transforms.append(TopK(settings.top_k))
    if settings.bits < 32:
        transforms.append(Quantise(settings.bits))
    return Compression(transforms)


def _checked(plugin: Any, name: str) -> type[Transform]:
    if not (isinstance(plugin, type) and issubclass(plugin, Transform)):
        raise UserError(f"{name} is not a class with encode, decode and shapes, see fedetf.transforms.Transform")
    return plugin


# fedetf's own have settings of their own: update.top_k and update.bits.
registry: Registry[type[Transform]] = Registry("transform", "fedetf.transforms", "--set update.transform", {}, _checked)
