"""What is measured: accuracy, neural collapse of the global model, agreement of the clients."""

from fedetf.measure.accuracy import count_correct
from fedetf.measure.collapse import class_statistics, collapse
from fedetf.measure.consistency import Consistency
from fedetf.measure.cosines import Cosines

__all__ = ["Consistency", "Cosines", "class_statistics", "collapse", "count_correct"]
