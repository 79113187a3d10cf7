"""Reports of a node: status, metrics, events, views of channels, content hashes."""
