"""Parquet and CSV files as data sets: one row per sample, optionally one column for the client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcraft.data.dataset import Dataset, count_missing, from_arrays
from fedcraft.errors import DataError, require_data
from fedcraft.registry import optional

TABLES = (".parquet", ".csv")


def from_table(
    path: Any,
    *,
    label: str = "label",
    client: str | None = None,
    features: Sequence[str] | str | None = None,
    classes: int | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> Dataset:
    """Read a ``.parquet`` or ``.csv`` file, or a pandas or polars frame, whose rows are samples.

    ``label``: integers 0, 1, ... without a gap are used directly; all other classes (1 and 100, -1
    and 1, text, true and false) are numbered in sorted order, and ``class_names`` of the data set
    holds the original values. With ``classes``, integers are not numbered and must lie below it.
    ``client``: the column with the client's id, of any type; without it the data have no owners.
    ``features``: the input columns, by default all others. Number columns become float32 features,
    as (x - mean) / std; a single column of lists gives one feature per element.
    """
    file = Path("frame") if hasattr(path, "columns") else Path(path)
    table = _from_frame(path) if hasattr(path, "columns") else _read(file)
    _require(file, table, [label, *([client] if client else [])])
    columns = [features] if isinstance(features, str) else features
    rest = [name for name in table.column_names if name not in (label, client)]
    inputs = _features(file, table, list(rest if columns is None else columns))
    labels, class_names = _labels(file, table, label, classes)
    return from_arrays(
        _standardised(inputs, mean, std),
        labels,
        _values(file, table, client) if client else None,
        classes=classes,
        class_names=class_names,
        name=file.name,
    )


def _from_frame(frame: Any) -> Any:
    if len(frame) == 0:
        raise DataError("the data frame has no rows")
    if hasattr(frame, "to_arrow"):
        return frame.to_arrow()
    _require_once(Path("the data frame"), list(frame.columns))
    return optional("pyarrow", "data").Table.from_pandas(frame, preserve_index=False)


def owners_in(path: str | Path, client: str) -> int:
    """Return the number of different owners in the column ``client`` of a table."""
    file = Path(path)
    table = _read(file)
    _require(file, table, [client])
    return int(np.unique(_values(file, table, client)).size)


def _read(file: Path) -> Any:
    require_data(file.suffix in TABLES, "path", f"a name that ends in one of {TABLES}", str(file))
    if not file.is_file():
        raise DataError(f"{file} does not exist")
    arrow = optional("pyarrow", "data")
    reader = optional(f"pyarrow.{file.suffix[1:]}", "data")
    read = reader.read_table if file.suffix == ".parquet" else reader.read_csv
    try:
        table = read(file)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as {file.suffix[1:]} ({error})") from error
    if table.num_rows == 0:
        raise DataError(f"{file} has no rows")
    _require_text(file, table)
    _require_once(file, table.column_names)
    return table


def _require_text(file: Path, table: Any) -> None:
    """Refuse a CSV file that is not in UTF-8: pyarrow gives its texts back as bytes."""
    try:
        fields = zip(table.column_names, table.schema.types, strict=True)
        binary = [name for name, kind in fields if str(kind) == "binary"]
    except UnicodeDecodeError:
        binary = ["names of the columns"]
    if binary and file.suffix == ".csv":
        raise DataError(
            f"{file} is not in UTF-8 (see {binary[0]!r}). Convert it, for example: iconv -f latin1 "
            f"-t utf-8 {file.name} > new.csv"
        )


def _require_once(file: Path, names: Sequence[object]) -> None:
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise DataError(f"{file} has the column {twice[0]!r} more than once; rename or remove one")


def _require(file: Path, table: Any, names: list[str]) -> None:
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataError(f"{file} has no column {missing}; it has {table.column_names}")


def _values(file: Path, table: Any, name: str) -> NDArray[Any]:
    if _is_nested(table, name):
        raise DataError(
            f"{file}: column {name!r} holds {table.schema.field(name).type}, expected a number or "
            "a text in each row. A column of lists must be the only feature: "
            f"data_options.features={name!r} (features= in Python)"
        )
    values: NDArray[Any] = table.column(name).to_numpy()
    empty = count_missing(values)
    if empty:
        raise DataError(
            f"{file}: column {name!r} has {empty} empty cells (null, NaN or blank); fill them in "
            "or leave their rows out"
        )
    return values.astype(str) if values.dtype == object else values


def _labels(
    file: Path, table: Any, name: str, classes: int | None
) -> tuple[NDArray[Any], list[str]]:
    """Return the class number of every row, and the names of classes that were numbered here."""
    values = _values(file, table, name)
    if np.issubdtype(values.dtype, np.integer) and _are_numbered(values, classes):
        return values, []
    if np.issubdtype(values.dtype, np.floating):
        _no_fractions(file, name, values)
    names, numbers = np.unique(values, return_inverse=True)
    return numbers, [str(found) for found in names]


def _are_numbered(values: NDArray[Any], classes: int | None) -> bool:
    """Tell whether integers are 0, 1, ... already; with ``classes`` given, some may be absent."""
    return classes is not None or bool(values.min() == 0 and values.max() < np.unique(values).size)


def _no_fractions(file: Path, name: str, values: NDArray[Any]) -> None:
    broken = values[~np.isfinite(values) | (values != np.trunc(values))]
    if broken.size:
        raise DataError(
            f"{file}: label column {name!r} must hold classes (whole numbers or text), but "
            f"{broken.size} rows hold others, the first {broken[0]}; number the classes 0, 1, ..."
        )


def _features(file: Path, table: Any, names: list[str]) -> NDArray[Any]:
    _require(file, table, names)
    if not names:
        raise DataError(f"{file} has no column left for the features")
    if len(names) == 1 and _is_nested(table, names[0]):
        return _list_features(file, table, names[0])
    columns = [_values(file, table, name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not np.issubdtype(column.dtype, np.number) and column.dtype != np.bool_:
            held = "text" if column.dtype.kind == "U" else column.dtype
            raise DataError(
                f"{file}: feature column {name!r} must hold numbers, but holds {held}. If it names "
                f"the clients, set data_options.client={name!r} (client= in Python); otherwise "
                "list the other columns as data_options.features"
            )
    return np.stack([column.astype(np.float32) for column in columns], axis=1)


def _is_nested(table: Any, name: str) -> bool:
    return bool(optional("pyarrow.types", "data").is_nested(table.schema.field(name).type))


def _list_features(file: Path, table: Any, name: str) -> NDArray[Any]:
    rows = table.column(name).to_pylist()
    lengths = {-1 if row is None else len(row) for row in rows}
    if len(lengths) != 1:
        raise DataError(f"{file}: lists of column {name!r} differ in length: {sorted(lengths)[:5]}")
    try:
        return np.array(rows, dtype=np.float32)
    except (TypeError, ValueError) as error:
        kind = table.schema.field(name).type
        raise DataError(
            f"{file}: column {name!r} must hold lists of numbers, all of one shape, but it holds "
            f"{kind} ({error})"
        ) from error


def _standardised(
    inputs: NDArray[Any], mean: Sequence[float], std: Sequence[float]
) -> NDArray[Any]:
    means, stds = np.asarray(mean, float), np.asarray(std, float)
    width = inputs.shape[1]
    finite = np.isfinite(np.append(means, stds)).all()
    if {means.size, stds.size} - {1, width} or not finite or (stds <= 0).any():
        raise DataError(
            f"mean and std must hold 1 or {width} numbers, all finite, and std be positive, but "
            f"they are {list(mean)} and {list(std)}"
        )
    standardised: NDArray[Any] = ((inputs - means) / stds).astype(np.float32)
    return standardised
