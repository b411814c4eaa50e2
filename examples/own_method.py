"""Your own method: state only where it differs from FedAvg. Here: label smoothing, and a plain mean of the models.

From the command line:  fedetf run --method examples/own_method.py:Smooth --set method.smoothing=0.2
"""

import torch.nn.functional as F

import fedetf


class Smooth(fedetf.Method):
    """FedAvg with label smoothing, every client counting the same."""

    smoothing: float = 0.1

    def loss(self, client, batch):
        return F.cross_entropy(client.net.head(batch.h), batch.y, label_smoothing=self.smoothing)

    def aggregate(self, server, uploads):
        server.move_to(server.combine(uploads, uniform=True))


if __name__ == "__main__":
    result = fedetf.run(method=Smooth, clients=5, alpha=0.1, rounds=5, settings={"method.smoothing": 0.2})
    print(f"general {result.general:.1%}, personal {result.personal:.1%}")
