"""Issue requests at a closed or an open loop and keep every one of them in a ledger."""
