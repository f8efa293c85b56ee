"""How each engine is configured, made ready, and asked for its identity."""
