"""Writes the reference pages of docs/ from the code: ``python -m tests.reference``."""

from __future__ import annotations

from tests.reference.pages import DOCS, PAGES

for name, page in PAGES.items():
    (DOCS / name).write_text(page(), encoding="utf-8")
