"""What is wrong with a run: pure functions, records in, findings out. Nothing here acts, and nothing here imports torch."""
