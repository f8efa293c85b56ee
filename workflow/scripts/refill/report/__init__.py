"""Tables, claims and the page, from records, ledgers and polls alone. Knows no engine."""
