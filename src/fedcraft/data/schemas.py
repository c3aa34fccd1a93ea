"""What the named image sets look like on the Hub, and what a network should see of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SCHEMAS", "Schema"]


@dataclass(frozen=True)
class Schema:
    """One image set: where its Parquet files lie, which columns they have, how it is normalised."""

    name: str
    about: str
    repository: str
    folder: str
    splits: tuple[str, ...]
    image: str
    label: str
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    owner: str | None = None
    augmentation: str = "none"

    @property
    def columns(self) -> list[str]:
        """Return the columns that are read."""
        return [self.image, self.label, *([self.owner] if self.owner else [])]


SCHEMAS = {
    schema.name: schema
    for schema in (
        Schema(
            name="cifar10",
            about="60,000 colour images of 10 kinds of things, train and test merged",
            repository="uoft-cs/cifar10",
            folder="plain_text",
            splits=("train", "test"),
            image="img",
            label="label",
            classes=10,
            shape=(3, 32, 32),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            augmentation="crop-flip",
        ),
        # The released run of the paper augments CIFAR-10 only.
        Schema(
            name="cifar100",
            about="60,000 colour images of 100 kinds of things, train and test merged",
            repository="uoft-cs/cifar100",
            folder="cifar100",
            splits=("train", "test"),
            image="img",
            label="fine_label",
            classes=100,
            shape=(3, 32, 32),
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
        ),
        Schema(
            name="femnist",
            about="handwritten characters of 62 kinds, as stored (dark ink on white), by writer",
            repository="flwrlabs/femnist",
            folder="data",
            splits=("train",),
            image="image",
            label="character",
            classes=62,
            shape=(1, 28, 28),
            mean=(0.1307,),
            std=(0.3081,),
            owner="writer_id",
        ),
    )
}
