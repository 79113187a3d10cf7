"""Reads of keys: the specification of a read, the choice of a replica, the request, the rows."""
