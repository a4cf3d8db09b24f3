"""A Paceline recipe that forecasts the next point of a noisy wave."""
