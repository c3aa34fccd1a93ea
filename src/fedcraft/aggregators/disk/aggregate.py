"""Aggregates client updates in safetensors files, within a memory budget.

Only the m x m geometry is kept; the data are read in pieces: once for the Gram matrices, once for
the products with the last step, once for the weighted sum that is written to ``out``. A rule whose
work goes through its cohort's methods (average, config, craft, ...) gives the same result as in
memory, with one exception: where float64 updates nearly depend on each other, the computation in
memory uses the singular values of the rows themselves, the one on disk only those of the Gram
matrix, which are squares. There singular values below about 2 sqrt(m eps) = 3e-8 sqrt(m) of the
largest count as zero, not those below max(m, min(d_q, 1024)) eps: such rows may count as dependent
on disk and not in memory, and the certificate's rank shows which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard

from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Step
from fedcraft.aggregators.disk.disk_vector import DiskVector, open_vector
from fedcraft.aggregators.disk.file_cohort import FileCohort
from fedcraft.aggregators.inputs import RoundInput, without_nonfinite
from fedcraft.errors import InputError, StateError
from fedcraft.updates import ClientId, Grouping, Layout

_BYTES_PER_MB = 2**20


def aggregate_files(
    aggregator: Aggregator,
    files: Sequence[str | Path],
    out: str | Path,
    *,
    layers: Layout | Grouping = "layer",
    weights: Sequence[float] | None = None,
    client_ids: Sequence[ClientId] | None = None,
    losses: Sequence[float] | None = None,
    steps: Sequence[float] | None = None,
    client_lr: float | None = None,
    budget_mb: int = 256,
) -> Step:
    """Aggregate one safetensors file of updates per client into the file ``out``.

    Every file holds the same float32 or float64 tensors g_i = theta_t - theta_i. Peak memory beyond
    the interpreter's own is about ``budget_mb``, however large the model and however many layers.
    The step's direction is a ``DiskVector``: ``out`` is an ordinary safetensors file.

    ``layers`` should be ``Layout.from_module(model)``: a file knows the names of its tensors, not
    that a norm belongs to the convolution before it. Without it a layer is a name up to its last
    dot. The rule remembers the round by the name and digest of ``out``, or of a file beside it if
    it remembers something else: keep these files as long as you may want to continue from this
    state. If anything fails, the files and the rule are as they were.
    """
    out = Path(out)
    rows = _rows([Path(file) for file in files], layers)
    layout = layers if isinstance(layers, Layout) else Layout.from_tensors(rows[0].shapes, layers)
    _check_order(aggregator, layers, layout.dimension)
    ids = [row.path.stem for row in rows] if client_ids is None else client_ids
    given = RoundInput(weights, layout, ids, losses, steps, client_lr)
    facts, budget = given.facts(len(rows), layout.dimension), budget_mb * _BYTES_PER_MB
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        cohort = FileCohort(**facts, files=rows, folder=Path(folder), budget=budget)
        drop = aggregator.nonfinite == "drop"
        kept = without_nonfinite(cohort, cohort.finite_rows(), drop=drop)
        return _aggregate(aggregator, kept, rows[0].shapes, Path(folder), out)


def _rows(files: list[Path], layers: Layout | Grouping) -> tuple[DiskVector, ...]:
    """Open every file, its tensors in the order of the layout."""
    if not files:
        raise InputError("files: the cohort is empty; at least one client must take part")
    rows = [open_vector(file) for file in files]
    for row in rows[1:]:
        if row.shapes != rows[0].shapes or row.dtype != rows[0].dtype:
            raise InputError(f"{row.path}: its tensors differ from those of {rows[0].path}")
    if not isinstance(layers, Layout):
        return tuple(rows)
    wanted = {slot.name: slot.shape for slot in layers.tensors}
    if wanted != rows[0].shapes:
        raise InputError(
            f"layers: expected the tensors of the files, {_named(rows[0].shapes)}, found "
            f"{_named(wanted)}; use Layout.from_module(model) and write named_parameters()"
        )
    return tuple(row.in_order(wanted) for row in rows)


def _check_order(aggregator: Aggregator, layers: Layout | Grouping, dimension: int) -> None:
    """Refuse a step in memory whose order of tensors is unknown: files have their own order."""
    if _has_vector(aggregator.state_dict(), dimension) and not isinstance(layers, Layout):
        raise StateError(
            "state: the last step is in memory, so files must be read in its order; give "
            "layers=Layout.from_module(model), or call reset() to start again"
        )


def _has_vector(value: object, dimension: int) -> bool:
    if isinstance(value, Mapping):  # what a guard remembers
        return any(_has_vector(part, dimension) for part in value.values())
    return isinstance(value, Tensor) and value.shape == (dimension,)


def _named(shapes: Mapping[str, tuple[int, ...]]) -> str:
    first = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:3])
    return f"{len(shapes)} of them ({first}, ...)" if len(shapes) > 3 else first or "no names"


def _aggregate(
    aggregator: Aggregator, cohort: FileCohort, names: Iterable[str], made_in: Path, out: Path
) -> Step:
    """Aggregate with the memory opened; if all went well, move the new files into place."""
    before = aggregator.state_dict()
    try:
        aggregator.load_state_dict({key: _opened(v, names) for key, v in before.items()})
        step = _step(aggregator, cohort)
        after = aggregator.state_dict()
        places = _places(after, made_in, out) | {step.direction.path: out}
        for made, place in places.items():  # the step last: everything before it has a new name
            made.replace(place)
        aggregator.load_state_dict({key: _closed(v, places) for key, v in after.items()})
    except BaseException:
        aggregator.load_state_dict(before)
        raise
    _delete_replaced(before, aggregator.state_dict(), out)
    return replace(step, direction=open_vector(out))


def _step(aggregator: Aggregator, cohort: FileCohort) -> Step:
    """Return the step, which must be on disk: a rule may only pass vectors to its cohort."""
    try:
        step = aggregator.aggregate_cohort(cohort)
        if isinstance(step.direction, DiskVector):
            return step
        cause: Exception | None = None
    except (TypeError, AttributeError) as error:
        if "DiskVector" not in str(error):
            raise
        cause = error
    name = type(aggregator).__name__
    raise InputError(f"aggregator: {name} needs the updates in memory; load them") from cause


def _places(state: Mapping[str, Any], made_in: Path, out: Path) -> dict[Path, Path]:
    """Return the place of a new memory: beside ``out``, unless it is the step itself."""
    return {
        value.path: out.with_name(f"{out.stem}.{key}-{value.digest}.safetensors")
        for key, value in state.items()
        if isinstance(value, DiskVector) and value.path.parent == made_in
    }


def _delete_replaced(before: Mapping[str, Any], after: Mapping[str, Any], out: Path) -> None:
    """Delete the memory beside ``out`` that this round has replaced."""
    for key, value in before.items():
        if _lies_in_a_file(value) and value != after.get(key):
            path = Path(value["safetensors"])
            if path.name.startswith(f"{out.stem}.{key}-") and path.parent == out.parent.resolve():
                path.unlink(missing_ok=True)


def _lies_in_a_file(value: object) -> TypeGuard[Mapping[str, str]]:
    """Tell whether a rule's memory is a vector on disk, by name and digest."""
    return isinstance(value, Mapping) and set(value) == {"safetensors", "digest"}


def _closed(value: object, places: Mapping[Path, Path]) -> object:
    """Return a vector on disk as plain values, which any format can save."""
    if isinstance(value, dict):  # what a guard remembers
        return {key: _closed(part, places) for key, part in value.items()}
    if not isinstance(value, DiskVector):
        return value
    path = places.get(value.path, value.path)
    return {"safetensors": str(path.resolve()), "digest": value.digest}


def _opened(value: object, names: Iterable[str]) -> object:
    """Return the vector that :func:`_closed` described, if the file still contains it."""
    if not _lies_in_a_file(value):
        if isinstance(value, dict):
            return {key: _opened(part, names) for key, part in value.items()}
        return value
    found = open_vector(Path(value["safetensors"]))
    if found.digest != value["digest"]:
        raise StateError(
            f"state: the last step was written to {found.path}, but that file holds another one "
            "now; write every round to a separate file if you want to go back"
        )
    if set(found.shapes) != set(names):
        raise StateError(
            f"state: the last step in {found.path} has the tensors {_named(found.shapes)}, not "
            "those of the updates; call reset() to start again"
        )
    return found.in_order(names)
