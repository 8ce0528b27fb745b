"""From prepared rows to a plan: collation, task ids and input digests. Pure apart from reading the rows."""
