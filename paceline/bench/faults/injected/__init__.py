"""What is put on PYTHONPATH of a run that is to suffer a fault. Nothing here imports paceline."""
