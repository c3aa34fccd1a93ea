"""Refuses strategies around ours that would promise what they do not keep."""

from __future__ import annotations

import sys
from types import FrameType

from fedcraft.errors import InputError
from fedcraft.methods import Method
from fedcraft.privacy.options import has_bounded_sensitivity


def refuse_void_privacy(method: Method) -> None:
    """Raise ``InputError`` if one of Flower's differential-privacy strategies calls us in vain.

    They clip updates and add noise to the aggregate that would hide one client in a mean. A rule
    whose step one client can move further than in a mean is not private under that noise.
    """
    wrapper = _calling_wrapper()
    if wrapper is None or has_bounded_sensitivity(method.build()[1]):
        return
    raise InputError(
        f"strategy: {wrapper} adds noise that hides one client in a mean, but one client can move "
        f"the step of {method.title} much further: this gives no privacy. Use fedavg inside it, or "
        'set privacy=Privacy(mode="local", ...) here and on the clients, without a wrapper'
    )


def _calling_wrapper() -> str | None:
    """Return the class of the differential-privacy strategy that runs the rounds, if one does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = type(frame.f_locals.get("self"))
        if any(base.__name__.startswith("DifferentialPrivacy") for base in owner.__mro__):
            return owner.__name__
        frame = frame.f_back
    return None
