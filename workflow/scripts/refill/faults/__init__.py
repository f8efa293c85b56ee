"""Faults put between the driver and an engine, to see that the harness notices each of them."""
