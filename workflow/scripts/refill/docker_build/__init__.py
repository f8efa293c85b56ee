"""What a build under Docker is made from, and the one form that its result is brought into."""
