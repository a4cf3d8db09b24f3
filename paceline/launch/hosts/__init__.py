"""One training on several hosts: who they are, how they find each other, how they are started."""
