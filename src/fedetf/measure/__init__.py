"""What is measured: accuracy."""

from fedetf.measure.accuracy import count_correct

__all__ = ["count_correct"]
