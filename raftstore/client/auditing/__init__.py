"""Auditing what a client is answered: what is noted, judged, checked elsewhere and reported."""
