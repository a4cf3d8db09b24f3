"""The training engine: knows recipes only through the workload protocol, and operators only through the run directory."""
