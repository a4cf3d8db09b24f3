"""Phases in order, each a command of Paceline with a gate on what came of it, each able to use what earlier ones found."""
