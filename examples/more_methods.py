"""Four methods that need more than features: a second network, tensors both ways, images, all updates at once.

From the command line:  fedetf run --method examples/more_methods.py:Contrast --set method.mu=0.5
"""

from typing import ClassVar

import torch
import torch.nn.functional as F

import fedetf
from fedetf.nn.losses import inner_product


class Contrast(fedetf.Method):
    """Features shall resemble the received model's rather than those of the client's own last model."""

    mu: float = 1.0

    def client_state(self, net):
        return {f"last.{name}": tensor for name, tensor in net.state_dict().items() if name.startswith("encoder.")}

    def loss(self, client, batch):
        last = self.last(client)
        alike = [F.cosine_similarity(batch.h, client.encode(state, batch)) for state in (client.received, last)]
        nearer = F.cross_entropy(torch.stack(alike, dim=1), torch.zeros_like(batch.y))
        return super().loss(client, batch) + self.mu * nearer

    def last(self, client):
        return {name.removeprefix("last."): tensor for name, tensor in client.private.items()}

    def local(self, client):
        super().local(client)
        for name, tensor in client.net.state_dict().items():
            if name.startswith("encoder."):
                client.private[f"last.{name}"] = tensor.clone()


class Correct(fedetf.Method):
    """Clients learn by how much their gradients differ from everybody's, and correct them by that."""

    downloads: ClassVar = {"c": fedetf.LikeParameters()}
    uploads: ClassVar = {"c": fedetf.LikeParameters()}

    def server_state(self, net):
        return {f"c.{name}": torch.zeros_like(tensor) for name, tensor in net.named_parameters()}

    client_state = server_state

    def download(self, server):
        return server.own

    def loss(self, client, batch):
        apart = {name: client.received[f"c.{name}"] - client.private[f"c.{name}"] for name in client.trained_tensors()}
        return super().loss(client, batch) + inner_product(client.trained_tensors(), apart)

    def local(self, client):
        super().local(client)
        for name, w in client.net.named_parameters():
            gradient = (client.received[name] - w.detach()) / (client.lr * max(client.steps, 1))
            client.private[f"c.{name}"] += gradient - client.received[f"c.{name}"]

    def upload(self, client):
        return {**super().upload(client), **client.private}

    def aggregate(self, server, uploads):
        uploads = list(uploads)
        super().aggregate(server, uploads)
        for name in server.own if uploads else ():
            server.own[name] = torch.stack([upload.state[name] for upload in uploads]).mean(dim=0)


class Mirror(fedetf.Method):
    """An image and its mirror image shall have the same features."""

    mu: float = 0.1

    def loss(self, client, batch):
        mirrored = client.net.encoder(batch.x.flip(-1))
        return super().loss(client, batch) + self.mu * F.mse_loss(mirrored, batch.h)


class Agree(fedetf.Method):
    """The more an update agrees with the mean of all updates, the more it counts."""

    def aggregate(self, server, uploads):
        uploads = list(uploads)
        mean = server.combine(uploads)

        def update(state):
            return torch.cat([(state[name] - server.state[name]).flatten() for name in server.parameters])

        for upload in uploads:
            alike = F.cosine_similarity(update(upload.state), update(mean), dim=0)
            upload.samples *= max(0.0, alike.item())
        server.move_to(server.combine(uploads))


if __name__ == "__main__":
    for method in (Contrast, Correct, Mirror, Agree):
        result = fedetf.run(method=method, clients=5, alpha=0.1, rounds=5, settings={"train.momentum": 0.0})
        print(f"{method.__name__}: general {result.general:.1%}")
