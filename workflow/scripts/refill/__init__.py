"""Refill: re-runs, checks and judges published search-engine experiments on real engines."""
