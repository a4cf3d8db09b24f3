"""From a configuration to running worker processes on this machine, and to a verdict on how they ended; never imports torch."""
