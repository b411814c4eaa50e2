"""FedAvg."""

from typing import ClassVar

from fedetf.methods.base import Method


class FedAvg(Method):
    """Clients run E local epochs of SGD, the server averages their models by data size."""

    name: ClassVar = "fedavg"
    summary: ClassVar = "local SGD, models averaged by data size"
    citation: ClassVar = "McMahan et al., AISTATS 2017"
    family: ClassVar = "averaging"
