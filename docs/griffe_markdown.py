"""Docstrings speak to terminals first: turn their few conventions into Markdown for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
_BLOCK = re.compile(r"::\n\n(?=\s{4})")
_DIRECTIVE = re.compile(r" +# doctest: .*")
_SESSION = re.compile(r"(?:^|(?<=\n))(>>> .*(?:\n(?!\n).+)*)")
_CODE = re.compile(r"(```.*?```|``.*?``|`[^`]*`|(?:^|(?<=\n)) {4}[^\n]*)", re.DOTALL)


def as_markdown(text: str) -> str:
    """Make roles code, ``::`` before a block a colon, and interactive sessions code blocks.

    Products such as <u, g> must not be taken for HTML.
    """
    text = _DIRECTIVE.sub("", _BLOCK.sub(":\n\n", _ROLE.sub(r"`\1`", text)))
    text = _SESSION.sub(r"```pycon\n\1\n```", text)
    parts = _CODE.split(text)  # code is every second part
    return "".join(p if i % 2 else p.replace("<", "&lt;") for i, p in enumerate(parts))


class Markdown(griffe.Extension):
    """Rewrites the docstring of everything that has one."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
