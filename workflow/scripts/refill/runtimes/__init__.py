"""How to run an engine: a process, or a URL that is already there."""
