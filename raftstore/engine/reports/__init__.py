"""What a node tells of itself: status, metrics, events, views of channels, content hashes."""
