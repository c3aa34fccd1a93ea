"""Draw the pictures of docs/concepts.md: ``python docs/figures/make_concepts.py``.

Steps, cosines and fairness numbers are computed by fedcraft, not drawn by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

from drawing import Drawing, Plane, Point  # noqa: E402

import fedcraft  # noqa: E402
from fedcraft.metrics import summarise  # noqa: E402


def one_round() -> Drawing:
    """The way of the data through one round."""
    picture = Drawing(640, 250, "One round: clients train, the rule combines, the server steps")
    clients = [(20.0, 30.0 + 62 * i) for i in range(3)]
    for number, (x, y) in enumerate(clients, 1):
        picture.box((x, y), (118, 46))
        picture.text((x + 59, y + 20), f"client {number}")
        picture.text((x + 59, y + 37), "trains from θₜ", "faint", kind="small")
        picture.arrow((x + 122, y + 23), (204, y + 23), "first", 2)
        for layer, width in enumerate((44, 60, 26)):
            left = 210 + (0, 46, 108)[layer]
            picture.box((left, y + 8), (width, 30), "good-wash", "first", 3)
    picture.text((277, 20), "updates gᵢ = θₜ − θᵢ", "first")
    for left, width, name in ((210, 44, "layer 1"), (256, 60, "layer 2"), (318, 26, "3")):
        picture.text((left + width / 2, 222), name, "faint", kind="small")
    picture.arrow((350, 115), (384, 115), "ink", 2)
    _step_box(picture, 388, "rule", "combines", "craft, average")
    picture.arrow((506, 115), (526, 115), "ink", 2)
    _step_box(picture, 530, "server", "θₜ₊₁ = θₜ − ηg", "sgd, adam", 100)
    picture.text((447, 190), "certificate", "step", kind="strong")
    picture.arrow((447, 150), (447, 174), "step", 2)
    return picture


def _step_box(
    picture: Drawing, left: float, name: str, what: str, which: str, width: float = 114
) -> None:
    picture.box((left, 80), (width, 68), "wash", "ink")
    middle = left + width / 2
    picture.text((middle, 101), name, kind="strong")
    picture.text((middle, 120), what, kind="small")
    picture.text((middle, 138), which, "faint", kind="small")


def conflict() -> Drawing:
    """Two clients: the average goes against one of them, CRAFT's step against none."""
    updates = np.array([[3.0, 0.4], [-1.2, 0.9]])
    picture = Drawing(640, 330, "The average goes against client B; a conflict-free step does not")
    for left, rule, title in ((0, "average", "plain average"), (320, "craft", "CRAFT")):
        step = fedcraft.aggregator(rule).aggregate(updates)
        plane = Plane((left + 125, 190), 56)
        _against(picture, plane, step.direction)
        for row, name, colour in zip(updates, "AB", ("first", "second"), strict=True):
            picture.arrow(plane.at(0, 0), plane.at(*row), colour)
            shift = (16, -6) if name == "A" else (-14, -8)
            tip = plane.at(*row)
            picture.text((tip[0] + shift[0] - 8, tip[1] + shift[1]), f"g{name}", colour)
        tip = plane.at(*(step.direction * 1.6))
        picture.arrow(plane.at(0, 0), tip, "step", 3.5)
        picture.text((tip[0] + 12, tip[1] - 8), "step", "step", "start", "strong")
        picture.text((left + 160, 26), title, kind="strong")
        picture.text((left + 160, 318), _verdict(step.certificate, "AB"), kind="small")
    return picture


def _against(picture: Drawing, plane: Plane, direction: np.ndarray) -> None:
    """Shade the half plane of updates that the direction works against."""
    along = direction / np.linalg.norm(direction)
    side = np.array([-along[1], along[0]])
    reach, depth = 1.75, 0.7
    corners = [reach * side, -reach * side, -reach * side - depth * along]
    corners.append(reach * side - depth * along)
    picture.polygon([plane.at(*corner) for corner in corners], "wash")
    picture.line(plane.at(*(reach * side)), plane.at(*(-reach * side)), "faint", 1.2, "5 4")


def _verdict(certificate: fedcraft.Certificate, names: str) -> str:
    cosines = certificate.whole.cosine.tolist()
    words = (f"cosine with {n}: {c:+.2f}" for n, c in zip(names, cosines, strict=True))
    return ", ".join(words).replace("-", "−")


def projection() -> Drawing:
    """The nearest point to the reference on the target's line, and the one-sided form."""
    picture = Drawing(640, 320, "CRAFT projects the last step on the set that meets the target")
    update, target = np.array([0.28, 0.96]), 0.4
    panels = (
        (70.0, "equal", (0.9, -0.436), "⟨u, g⟩ = ρ"),
        (390.0, "at_least", (0.66, 0.751), "⟨u, g⟩ ≥ ρ"),
    )
    for left, constraint, reference, formula in panels:
        plane = Plane((left, 190), 150)
        if constraint == "at_least":
            _line_of(picture, plane, update, target, upto=0.95)
        _line_of(picture, plane, update, target)
        _panel_of(picture, plane, update, target, constraint, np.array(reference))
        title = {"equal": 'constraint="equal" (the paper)', "at_least": 'constraint="at_least"'}
        picture.text((left + 90, 20), title[constraint], kind="strong")
        picture.text(_above(plane, update, target), formula, "first", "start", "small")
    return picture


def _line_of(
    picture: Drawing, plane: Plane, u: np.ndarray, target: float, upto: float = 0.0
) -> None:
    side = np.array([u[1], -u[0]])
    ends = [target * u - 0.42 * side, target * u + 1.25 * side]
    if upto:
        far = (upto - target) * u
        corners = [ends[0], ends[1], ends[1] + far, ends[0] + far]
        picture.polygon([plane.at(*corner) for corner in corners], "good-wash")
    else:
        picture.line(plane.at(*ends[0]), plane.at(*ends[1]), "first", 2)


def _above(plane: Plane, u: np.ndarray, target: float) -> Point:
    x, y = plane.at(*(target * u - 0.42 * np.array([u[1], -u[0]])))
    return x - 24, y - 12


def _panel_of(
    picture: Drawing,
    plane: Plane,
    u: np.ndarray,
    target: float,
    constraint: str,
    reference: np.ndarray,
) -> None:
    step = _project(u, target, reference, constraint)
    origin = plane.at(0, 0)
    picture.dot(origin, "ink", 3)
    picture.arrow(origin, plane.at(*u), "first")
    picture.text((plane.at(*u)[0] - 10, plane.at(*u)[1] + 4), "u", "first", "end")
    picture.arrow(origin, plane.at(*reference), "second")
    below = reference[1] < 0
    x, y = plane.at(*reference)
    picture.text((x + 8, y + (16 if below else -8)), "r = last step", "second", "start")
    nearest = target * u / (u @ u)
    picture.dot(plane.at(*nearest), "faint", 5)
    label = plane.at(*nearest)
    picture.text((label[0] - 14, label[1] + 20), "ConFIG", "faint", "end", "small")
    if np.allclose(step, reference):
        picture.dot((x, y), "step", 6)
        picture.text((x - 10, y - 12), "g = r", "step", "end", "strong")
        return
    picture.arrow(origin, plane.at(*step), "step", 3)
    picture.arrow((x, y), plane.at(*step), "bad", 2, "5 4")
    tip = plane.at(*step)
    picture.text((tip[0] + 8, tip[1] - 8), "g", "step", "start", "strong")
    picture.text(((x + tip[0]) / 2 + 14, (y + tip[1]) / 2 + 6), "Δ", "bad", "start")


def _project(u: np.ndarray, target: float, reference: np.ndarray, constraint: str) -> np.ndarray:
    """Eq. 4.6 for one client (u has length one); fedcraft would set its target to 1."""
    gap = target - float(u @ reference)
    return reference + (max(gap, 0.0) if constraint == "at_least" else gap) * u


def cosines() -> Drawing:
    """Cosine of the step with each client, layer by layer, for two rules."""
    picture = Drawing(640, 290, "Cosine of step and client by layer: plain average and CRAFT")
    updates, sizes = disagreeing_updates()
    names = ("layer 1", "layer 2", "layer 3", "whole")
    for left, rule, title in ((-10, "average", "plain average"), (320, "craft", "CRAFT")):
        made = fedcraft.aggregator(rule).aggregate(updates, layers=sizes)
        found = made.certificate
        table = torch.cat([found.layers.cosine, found.whole.cosine.unsqueeze(0)]).T.tolist()
        picture.text((left + 176, 22), title, kind="strong")
        for column, name in enumerate(names):
            picture.text((left + 95 + 62 * column, 52), name, "faint", kind="small")
        for row, values in enumerate(table):
            _cosine_row(picture, left, 62 + 44 * row, "ABCD"[row], values, updates[row], sizes)
    picture.text((320, 272), "orange: the step works against this client here", "bad", kind="small")
    return picture


def disagreeing_updates() -> tuple[np.ndarray, list[int]]:
    """Four clients, three layers: C pulls back in layer 2, D did not train layer 3."""
    sizes = [12, 20, 10]
    draw = np.random.default_rng(4)
    common = draw.standard_normal(42)
    updates = common + 1.1 * draw.standard_normal((4, 42))
    updates[2, 12:32] = -1.2 * common[12:32] + 0.6 * draw.standard_normal(20)
    updates[1, :12] = -0.7 * common[:12] + 0.6 * draw.standard_normal(12)
    updates[3, 32:] = 0.0
    return updates, sizes


def _cosine_row(
    picture: Drawing,
    left: float,
    top: float,
    client: str,
    values: list[float],
    update: np.ndarray,
    sizes: list[int],
) -> None:
    picture.text((left + 40, top + 25), client)
    trained = [bool(part.any()) for part in np.split(update, np.cumsum(sizes)[:-1])] + [True]
    for column, (value, known) in enumerate(zip(values, trained, strict=True)):
        kind = "wash" if not known else "bad-wash" if value < 0 else "good-wash"
        place = (left + 66 + 62 * column, top)
        picture.box(place, (58, 40), kind, "bad" if known and value < 0 else "", 4)
        words = f"{value:+.2f}".replace("-", "−") if known else "–"
        picture.text((place[0] + 29, top + 26), words)


def fairness() -> Drawing:
    """Same mean, other spread: what std, best 10 % and worst 10 % see."""
    picture = Drawing(640, 290, "Two models with the same mean accuracy and another spread")
    ranks = np.linspace(-1, 1, 20)
    panels = ((0, "uneven", 0.62 + 0.36 * ranks**3), (320, "even", 0.62 + 0.12 * ranks))
    for left, title, accuracies in panels:
        facts = summarise(accuracies)
        plane = Plane((left + 44.0, 236), 200)
        picture.text((left + 165, 22), title, kind="strong")
        for client, accuracy in enumerate(accuracies):
            tail = "bad" if client < 2 else "step" if client > 17 else "first"
            foot, top = plane.at(0.063 * client, 0), plane.at(0.063 * client, accuracy)
            picture.line(foot, top, tail, 8)
        picture.line(plane.at(-0.03, 0), plane.at(1.24, 0), "faint", 1)
        y = plane.at(0, facts["mean"])[1]
        picture.line((left + 36, y), (left + 298, y), "ink", 1.5, "5 4")
        picture.text((left + 40, y - 8), f"mean {facts['mean']:.2f}", anchor="start", kind="small")
        words = f"worst 10 % {facts['worst10']:.2f}", f"best 10 % {facts['best10']:.2f}"
        picture.text((left + 40, 258), words[0], "bad", "start", "small")
        picture.text((left + 300, 258), words[1], "step", "end", "small")
        picture.text((left + 165, 280), f"std {facts['std']:.2f}", kind="small")
    return picture


PICTURES: dict[str, Callable[[], Drawing]] = {
    "round": one_round,
    "conflict": conflict,
    "projection": projection,
    "cosines": cosines,
    "fairness": fairness,
}


def main() -> None:
    """Write every picture beside this script."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
