"""A rule around another rule: what it remembers and certifies passes through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedcraft.aggregators.base import Aggregator, State, Step
from fedcraft.aggregators.cohort import Cohort


class Wrapper(Aggregator):
    """Change the cohort before another rule aggregates it, or the step after that.

    A subclass overrides ``before`` or ``after``. State, certificate, needs and everything else that
    a server asks a rule for (AFL's average, a line search) are those of ``inner``, and what the
    subclass keeps in ``self.memory`` is saved with them::

        class Halved(Wrapper):
            def after(self, cohort, step):
                return replace(step, direction=step.direction / 2)
    """

    def __init__(self, inner: Aggregator, **options: Any) -> None:
        super().__init__(**options)
        self.inner = inner
        self.needs, self.sends = inner.needs, inner.sends

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":  # before __init__, as in a copy
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    @property
    def sent(self) -> Mapping[str, Tensor]:
        return self.inner.sent

    def before(self, cohort: Cohort) -> Cohort:
        """Return the cohort that the inner rule sees."""
        return cohort

    def after(self, cohort: Cohort, step: Step) -> Step:
        """Return the step to take for the inner rule's."""
        return step

    def direction(self, cohort: Cohort) -> Any:
        raise NotImplementedError("a wrapper aggregates through step")

    def step(self, cohort: Cohort) -> Step:
        self.inner.context = self.context
        return self.after(cohort, self.inner.aggregate_cohort(self.before(cohort)))

    def state_dict(self) -> State:
        return {**super().state_dict(), "inner": self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state.items() if key != "inner"})
        self.inner.load_state_dict(state["inner"])

    def reset(self) -> None:
        super().reset()
        self.inner.reset()
