"""The phases of a run, and the evidence that ends each of them."""
