"""Mathematics that can be used alone: the simplex ETF, heads, losses, optimisers, encoders."""
