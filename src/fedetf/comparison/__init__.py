"""A comparison: methods × seeds (× any setting with several values), each a run folder, and a table of them."""
