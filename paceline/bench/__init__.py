"""The product's own measurements, re-runnable by anyone: `paceline bench NAME`. Ratios in one run, several repeats, median and spread."""
