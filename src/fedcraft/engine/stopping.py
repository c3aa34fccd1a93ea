"""The conditions that end a run before its last round."""

from __future__ import annotations

import time
from typing import Any

from fedcraft.config.settings import Settings
from fedcraft.data import Federation
from fedcraft.errors import ConfigError


def require_test_samples(settings: Settings, federation: Federation) -> None:
    """Refuse a stop condition on the test accuracy if no client has test samples."""
    for name in ("target_accuracy", "patience"):
        if getattr(settings, name) is not None and not federation.test.indices.size:
            raise ConfigError(
                f"{name}: expected None, because no client has test samples, found "
                f"{getattr(settings, name)}; leave it out, or set some test data aside"
            )


class Stopping:
    """Target, patience and wall time; remembers the best mean accuracy across a resume."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = time.monotonic()
        self.best: float | None = None
        self.since_best = 0

    def after_evaluation(self, mean: float) -> str | None:
        """Count an evaluation; return why the run should end, or None."""
        if self.best is None or mean > self.best:
            self.best, self.since_best = mean, 0
        else:
            self.since_best += 1
        return self.verdict()

    def verdict(self) -> str | None:
        """Return why the evaluations so far end the run, or None."""
        target, patience = self._settings.target_accuracy, self._settings.patience
        if self.best is None:
            return None
        if target is not None and self.best >= target:
            return f"target: mean accuracy {self.best:.4f} reached {target}"
        if patience is not None and self.since_best >= patience:
            return f"patience: {patience} evaluations without a mean above {self.best:.4f}"
        return None

    def out_of_time(self) -> str | None:
        """Return why the run should end now, or None."""
        limit = self._settings.max_minutes
        if limit is None or time.monotonic() - self._started < 60 * limit:
            return None
        return f"wall time: {limit} minutes have passed"

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"best": self.best, "since_best": self.since_best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue; the clock restarts, because the limit applies to a process."""
        self.best, self.since_best = state["best"], state["since_best"]
