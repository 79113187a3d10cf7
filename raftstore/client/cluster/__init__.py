"""A client's connections and what it knows of the cluster: hints, corrected by every answer."""
