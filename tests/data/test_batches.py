"""Tensors and batches: the right numbers, the same bits either way, augmentation by the seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcraft.data import Dataset, crop_flip, federate, from_arrays, load
from fedcraft.data.batches import Normalisation, tensors_of

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def images(count: int, augmentation: str = "none") -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(count) % 10
    return from_arrays(pixels, labels, mean=MEAN, std=STD, augmentation=augmentation)


def test_normalisation_scales_shifts_and_divides_per_channel() -> None:
    pixels = torch.from_numpy(images(4).inputs)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    expected = (pixels.double() / 255 - mean) / std
    made = Normalisation.of(MEAN, STD, 255.0)(pixels).double()
    torch.testing.assert_close(made, expected, atol=2e-6, rtol=0)


def test_scaling_ahead_and_per_batch_give_the_same_bits() -> None:
    data = images(70)
    late, ahead = tensors_of(data, ahead_mb=0), tensors_of(data, ahead_mb=10)
    assert late.inputs.dtype == torch.uint8
    assert ahead.inputs.dtype == torch.float32
    rows = np.array([69, 3, 3, 40])
    assert torch.equal(late.gather(rows)[0], ahead.gather(rows)[0])
    assert late.gather(rows)[1].tolist() == [9, 3, 3, 0]


def test_budget_decides_what_is_scaled_ahead() -> None:
    federation = federate(images(100), "iid", 4)
    size = 100 * 3 * 32 * 32 * 4 / 2**20
    assert federation.tensors(ahead_mb=size).inputs.dtype == torch.float32
    assert federation.tensors(ahead_mb=size * 0.99).inputs.dtype == torch.uint8


def test_epoch_is_the_clients_samples_in_an_order_of_the_stream() -> None:
    federation = federate(load("digits"), "iid", 10, seed=1)
    tensors, rows = federation.tensors(), federation.rows(2)
    inputs, labels = tensors.epoch(rows, np.random.default_rng(4))
    order = np.random.default_rng(4).permutation(rows)
    expected = tensors.gather(order)
    assert torch.equal(inputs, expected[0])
    assert torch.equal(labels, expected[1])
    assert not np.array_equal(order, rows)
    assert inputs[:16].data_ptr() == inputs.data_ptr()


def test_epoch_repeats_with_its_stream_and_not_with_another() -> None:
    tensors = tensors_of(images(40, "crop-flip"), 0)
    rows = np.arange(40)
    first, again, other = (tensors.epoch(rows, np.random.default_rng(s))[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_augmented_data_stay_bytes() -> None:
    assert tensors_of(images(8, "crop-flip"), ahead_mb=100).inputs.dtype == torch.uint8


def test_crop_flip_is_a_shifted_possibly_mirrored_window_with_black_edges() -> None:
    pixels = torch.randint(1, 256, (60, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    pixels = pixels.to(torch.uint8)
    made = crop_flip(pixels, np.random.default_rng(9))
    draw = np.random.default_rng(9)
    top, left = draw.integers(0, 9, (2, 60, 1, 1)).reshape(2, 60)
    mirrored = draw.random(60) < 0.5
    for k in range(60):
        padded = np.pad(pixels[k].numpy(), ((0, 0), (4, 4), (4, 4)))
        window = padded[:, top[k] : top[k] + 32, left[k] : left[k] + 32]
        expected = window[:, :, ::-1] if mirrored[k] else window
        np.testing.assert_array_equal(made[k].numpy(), expected)


def test_crop_flip_uses_every_offset_and_mirrors_half() -> None:
    # One bright pixel in the middle tells the shift; an asymmetric pair tells the mirror.
    image = torch.zeros(4000, 1, 32, 32, dtype=torch.uint8)
    image[:, :, 16, 12] = 200
    made = crop_flip(image, np.random.default_rng(0))
    rows, columns = (made[:, 0] == 200).nonzero()[:, 1:].T
    assert set(rows.tolist()) == set(range(12, 21))
    assert set(columns.tolist()) == set(range(8, 24))
    assert 0.45 < (columns >= 16).float().mean() < 0.55


def test_crop_flip_leaves_its_input_alone() -> None:
    pixels = torch.from_numpy(images(5).inputs.copy())
    before = pixels.clone()
    crop_flip(pixels, np.random.default_rng(0))
    assert torch.equal(pixels, before)


def test_float_inputs_are_taken_as_they_are() -> None:
    values = np.array([[0.5, -1.0], [2.0, 300.0]], np.float32)
    tensors = federate(from_arrays(values, [0, 1]), "iid", 1).tensors()
    assert torch.equal(tensors.inputs, torch.from_numpy(values))


def test_read_only_arrays_are_wrapped_without_copy_or_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    data = images(3)
    data.inputs.flags.writeable = False
    tensors = tensors_of(data, 0)
    assert tensors.inputs.data_ptr() == data.inputs.ctypes.data
    assert len(recwarn) == 0
