"""Statistics as pure functions on arrays: quantiles, stationarity, verdicts. No input or output."""
