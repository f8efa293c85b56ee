"""Evidence: hashes, code identity, attempts, records, host facts and the manifest."""
