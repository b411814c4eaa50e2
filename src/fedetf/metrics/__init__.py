"""What is measured: accuracy, neural collapse of the global model, agreement of the clients, label skew."""

from fedetf.metrics.accuracy import count_correct
from fedetf.metrics.collapse import class_statistics, collapse
from fedetf.metrics.consistency import Consistency
from fedetf.metrics.cosines import Cosines
from fedetf.metrics.skew import label_skew

__all__ = ["Consistency", "Cosines", "class_statistics", "collapse", "count_correct", "label_skew"]
