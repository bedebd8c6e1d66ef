"""Sources of records. Each yields drafts in an order fixed by its options and the seed."""
