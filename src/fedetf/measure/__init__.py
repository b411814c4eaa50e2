"""What is measured: accuracy, neural collapse of the global model, agreement of the clients, label skew."""

from fedetf.measure.accuracy import count_correct
from fedetf.measure.collapse import class_statistics, collapse
from fedetf.measure.consistency import Consistency
from fedetf.measure.cosines import Cosines
from fedetf.measure.skew import label_skew

__all__ = ["Consistency", "Cosines", "class_statistics", "collapse", "count_correct", "label_skew"]
