"""Is this machine fit to train on, and this configuration on it? One file per family of checks; never imports torch."""
