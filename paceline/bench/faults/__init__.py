"""`paceline bench faults`: faults planted into real runs, and what was noticed of them."""
