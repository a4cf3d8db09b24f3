"""The smallest change that cures a run: reproduce, change one thing at a time, confirm. Each change is a bounded trial."""
