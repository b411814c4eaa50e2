"""Your own data: a list of (x, y), one pair for each client. Here: measurements of tumours at three clinics."""

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedetf

table = load_breast_cancer()
x, y = table.data, table.target_names[table.target]  # plain numbers, and labels as text
by_size = np.argsort(table.data[:, 0])
clinics = [by_size[:200], by_size[-200:], by_size[200:-200]]  # small tumours, large ones, those in between

result = fedetf.run(data=[(x[rows], y[rows]) for rows in clinics], rounds=10, seed=7)
print(f"one model for all: {result.general:.1%}   each clinic its own: {result.personal:.1%}")
