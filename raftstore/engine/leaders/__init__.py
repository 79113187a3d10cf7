"""Leaderships that are moved so that every node leads its share."""
