"""The part of EDN that recorded histories use: maps, vectors, lists, sets and atoms."""

from __future__ import annotations

import json
import re
from typing import Any

from jepsen_like.history import HistoryError

_TOKEN = re.compile(
    r'[\s,]+|;[^\n]*|(?P<open>#\{|\{|\[|\()|(?P<close>[}\])])|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<tag>#[A-Za-z][^\s,{}\[\]()\"]*)|(?P<atom>[^\s,{}\[\]()\"]+)",
    re.DOTALL,
)
_CLOSER = {"{": "}", "#{": "}", "[": "]", "(": ")"}
_WORDS = {"nil": None, "true": True, "false": False}


def parse_edn(text: str, source: str) -> list[Any]:
    """All forms; keywords become strings without colon. HistoryError names the line."""
    forms: list[Any] = []
    stack: list[tuple[str, list[Any]]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _malformed(source, text, position, "a string does not end")
        kind, token = match.lastgroup, match.group()
        if kind == "open":
            stack.append((token, forms))
            forms = []
        elif kind == "close":
            try:
                forms = _closed(stack, forms, token)
            except (TypeError, ValueError) as error:
                raise _malformed(source, text, position, str(error)) from error
        elif kind == "text":
            try:
                forms.append(json.loads(token, strict=False))
            except ValueError as error:
                raise _malformed(source, text, position, "a string is malformed") from error
        elif kind == "atom":
            forms.append(_atom(token))
        position = match.end()
    if stack:
        raise _malformed(source, text, position, f"{stack[-1][0]!r} is never closed")
    return forms


def _closed(stack: list[tuple[str, list[Any]]], forms: list[Any], token: str) -> list[Any]:
    """The outer forms, with the collection that ends here."""
    if not stack or _CLOSER[stack[-1][0]] != token:
        message = f"{token!r} closes nothing"
        raise ValueError(message)
    opener, outer = stack.pop()
    if opener == "{" and len(forms) % 2:
        message = "a map has a key without a value"
        raise ValueError(message)
    outer.append(_collection(opener, forms))
    return outer


def _collection(opener: str, forms: list[Any]) -> Any:
    if opener == "{":
        return dict(zip(forms[::2], forms[1::2], strict=True))
    return forms


def _atom(token: str) -> Any:
    if token in _WORDS:
        return _WORDS[token]
    if token[0] == ":":
        return token[1:]
    for kind in (int, float):
        try:
            return kind(token)
        except ValueError:
            continue
    return token


def _malformed(source: str, text: str, position: int, reason: str) -> HistoryError:
    line = text.count("\n", 0, position) + 1
    return HistoryError(f"line {line} of {source} is no edn: {reason}; repair the file")
