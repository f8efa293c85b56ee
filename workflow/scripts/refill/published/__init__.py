"""The published logs of the optimizer benchmark, held to this project's statistics."""
