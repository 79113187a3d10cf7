"""The one place of the version; pyproject.toml reads it from here."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
