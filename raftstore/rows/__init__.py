"""Rows as bytes: keys in order-preserving bytes, values as msgpack, seals, partitions.

Everything here is pure and shared by the client, the Spark sink and the state machines; a node that
only stores and serves rows never decodes a value.
"""
