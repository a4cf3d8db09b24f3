"""Anybody's own training script: launched, read and recorded without it knowing."""
