"""What torchrun starts, once per rank: a configuration, a recipe and the engine, from the first line to the exit code."""
