"""Arrow columns to stored rows and back, exactly."""
