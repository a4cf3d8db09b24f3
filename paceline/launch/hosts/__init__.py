"""Several hosts that train one run together: who leads, who is there, and what each of them is told."""
