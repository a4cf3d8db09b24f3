"""The kinds of phases, one file each: the command of a phase, and what its files say afterwards."""
