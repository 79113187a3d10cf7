"""The catalog's consequences: channels opened and closed, commands on tables answered."""
