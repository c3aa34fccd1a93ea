"""SVG figures that follow the reader's light or dark theme."""

from __future__ import annotations

from fedcraft.report.names import COLOURS, DARK_COLOURS

_INK, _SOFT, _PAPER, _GRID = "#eceff3", "#a6afba", "#1c2026", "#343a43"
_SHAPES = ("path", "use", "rect")


def with_dark_theme(svg: str) -> str:
    """Add colours for readers with a dark theme; nothing changes for others, nor on paper.

    Shapes are found by the colours that matplotlib wrote into their style. Text is written in ink
    unless it has a colour of its own, as on the cells of a heat map, which keep theirs.
    """
    pairs = [("#ffffff", _PAPER), ("#000000", _INK), ("#e3e5e8", _GRID)]
    pairs += zip((c.lower() for c in COLOURS), (c.lower() for c in DARK_COLOURS), strict=True)
    rules = [
        ",".join(f'{shape}[style*="{part}: {light}"]' for shape in _SHAPES)
        + f"{{{part}:{dark}!important}}"
        for light, dark in pairs
        for part in ("fill", "stroke")
    ]
    rules += [f'text{{fill:{_INK}}}text[style*="fill: #555555"]{{fill:{_SOFT}!important}}']
    style = f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"
    head, end, rest = svg.rpartition("</svg>")
    return f"{head}<style>{style}</style>\n{end}{rest}"
