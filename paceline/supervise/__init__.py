"""The watchdog beside a run, one process per host: reads pulses and processes, lets `diagnose` judge, writes incidents, acts by policy."""
