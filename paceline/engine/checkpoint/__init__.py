"""Saving a run so that it can go on bit for bit, and going on from what was saved."""
