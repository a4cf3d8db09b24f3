"""Pages about what a run directory says: plain data in, one self-contained HTML page and Markdown out; never imports torch."""
