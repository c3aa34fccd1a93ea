"""The user's own data: arrays, torch data sets, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedcraft.data import Dataset, federate, from_arrays, from_table, from_torch, load
from fedcraft.errors import DataError


def test_arrays_become_a_data_set_with_numbered_owners() -> None:
    data = from_arrays([[1.0], [2.0], [3.0]], [2, 0, 1], owners=["b", "a", "b"])
    assert data.inputs.dtype == np.float32
    assert data.classes == 3
    assert data.owners is not None
    assert data.owners.tolist() == [1, 0, 1]
    assert data.owner_names == ("a", "b")


def test_channels_last_images_are_turned_around() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    data = from_arrays(pixels, [0, 1], channels_last=True)
    assert data.input_shape == (3, 4, 5)
    np.testing.assert_array_equal(data.inputs[1, 2], pixels[1, :, :, 2])


@pytest.mark.parametrize("option", [{"mean": [0.5]}, {"std": [2.0]}, {"scale": 16.0}])
def test_view_of_bytes_is_refused_for_other_numbers(option: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="for uint8 inputs"):
        from_arrays(np.ones((2, 3)), [0, 1], **option)


def test_fingerprint_follows_content_only() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    base = from_arrays(values, [0, 1, 0])
    assert from_arrays(values.copy(), [0, 1, 0], name="else").fingerprint == base.fingerprint
    others = [
        from_arrays(values + 1, [0, 1, 0]),
        from_arrays(values, [0, 0, 1]),
        from_arrays(values, [0, 1, 0], owners=[0, 0, 1]),
        from_arrays(values.reshape(3, 2).astype(np.uint8), [0, 1, 0]),
    ]
    assert base.fingerprint not in {other.fingerprint for other in others}


@pytest.mark.parametrize(
    ("inputs", "labels", "options", "message"),
    [
        (np.zeros((0, 3)), [], {}, "inputs: expected samples of shape"),
        (np.zeros((2, 3)), [0], {}, r"labels: expected shape \(2,\)"),
        (np.zeros((2, 3)), [0, 3], {"classes": 3}, r"0\.\.2.*sample 1 has label 3"),
        (np.zeros((2, 3)), [0, -1], {}, "label -1"),
        (np.zeros((2, 3)), [0.0, 1.0], {}, "labels must be integers"),
        (np.zeros(3), [0, 1, 0], {}, r"found \(3,\)"),
        (np.zeros((2, 3, 4)), [0, 1], {}, r"found \(2, 3, 4\)"),
        (np.array([[0.0], [np.nan]]), [0, 1], {}, "sample 1 holds NaN"),
        (np.array([["a"], ["b"]]), [0, 1], {}, "inputs: expected numbers"),
        (np.zeros((2, 3)), [0, 1], {"owners": [1]}, "owners: expected shape"),
        (np.zeros((2, 3)), [0, 1], {"channels_last": True}, "expected channels last"),
        (np.zeros((2, 3, 4, 4)), [0, 1], {"mean": (1.0, 2.0)}, "mean: expected 1 or 3"),
        (np.zeros((2, 3)), [0, 1], {"std": (0.0,)}, "positive"),
        (np.zeros((2, 3), np.uint8), [0, 1], {"std": (np.nan,)}, "finite"),
        (np.zeros((2, 3), np.uint8), [0, 1], {"mean": (np.inf,)}, "finite"),
        (np.zeros((2, 3), np.uint8), [0, 1], {"scale": np.nan}, "finite"),
        (np.zeros((2, 3)), [0, 1], {"owners": [1.0, np.nan]}, "owners.* 1 of 2"),
        (np.zeros((2, 3)), [0, 1], {"owners": ["a", " "]}, "owners.* 1 of 2"),
        (np.zeros((2, 3)), [0, 1], {"owners": [None, "b"]}, "owners.* 1 of 2"),
        (np.zeros((2, 3)), [0, 1], {"augmentation": "mixup"}, "augmentation: expected one of"),
        (np.zeros((2, 3)), [0, 1], {"augmentation": "crop-flip"}, "needs uint8 images"),
    ],
)
def test_arrays_that_are_not_a_data_set_are_refused(
    inputs: Any, labels: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(inputs, labels, **options)


def test_value_object_refuses_other_number_types() -> None:
    with pytest.raises(DataError, match="uint8 or float32"):
        Dataset(np.zeros((2, 2)), np.array([0, 1]), 2)


def test_torch_data_set_is_read_in_order() -> None:
    values, labels = torch.randn(7, 3), torch.arange(7) % 2
    data = from_torch(torch.utils.data.TensorDataset(values, labels), owners=[0] * 3 + [1] * 4)
    assert np.array_equal(data.inputs, values.numpy())
    assert data.labels.tolist() == labels.tolist()
    assert len(federate(data, "natural")) == 2


def test_torch_data_set_of_pillow_images_becomes_bytes() -> None:
    colour = [(Image.new("RGB", (5, 4), (k, 2, 3)), k) for k in range(3)]
    data = from_torch(colour)
    assert (data.inputs.dtype, data.input_shape) == (np.uint8, (3, 4, 5))
    assert data.inputs[2, 0, 0, 0] == 2
    assert from_torch([(Image.new("L", (5, 4)), 0)]).input_shape == (1, 4, 5)


@pytest.mark.parametrize("label", [True, np.array([1]), torch.tensor([1]), torch.tensor(1)])
def test_torch_data_set_may_wrap_its_labels(label: Any) -> None:
    assert from_torch([(np.zeros(2), label)]).labels.tolist() == [1]


@pytest.mark.parametrize("label", [1.7, torch.tensor(0.0), np.float32(1)])
def test_torch_data_set_with_fractions_for_labels_is_refused(label: Any) -> None:
    with pytest.raises(DataError, match=r"labels must be integers.* 2 are of type float"):
        from_torch([(np.zeros(2), 1), (np.zeros(2), label)])


def test_torch_data_set_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(DataError, match="map-style"):
        from_torch(iter([1]))
    with pytest.raises(DataError, match="empty"):
        from_torch([])
    with pytest.raises(DataError, match="one shape"):
        from_torch([(np.zeros(2), 0), (np.zeros(3), 1)])


COLUMNS = {
    "age": [1, 2, 3, 4],
    "height": [1.5, 2.5, 3.5, 4.5],
    "kind": ["cat", "dog", "cat", "ant"],
    "site": ["x", "y", "x", "y"],
}


def write_table(folder: Path, suffix: str, columns: dict[str, Any]) -> Path:
    path = folder / f"table{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = zip(*columns.values(), strict=True)
        lines = [
            ",".join(columns),
            *(",".join("" if v is None else str(v) for v in r) for r in rows),
        ]
        path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_table_gives_features_labels_and_clients(tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path, suffix, COLUMNS)
    data = load(path, label="kind", client="site")
    assert data.inputs.tolist() == [[1, 1.5], [2, 2.5], [3, 3.5], [4, 4.5]]
    assert data.labels.tolist() == [1, 2, 1, 0]
    assert data.owners is not None
    assert data.owners.tolist() == [0, 1, 0, 1]
    assert federate(data, "natural").sizes("test").tolist() == [1, 1]


def test_table_takes_only_the_features_asked_for_and_standardises_them(tmp_path: Path) -> None:
    path = write_table(tmp_path, ".parquet", COLUMNS)
    data = from_table(path, label="age", features="height", classes=5, mean=[1.5], std=[0.5])
    assert data.inputs.tolist() == [[0], [2], [4], [6]]
    assert data.labels.tolist() == [1, 2, 3, 4]
    assert data.owners is None


def test_table_with_one_list_column_gives_one_feature_per_element(tmp_path: Path) -> None:
    columns = {"pixels": [[1, 2, 3], [4, 5, 6]], "label": [0, 1]}
    data = from_table(write_table(tmp_path, ".parquet", columns))
    assert data.inputs.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, {"label": "species"}, r"no column \['species'\]"),
        ({}, {"label": "age", "client": "place"}, r"no column \['place'\]"),
        ({}, {"label": "age", "features": ["weight"]}, r"no column \['weight'\]"),
        ({}, {"label": "age", "features": []}, "no column left"),
        ({}, {"label": "age"}, "'kind' must hold numbers, but holds text.*client='kind'"),
        ({"height": [1.0, None, 2.0, 3.0]}, {"label": "age", "features": "height"}, "1 empty"),
        ({"age": [1, None, 2, 3]}, {"label": "age", "features": "height"}, "'age' has 1 empty"),
        ({}, {"label": "age", "features": "height", "classes": 3}, "label 3"),
        ({}, {"label": "age", "features": "height", "std": [1.0, 2.0]}, "1 or 1 numbers"),
        ({}, {"label": "age", "features": "height", "std": [np.nan]}, "all finite"),
        ({}, {"label": "height", "features": "age"}, "'height'.* 4 rows.* 1.5"),
        (
            {"height": [1.0, np.nan, 2.0, 3.0]},
            {"label": "height", "features": "age"},
            "'height' has 1 empty",
        ),
        (
            {"kind": ["cat", "", None, "  "]},
            {"label": "kind", "features": "age"},
            "'kind' has 3 empty",
        ),
        ({}, {"label": "age", "labels": "kind"}, r"got \['labels'\]"),
    ],
)
def test_table_without_what_was_asked_for_is_refused(
    tmp_path: Path, changed: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(write_table(tmp_path, ".parquet", COLUMNS | changed), **options)


@pytest.mark.parametrize("name", ["kind", "site"])
def test_empty_text_in_a_csv_file_is_neither_a_class_nor_a_client(
    tmp_path: Path, name: str
) -> None:
    path = write_table(tmp_path, ".csv", COLUMNS | {name: ["x", None, "y", None]})
    with pytest.raises(DataError, match=f"'{name}' has 2 empty"):
        load(path, label="kind", client="site")


def test_whole_numbers_with_a_point_are_classes(tmp_path: Path) -> None:
    path = write_table(tmp_path, ".parquet", COLUMNS | {"height": [3.0, 1.0, 3.0, 2.0]})
    assert from_table(path, label="height", features="age").labels.tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([1, 100_000, 1, 1], [0, 1, 0, 0]),
        ([8, 3, 3, 8], [1, 0, 0, 1]),
        ([-1, 1, 1, -1], [0, 1, 1, 0]),
    ],
)
def test_integers_that_are_not_class_numbers_are_numbered(
    tmp_path: Path, suffix: str, labels: list[int], numbers: list[int]
) -> None:
    path = write_table(tmp_path, suffix, {"x": [1.0, 2.0, 3.0, 4.0], "label": labels})
    data = from_table(path)
    assert (data.labels.tolist(), data.classes) == (numbers, 2)
    assert data.class_names == tuple(str(label) for label in sorted(set(labels)))
    assert data.subset(np.array([1])).class_names == data.class_names


def test_class_numbers_stay_as_they_are(tmp_path: Path) -> None:
    columns = {"x": [1.0, 2.0, 3.0], "whole": [2, 0, 1], "gap": [3, 0, 1]}
    path = write_table(tmp_path, ".parquet", columns)
    data = from_table(path, label="whole", features="x")
    assert (data.labels.tolist(), data.classes, data.class_names) == ([2, 0, 1], 3, ())
    data = from_table(path, label="gap", features="x", classes=4)
    assert (data.labels.tolist(), data.classes, data.class_names) == ([3, 0, 1], 4, ())


def test_integers_are_not_numbered_where_the_classes_are_counted(tmp_path: Path) -> None:
    path = write_table(tmp_path, ".csv", {"x": [1.0, 2.0, 3.0], "label": [1, 12, 2]})
    with pytest.raises(DataError, match=r"lie in 0\.\.9, but sample 1 has label 12 "):
        from_table(path, classes=10)


def test_lists_of_unequal_length_are_refused(tmp_path: Path) -> None:
    columns = {"pixels": [[1, 2, 3], [4, 5]], "label": [0, 1]}
    with pytest.raises(DataError, match="differ in length"):
        from_table(write_table(tmp_path, ".parquet", columns))


def test_table_that_is_absent_torn_empty_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        from_table(tmp_path / "none.csv")
    torn = write_table(tmp_path, ".parquet", COLUMNS)
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read as parquet"):
        from_table(torn)
    with pytest.raises(DataError, match="no rows"):
        from_table(write_table(tmp_path, ".parquet", {"label": pa.array([], pa.int64())}))
    with pytest.raises(DataError, match="path: expected a name that ends in"):
        from_table(tmp_path / "table.xlsx")
