"""One epoch, one verb a file: plan, play, decide, encode."""
