"""Paceline trains PyTorch models on one to many GPUs and tells its operator early, and by name, what is wrong."""

__version__ = "0.1.0"
