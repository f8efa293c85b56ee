"""How to run an engine: a process, a container, or a URL that is already there."""
