"""The contract between a training run and everything that looks at it: the run directory. Standard library only."""
