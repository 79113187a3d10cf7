"""Following the changes of a table."""
