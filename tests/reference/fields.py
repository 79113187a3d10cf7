"""Texts about the fields of a struct: their docstrings and the texts of their types."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec


@cache
def field_texts(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Field name -> text, those of bases included."""
    texts: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if issubclass(cls, msgspec.Struct) and cls is not msgspec.Struct:
            tree = ast.parse(inspect.getsource(cls))
            assert isinstance(tree.body[0], ast.ClassDef)
            texts |= _docstrings(tree.body[0])
    for field in msgspec.structs.fields(kind):
        texts[field.name] = _described(msgspec.inspect.type_info(field.type)) or texts.get(
            field.name, ""
        )
    return texts


def _docstrings(cls: ast.ClassDef) -> dict[str, str]:
    """The text right below each field."""
    return {
        above.target.id: inspect.cleandoc(str(below.value.value))
        for above, below in pairwise(cls.body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


def _described(info: Any) -> str:
    if isinstance(info, msgspec.inspect.Metadata):
        text: str = (info.extra_json_schema or {}).get("description", "")
        return text or _described(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return next(filter(None, map(_described, info.types)), "")
    return ""
