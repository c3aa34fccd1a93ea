"""Five honest nodes that share the digits by label, and one that lies."""
