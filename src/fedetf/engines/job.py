"""All that a worker must know before the first round."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedetf.config import Settings
from fedetf.data.batches import Normalize
from fedetf.data.partition import Partition
from fedetf.data.samples import Dataset
from fedetf.errors import UserError
from fedetf.heads import Net
from fedetf.methods import Method
from fedetf.models import build_encoder
from fedetf.rng import global_stream


@dataclass(frozen=True)
class Job:
    """All that a worker must know before the first round. Nothing in it changes during a run."""

    settings: Settings
    method: Method
    dataset: Dataset
    partition: Partition
    encoder: nn.Module | None = None  # the user's own; None builds the one that the settings name

    def build_net(self) -> Net:
        """A net with the initial weights: the same encoder for every method with the same seed."""
        seed = self.settings.seed
        if self.encoder is not None:
            encoder, features = copy.deepcopy(self.encoder), _feature_length(self.encoder, self)
        else:
            with global_stream(seed, "init-encoder"):
                built = build_encoder(self.settings.model.name, self.dataset.shape)
            encoder, features = built, built.features
        return self.method.build(encoder, features, len(self.dataset.classes), seed)

    def normalize(self, device: torch.device) -> Normalize:
        """The function that turns a stored batch into what the encoder sees."""
        return Normalize(self.settings.data.normalize, self.dataset.shape[0], device)


def _feature_length(encoder: nn.Module, job: Job) -> int:
    """How long the vectors are that the user's own encoder gives, found by trying it on two samples."""
    prepare = job.normalize(torch.device("cpu"))
    probe = copy.deepcopy(encoder).cpu().eval()
    try:
        with torch.no_grad():
            features = probe(prepare(job.dataset.train.x[:2].clone()))  # it may work in place
    except Exception as error:  # whatever a user's module can raise
        reason = str(error).split("\n")[0]
        raise UserError(f"the encoder cannot take inputs of shape {job.dataset.shape}: {reason}") from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the encoder must give [batch, features], but gives {shape}; flatten or pool its output")
    if features.dtype != torch.float32:
        raise UserError(f"the encoder gives {features.dtype}; convert it to float32 (encoder.float())")
    return features.shape[1]
