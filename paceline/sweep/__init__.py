"""Sweeps: which configuration is the best one here, found at the least cost and said with its evidence. Never imports torch."""
