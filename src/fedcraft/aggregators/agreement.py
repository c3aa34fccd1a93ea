"""How far the clients of a round agree, layer by layer, and how CRAFT uses it.

With K = U U^T over the active clients, rho their shares, and u = U^T v the mean of the unit updates
weighted by v, at first v = rho:

* ``cosines``: cos(u_i, u) = (K v)_i / sqrt(v^T K v), what a step along u gives every client.
* ``reliability``: the share of ||u||^2 that the clients have in common. ||u||^2 = v^T K v is
  s + (1 - s) c with s = sum v_i^2 and the mean cosine c between two different clients. Independent
  noise has c = 0 and still ||u||^2 = s, so the common share is R = c / (v^T K v): 0 for clients
  that are as orthogonal as noise, 1 for clients that send the same direction. (Spearman and Brown's
  formula gives the same R for the reliability of a mean.)
* ``persistence``: p = cos(u, r) with the last step r. Below zero the clients pull back: the last
  step went too far, and the clients mostly agree on that.

These two numbers decide between memory and new agreement (``craft-auto``):

* the targets follow u with f = max(R, p) (1 + min(p, 0)): as far as the mean can be relied on,
  because the clients agree or because it continues the last step, and less where it only undoes
  that step;
* the reference has the weight mu = 0.9 (1 - max(R p, c (1 + min(p, 0)))): less where a reliable
  mean has the direction of the last step, because then the mean is the better of the two, and less
  where any two clients agree, because then the mean has no noise that memory could average out;
  but not where it only undoes the last step, because memory dampens such oscillations;
* clients start lambda = 1 - R (mean over the layers) steps ahead;
* lengths count in u as far as they mean something: v_i is proportional to rho_i l_i^(R max(p, 0))
  with l_i the length of client i's update, at most three medians. Clients that agree round after
  round are weighed as in FedAvg, where a client that still has errors moves more than one that is
  nearly fitted. Elsewhere lengths mostly show who has unusual data, and every client counts by
  its share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedcraft.linalg import apply

_MOST_MEMORY = 0.9
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Agreement:
    """What unit updates have in common, from their Gram matrices."""

    kernel: Tensor  # (Q, m, m): U U^T, zero in the rows and columns of inactive clients
    shares: Tensor  # (Q, m): rho, zero for inactive clients
    reference_dots: Tensor  # (Q, m): <u_i^q, r^q>
    counted: Tensor | None = None  # (Q, m): v; rho if None

    def counting(self, lengths: Tensor) -> Agreement:
        """The same with v_i proportional to rho_i l_i^(R max(p, 0)); ``lengths`` are l, (Q, m)."""
        relative = lengths / lengths.amax(-1, keepdim=True).clamp(min=_TINY)
        exponent = self.reliability * self.persistence.clamp(min=0, max=1)
        weights = self.shares * relative ** exponent.unsqueeze(-1)
        total = weights.sum(-1, keepdim=True).clamp(min=_TINY)
        return replace(self, counted=weights / total)

    @property
    def weights(self) -> Tensor:
        """v, (Q, m): how much every client counts in u."""
        return self.shares if self.counted is None else self.counted

    @cached_property
    def _along(self) -> Tensor:
        return apply(self.kernel, self.weights)

    @cached_property
    def _energy(self) -> Tensor:
        return (self.weights * self._along).sum(-1).clamp(min=_TINY)

    @property
    def cosines(self) -> Tensor:
        """cos(u_i, u), (Q, m)."""
        return self._along / self._energy.sqrt().unsqueeze(-1)

    @property
    def others_cosines(self) -> Tensor:
        """The same with the mean of the *other* clients: no client raises its own target."""
        own = self.weights * torch.diagonal(self.kernel, dim1=1, dim2=2)
        along = self._along - own
        energy = self._energy.unsqueeze(-1) - self.weights * (self._along + along)
        return torch.where(energy > _TINY, along / energy.clamp(min=_TINY).sqrt(), 0)

    @cached_property
    def between_clients(self) -> Tensor:
        """c, (Q,): the mean cosine between two different clients; 1 for a single client."""
        noise = self.weights.square().sum(-1)
        rest = (1 - noise).clamp(min=0)
        common = torch.where(rest > _TINY, (self._energy - noise) / rest.clamp(min=_TINY), 1)
        return common.clamp(min=0, max=1)

    @cached_property
    def reliability(self) -> Tensor:
        """R = c / (v^T K v), (Q,); 1 for a single client."""
        return (self.between_clients / self._energy).clamp(max=1)

    @cached_property
    def persistence(self) -> Tensor:
        """p, (Q,); 0 in the first round."""
        return (self.weights * self.reference_dots).sum(-1) / self._energy.sqrt()

    @property
    def trust(self) -> Tensor:
        """f = max(R, p) (1 + min(p, 0)), (Q,)."""
        p = self.persistence.clamp(min=-1, max=1)
        return torch.maximum(self.reliability, p) * (1 + p.clamp(max=0))

    @property
    def memory(self) -> Tensor:
        """mu = 0.9 (1 - max(R p, c (1 + min(p, 0)))), (Q,)."""
        p = self.persistence.clamp(min=-1, max=1)
        no_noise = self.between_clients * (1 + p.clamp(max=0))
        return _MOST_MEMORY * (1 - torch.maximum(self.reliability * p, no_noise))

    @property
    def look_ahead(self) -> float:
        """lambda = 1 - R, averaged over the layers."""
        return float((1 - self.reliability).mean())
