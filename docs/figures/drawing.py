"""A few SVG shapes in colours that follow the reader's light or dark theme."""

from __future__ import annotations

import math
from html import escape

__all__ = ["Drawing", "Plane", "Point"]

Point = tuple[float, float]

# Okabe and Ito's colours, which the colour-blind can tell apart, lighter on a dark page.
_LIGHT = {
    "ink": "#1f2328",
    "paper": "#ffffff",
    "faint": "#8a9099",
    "first": "#0072b2",
    "second": "#b8780a",
    "step": "#00875f",
    "bad": "#c2470a",
    "wash": "#8a909926",
    "good-wash": "#0072b226",
    "bad-wash": "#d55e0033",
}
_DARK = {
    "ink": "#e6e8eb",
    "paper": "#1e2129",
    "faint": "#9aa1ab",
    "first": "#56b4e9",
    "second": "#f0b441",
    "step": "#2fd0a2",
    "bad": "#ff8a4c",
    "wash": "#9aa1ab33",
    "good-wash": "#56b4e940",
    "bad-wash": "#ff8a4c4d",
}


def _rules(colours: dict[str, str]) -> str:
    return "".join(f".{name}{{color:{value}}}" for name, value in colours.items())


_STYLE = (
    "text{font:15px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:currentColor}"
    ".small{font-size:13px}.strong{font-weight:600}"
    ".line{stroke:currentColor;fill:none}.area{fill:currentColor;stroke:none}"
    f"{_rules(_LIGHT)}@media (prefers-color-scheme:dark){{{_rules(_DARK)}}}"
)


class Drawing:
    """Shapes on a canvas; y grows downwards."""

    def __init__(self, width: int, height: int, about: str) -> None:
        self._size = (width, height)
        self._about = about
        self._parts: list[str] = []

    def text(
        self, at: Point, words: str, colour: str = "ink", anchor: str = "middle", kind: str = ""
    ) -> None:
        """Write words; ``kind`` may be small and strong."""
        self._parts.append(
            f'<text class="{colour} {kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def line(
        self, start: Point, stop: Point, colour: str = "faint", width: float = 1.5, dash: str = ""
    ) -> None:
        """Draw a straight line, dashed if ``dash`` says how."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<path class="line {colour}" stroke-width="{width}"{dashes} '
            f'd="M{_pair(start)} L{_pair(stop)}"/>'
        )

    def arrow(
        self, start: Point, stop: Point, colour: str, width: float = 2.5, dash: str = ""
    ) -> None:
        """Draw an arrow whose tip is at ``stop``."""
        angle = math.atan2(stop[1] - start[1], stop[0] - start[0])
        head = 5 + 2 * width
        neck = _away(stop, angle, -0.8 * head)
        self.line(start, neck, colour, width, dash)
        wings = [_away(stop, angle + turn, -head) for turn in (-0.45, 0.45)]
        self.polygon([stop, *wings], colour)

    def polygon(self, corners: list[Point], colour: str) -> None:
        """Fill a polygon."""
        path = " L".join(_pair(corner) for corner in corners)
        self._parts.append(f'<path class="area {colour}" d="M{path} Z"/>')

    def box(
        self, at: Point, size: Point, fill: str = "", edge: str = "faint", radius: float = 6
    ) -> None:
        """Draw a rectangle by its upper left corner, filled or as an outline or both."""
        place = f'x="{at[0]:.1f}" y="{at[1]:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}"'
        for kind, colour in (("area", fill), ("line", edge)):
            if colour:
                self._parts.append(f'<rect class="{kind} {colour}" {place} rx="{radius}"/>')

    def dot(self, at: Point, colour: str, radius: float = 4) -> None:
        """Draw a filled circle."""
        self._parts.append(
            f'<circle class="area {colour}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius}"/>'
        )

    def svg(self) -> str:
        """Return the picture as a file's text."""
        width, height = self._size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n'
            f"<title>{escape(self._about)}</title>\n<style>{_STYLE}</style>\n"
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


class Plane:
    """Coordinates of the plane, y upwards, on a part of a drawing."""

    def __init__(self, origin: Point, scale: float) -> None:
        self.origin, self.scale = origin, scale

    def at(self, x: float, y: float) -> Point:
        """Return where (x, y) lies on the drawing."""
        return self.origin[0] + self.scale * x, self.origin[1] - self.scale * y


def _away(start: Point, angle: float, distance: float) -> Point:
    return start[0] + distance * math.cos(angle), start[1] + distance * math.sin(angle)


def _pair(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"
