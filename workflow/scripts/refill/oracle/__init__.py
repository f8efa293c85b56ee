"""The right answer to each request, from the corpus alone."""
