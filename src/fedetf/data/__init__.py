"""Data: load (name -> images, labels), partition (who holds what), schedule (who takes part when)."""

from fedetf.data.load import DATASETS, load_dataset, load_share
from fedetf.data.partition import Partition, make_partition
from fedetf.data.samples import Dataset, Samples
from fedetf.data.schedule import make_schedule
from fedetf.data.windows import deal_out

__all__ = [
    "DATASETS",
    "Dataset",
    "Partition",
    "Samples",
    "deal_out",
    "load_dataset",
    "load_share",
    "make_partition",
    "make_schedule",
]
