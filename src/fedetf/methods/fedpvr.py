"""FedPVR."""

from typing import ClassVar

from fedetf.core.client import Client
from fedetf.core.forms import LikeParameters
from fedetf.methods.scaffold import SCAFFOLD
from fedetf.settings import TrainSettings


class FedPVR(SCAFFOLD):
    """SCAFFOLD's correction for the classifier alone, since it is the part that drifts most.

    The head trains without momentum and weight decay, as in the authors' code, so that its effective steps are its
    steps.
    """

    name: ClassVar = "fedpvr"
    summary: ClassVar = "SCAFFOLD's correction for the classifier alone"
    citation: ClassVar = "Li et al., CVPR 2023"
    downloads: ClassVar = {"c": LikeParameters("head.")}
    part: ClassVar = "head."

    def momentum(self, train: TrainSettings) -> float:
        """None."""
        return 0.0

    def train(self, client: Client) -> None:
        """The head plainly, the encoder as the settings say."""
        client.train(self.loss, plain=["head"])
