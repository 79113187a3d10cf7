"""The same names for programs without asyncio."""
