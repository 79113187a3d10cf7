"""What a run runs against: a simulated world or real processes."""
