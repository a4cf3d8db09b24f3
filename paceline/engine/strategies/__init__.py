"""How a model is spread over ranks: one strategy, one file."""
