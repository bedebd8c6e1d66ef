"""Per-unit damage to decisions, and the layout that spends a budget best."""
