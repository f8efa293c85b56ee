"""Corpora: where vectors come from, how they are checked and prepared, how they are read."""
