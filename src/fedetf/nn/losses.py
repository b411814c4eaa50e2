"""Losses: the balanced cross entropy of Eq. 6, proximal terms. (Plain cross entropy, Eq. 9, is torch's own.)"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedetf.errors import UserError

ZeroCount = Literal["one", "mask"]


def log_prior(
    counts: Tensor, gamma: float, zero_count: ZeroCount = "one", dtype: torch.dtype = torch.float32
) -> Tensor:
    """γ·log n_c, what Eq. 6 adds to the logit of class c; ``counts`` and the result are ``[classes]``, in ``dtype``.

    It is not taken in double precision and rounded: on some processors log 7 in single precision differs from that in
    the last bit, and runs would not keep their bits.

    For a class the client lacks the printed formula gives weight 0: the class leaves the softmax ("mask"). The results
    in the paper were made with such counts set to 1 ("one", the default), which also leaves a client with a single
    class a gradient.
    """
    if zero_count not in ("one", "mask"):
        raise UserError(f"zero_count must be 'one' or 'mask', not {zero_count!r}")
    if gamma == 0:  # n⁰ = 1, also for n = 0
        return torch.zeros(counts.shape, dtype=dtype, device=counts.device)
    logs = gamma * counts.clamp(min=1).to(dtype).log()
    return logs if zero_count == "one" else logs.masked_fill(counts == 0, float("-inf"))


def balanced_cross_entropy(
    logits: Tensor, labels: Tensor, counts: Tensor, gamma: float = 1.0, zero_count: ZeroCount = "one"
) -> Tensor:
    """The balanced loss of Eq. 6, −log( n_y^γ exp(z_y) / Σ_c n_c^γ exp(z_c) ), averaged over the batch.

    Parameters
    ----------
    logits:
        z, ``[batch, classes]``; for FedETF β·v_cᵀμ.
    labels:
        ``[batch]``, integer.
    counts:
        n_{k,c}, ``[classes]``: how many training samples of each class the client holds.
    gamma:
        The strength of the balancing; 0 gives plain cross entropy.
    zero_count:
        What to do about classes with no sample, see :func:`log_prior`.

    Examples
    --------
    >>> loss = balanced_cross_entropy(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([3, 1]))
    >>> round(loss.item(), 6)  # ln 4
    1.386294
    """
    if counts.shape != logits.shape[-1:]:
        raise UserError(f"counts have shape {tuple(counts.shape)}; expected [{logits.shape[-1]}], one for each class")
    precision = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits + log_prior(counts, gamma, zero_count, precision), labels)


def squared_distance(tensors: Mapping[str, Tensor], centre: Mapping[str, Tensor]) -> Tensor:
    """‖w − c‖², over all tensors of ``tensors``; ``centre`` has one of the same name and shape for each."""
    return torch.stack([(tensor - centre[name]).square().sum() for name, tensor in tensors.items()]).sum()


def inner_product(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Tensor:
    """⟨w, g⟩, over all tensors of ``tensors``; ``others`` has one of the same name and shape for each."""
    return torch.stack([(tensor * others[name]).sum() for name, tensor in tensors.items()]).sum()
