"""Users' state machines from a client: channel sets, their commands and queries."""
