"""The tables: applied rows and states in one LevelDB, never the authority on commits."""
