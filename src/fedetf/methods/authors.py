"""The methods as the FedETF authors' code has them, where it departs from the papers: ``fidelity = "authors"``.

Only to see what the departures do to the printed numbers. Departures of the training itself (no decay of the learning
rate, momentum kept from round to round) are settings, see ``config.AUTHORS``; that of the initial weights is
``models.build_encoder``. docs/methods/index.md lists what is not copied.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.forms import Rows
from fedetf.core.server import Server, Upload
from fedetf.core.state import State
from fedetf.methods.base import Method
from fedetf.methods.ccvr import CCVR
from fedetf.methods.ditto import Ditto
from fedetf.methods.feddyn import FedDyn
from fedetf.methods.fedetf import FedETF, plain_loss
from fedetf.methods.fednh import FedNH
from fedetf.methods.fedproto import FedProto
from fedetf.methods.fedprox import FedProx
from fedetf.methods.fedrep import FedRep
from fedetf.methods.fedrod import FedRoD
from fedetf.nn.heads import Net, TwoHeads
from fedetf.nn.losses import inner_product
from fedetf.rng import global_stream, torch_stream
from fedetf.settings import NonNegative


class AuthorsFedProx(FedProx):
    """Trained without momentum and weight decay, so that it differs from FedAvg by more than μ."""

    name: ClassVar = "fedprox"

    def local(self, client: Client) -> None:
        """Plain SGD."""
        client.train(self.loss, momentum=0, weight_decay=0)


class AuthorsFedDyn(FedDyn):
    """The norm is not squared; both server averages are weighted by data size among the participants; BatchNorm's
    buffers are those of the first participant."""

    name: ClassVar = "feddyn"

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE − ⟨g_k, w⟩ + (α/2)‖w − wᵗ‖: a pull of constant strength."""
        w = client.trained_tensors()
        apart = torch.cat([(tensor - client.received[name]).flatten() for name, tensor in w.items()])
        g = {name: client.private[f"g.{name}"] for name in w}
        distance: Tensor = torch.linalg.vector_norm(apart)
        return Method.loss(self, client, batch) - inner_product(w, g) + self.alpha / 2 * distance

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """h ← h − α Σ p_k (w_k − wᵗ), w ← Σ p_k w_k − h/α, p_k = n_k over the participants' sum."""
        buffers: State = {}

        def noting_buffers() -> Iterator[Upload]:
            for upload in uploads:
                for name in upload.state.keys() - server.own.keys():
                    buffers.setdefault(name, upload.state[name])
                yield upload

        averages = server.combine(noting_buffers())
        for name, h in server.own.items() if averages else ():
            h -= self.alpha * (averages[name] - server.state[name])
            averages[name] = averages[name] - h / self.alpha
        server.move_to({**averages, **buffers})


class AuthorsDitto(Ditto):
    """λ is FedProx's μ; v_k starts at weights of its own and is trained without momentum and weight decay."""

    name: ClassVar = "ditto"

    lam: NonNegative = Field(0.001, description="strength of the tie")

    def client_state(self, net: Net) -> State:
        """An initial v_k that has nothing to do with the global model's."""
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        for module in net.modules():
            if callable(getattr(module, "reset_parameters", None)):
                module.reset_parameters()  # type: ignore[operator]  # a method of torch's layers
        state = {f"v.{name}": tensor.clone() for name, tensor in net.state_dict().items()}
        net.load_state_dict(before)
        return state

    def train_private(self, client: Client) -> None:
        """Plain SGD."""
        client.train(self.tied_loss, stream="extra-phase", momentum=0, weight_decay=0)


class AuthorsFedRep(FedRep):
    """The encoder is in train mode while the head trains, so that its BatchNorm statistics move."""

    name: ClassVar = "fedrep"

    def local(self, client: Client) -> None:
        """Head, then encoder."""
        client.train(self.loss, ["head"], eval_frozen_encoder=False)
        client.train(self.loss, ["encoder"])


class AuthorsFedRoD(FedRoD):
    """The private head starts at weights of its own and is trained without momentum and weight decay."""

    name: ClassVar = "fedrod"

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """The private head is drawn, not copied."""
        net = super().build(encoder, features, classes, seed)
        assert isinstance(net.head, TwoHeads)
        with global_stream(seed, "init-private"):
            net.head.private.reset_parameters()
        return net

    def local(self, client: Client) -> None:
        """As ever, but plain SGD for the private head."""
        client.train(self.loss, plain=["head.private"])


class AuthorsCCVR(CCVR):
    """Class spreads are diagonal and mix standard deviations with variances, every client counting the same; classes
    with one sample on a client are left out there. The personal stage starts without momentum."""

    name: ClassVar = "ccvr"
    summaries: ClassVar = {"means": Rows(torch.float64, 1), "deviations": Rows(torch.float64, 1)}

    def personalise(self, client: Client) -> None:
        """One more local training, by a new optimiser: theirs is a program of its own, run after FedAvg's."""
        client.memory.clear()
        super().personalise(client)

    def summarise(self, client: Client) -> State:
        """Means and standard deviations of the classes with two samples or more."""
        per_class = [(c, h.to("cpu", torch.float64)) for c, h in client.class_features() if len(h) > 1]
        if not per_class:
            return {}
        return {
            "classes": torch.tensor([c for c, _ in per_class]),
            "means": torch.stack([h.mean(dim=0) for _, h in per_class]),
            "deviations": torch.stack([h.std(dim=0) for _, h in per_class]),
        }

    def virtual_features(self, server: Server, summaries: Iterable[State]) -> tuple[Tensor, Tensor]:
        """Drawn around the plain mean of μ_k over clients, with mean(σ_k) + mean(μ_k²) − mean(μ_k)² as deviation."""
        by_class: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for summary in summaries:
            rows = (
                zip(summary["classes"].tolist(), summary["means"], summary["deviations"], strict=True)
                if summary
                else ()
            )
            for c, mean, deviation in rows:
                by_class.setdefault(c, []).append((mean, deviation))
        stream = torch_stream(server.seed, "virtual-features")
        features, labels = [], []
        for c in sorted(by_class):
            means, deviations = (torch.stack(parts) for parts in zip(*by_class[c], strict=True))
            between = means.var(dim=0, correction=0)  # mean(μ_k²) − mean(μ_k)²
            noise = torch.randn(self.samples, means.shape[1], generator=stream, dtype=means.dtype)
            features.append(means.mean(dim=0) + noise * (deviations.mean(dim=0) + between))
            labels += [c] * self.samples
        return torch.cat(features) if features else torch.empty(0, 0), torch.tensor(labels, dtype=torch.int64)


class AuthorsFedProto(FedProto):
    """The prototype of a class that no participant of the round holds becomes zero, and features are drawn to it."""

    name: ClassVar = "fedproto"

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """C̄_c is the mean over this round's holders of c, and 0 where there are none."""
        uploads = list(uploads)
        if not uploads:
            return
        zeros = torch.zeros_like(server.state["head.prototypes"])
        fresh = replace(server, state={**server.state, "head.prototypes": zeros})
        super().aggregate(fresh, uploads)
        server.state.update({"head.prototypes": zeros, "head.known": torch.ones_like(server.state["head.known"])})


class AuthorsFedNH(FedNH):
    """Class means are of the raw features, and every holder counts the same in their mean."""

    name: ClassVar = "fednh"

    def class_means(self, client: Client) -> list[tuple[int, int, Tensor]]:
        """Neither features nor means are brought to unit length."""
        return [(c, 1, h.mean(dim=0)) for c, h in client.class_features()]


class AuthorsFedETF(FedETF):
    """Stage one of the finetuning trains everything with the balanced loss; in stage two β stays, each turn takes three
    epochs with an optimiser of its own, and the frozen encoder is in train mode, so that its BatchNorm statistics
    move."""

    name: ClassVar = "fedetf"

    def personalise(self, client: Client) -> None:
        """Algorithm 2 as published in code."""
        settings = client.personal
        client.note_accuracy()
        client.train(self.loss)
        client.note_accuracy()
        epochs = 3 if settings.epochs is None else settings.epochs
        turn = partial(client.train, plain_loss, epochs=epochs, eval_frozen_encoder=False)
        for _ in range(settings.rounds):
            turn(["head.V"], lr=settings.lr_etf, momentum=0, weight_decay=0)
            if self.projection:
                client.memory.clear()  # what train.keep_momentum keeps is of the rounds; here it starts from zero
                turn(["head.projection"], lr=settings.lr_proj)
            client.note_accuracy()


AUTHORS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        AuthorsFedProx,
        AuthorsFedDyn,
        AuthorsDitto,
        AuthorsFedRep,
        AuthorsFedRoD,
        AuthorsCCVR,
        AuthorsFedProto,
        AuthorsFedNH,
        AuthorsFedETF,
    )
}
