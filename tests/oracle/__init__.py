"""Two worlds that differ in everything private, and one public transcript."""
