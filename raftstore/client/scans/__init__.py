"""Reading ranges: pages, merged scans, snapshots of a whole table."""
