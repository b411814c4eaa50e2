"""Tuning: the same number of trials and the same short budget for each method, judged on validation data only."""
