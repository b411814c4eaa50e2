"""The paper's tables and figures as experiments: rows × columns × seeds, each a run folder."""
