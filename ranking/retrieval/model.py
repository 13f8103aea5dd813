"""The two towers in torch. Inner products of their outputs order the catalogue.

The item tower adds a learnt vector of the item to a linear map of its attributes, so an item
without any event has a vector at once. The user tower is a causal transformer over the vectors
of the user's latest items, oldest first, behind a learnt start token that answers for an empty
history. It reads item vectors, not ids: a new item in a history works like any other.

Layers are pre-norm with gated branches (a sigmoid gate on attention, SwiGLU: Shazeer 2020,
https://arxiv.org/abs/2002.05202); a head's attention falls with ``slope · log(1 + distance)``,
a learnt slope, in place of position embeddings (after ALiBi, Press et al. 2021,
https://arxiv.org/abs/2108.12409).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ranking.retrieval.sequence import TOWER_EVENTS
from ranking.training_config import TowerConfig

_MASKED = -1e9
# log(1 + seconds) of an hour: keeps the gap inputs of a session and of a year near -1 and 1.
_GAP_CENTRE = 8.2


class ItemTower(nn.Module):
    """Attributes and a learnt vector to the item's vector."""

    def __init__(self, attributes: int, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(attributes, width, bias=False)

    def forward(self, attributes: Tensor, id_vectors: Tensor) -> Tensor:
        """Return (n, d) for attributes (n, Fa) and learnt vectors (n, d), 0 where there is none."""
        vectors: Tensor = id_vectors + self.map(attributes)
        return vectors


class Layer(nn.Module):
    """One gated transformer layer."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(d)
        self.query_gate = nn.Linear(d, 2 * d)
        self.key_value = nn.Linear(d, 2 * d)
        self.mix = nn.Linear(d, d)
        self.feed_norm = nn.LayerNorm(d)
        self.widen = nn.Linear(d, 4 * d)
        self.narrow = nn.Linear(2 * d, d)
        self.dropout = nn.Dropout(config.dropout)
        self.slope = nn.Parameter(torch.linspace(0.3, 1.0, config.heads))

    def forward(self, x: Tensor, queries: Tensor, log_distance: Tensor, mask: Tensor) -> Tensor:
        """Update `queries`, which are some or all positions of `x`.

        Parameters
        ----------
        x : (B, L, d)
        queries : (B, Q, d)
        log_distance : (1 or B, Q, L)
            log(1 + distance) of each query to each position.
        mask : (1 or B, Q, L)
            0 where a query may look, very negative elsewhere.
        """
        B, L, d = x.shape
        Q = queries.shape[1]
        q, gate = self.query_gate(self.attention_norm(queries)).chunk(2, dim=-1)
        k, v = self.key_value(self.attention_norm(x)).chunk(2, dim=-1)
        bias = mask[:, None] - self.slope[:, None, None] * log_distance[:, None]  # (., h, Q, L)
        q = q.view(B, Q, self.heads, d // self.heads).transpose(1, 2)
        k = k.view(B, L, self.heads, d // self.heads).permute(0, 2, 3, 1)
        v = v.view(B, L, self.heads, d // self.heads).transpose(1, 2)
        weights = torch.softmax(q @ k * (d // self.heads) ** -0.5 + bias, dim=-1)  # (B, h, Q, L)
        attended = (weights @ v).transpose(1, 2).reshape(B, Q, d)
        queries = queries + self.dropout(self.mix(attended * torch.sigmoid(gate)))
        wide, feed_gate = self.widen(self.feed_norm(queries)).chunk(2, dim=-1)
        update: Tensor = self.dropout(self.narrow(functional.silu(feed_gate) * wide))
        return queries + update


class UserTower(nn.Module):
    """Item vectors of a history to the user's vector.

    Buffers ``value_mean`` and ``value_std`` hold the scale of event values in the training data;
    an event without a value reads as the mean.
    """

    value_mean: Tensor
    value_std: Tensor
    log_distance: Tensor
    causal: Tensor

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        d = config.width
        self.start = nn.Parameter(0.1 * torch.randn(d))
        self.input_norm = nn.LayerNorm(d)
        self.event = nn.Linear(4, d)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.output_norm = nn.LayerNorm(d)
        self.output = nn.Linear(d, d)
        self.dropout = nn.Dropout(config.dropout)
        with torch.no_grad():
            self.output.weight.copy_(torch.eye(d))
            self.output.bias.zero_()
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_std", torch.ones(()))
        place = torch.arange(TOWER_EVENTS + 1)
        distance = (place[:, None] - place).clamp(min=0)
        self.register_buffer("log_distance", torch.log1p(distance.float())[None])
        self.register_buffer("causal", _MASKED * (place[:, None] < place).float()[None])

    def embed(self, history: Tensor, values: Tensor, log_gaps: Tensor) -> Tensor:
        """Return the first layer's input (B, 1 + L, d): the start token, then the events."""
        has_value = ~torch.isnan(values)
        scaled = (
            torch.where(has_value, values, self.value_mean) - self.value_mean
        ) / self.value_std
        gaps = (log_gaps - _GAP_CENTRE) / _GAP_CENTRE
        event = torch.stack([scaled.clamp(-4, 4), has_value.float(), gaps, gaps * gaps], dim=-1)
        x = self.input_norm(history) + self.event(event)
        start = self.start.expand(x.shape[0], 1, -1)
        embedded: Tensor = self.dropout(torch.cat([start, x], dim=1))
        return embedded

    def every_position(self, history: Tensor, values: Tensor, log_gaps: Tensor) -> Tensor:
        """Return (B, 1 + L, d): position t is the user vector after t events; for training."""
        x = self.embed(history, values, log_gaps)
        n = x.shape[1]
        for layer in self.layers:
            x = layer(x, x, self.log_distance[:, :n, :n], self.causal[:, :n, :n])
        vectors: Tensor = self.output(self.output_norm(x))
        return vectors

    def forward(self, history: Tensor, values: Tensor, log_gaps: Tensor, lengths: Tensor) -> Tensor:
        """Return user vectors (B, d): the last layer computes the last event's position alone.

        Parameters
        ----------
        history : (B, L, d)
            Item vectors, oldest first, padded at the end; L at most ``TOWER_EVENTS``.
        values, log_gaps : (B, L)
            See :func:`ranking.retrieval.sequence.tower_inputs`.
        lengths : (B,) int64
            0 for an empty history.
        """
        x = self.embed(history, values, log_gaps)
        n = x.shape[1]
        for layer in self.layers[:-1]:
            x = layer(x, x, self.log_distance[:, :n, :n], self.causal[:, :n, :n])
        at = lengths[:, None, None].expand(-1, 1, x.shape[2])
        last = torch.gather(x, 1, at)  # (B, 1, d)
        behind = lengths[:, None] - torch.arange(n, device=x.device)  # (B, n)
        mask = _MASKED * (behind < 0).float()
        log_distance = torch.log1p(behind.clamp(min=0).float())
        last = self.layers[-1](x, last, log_distance[:, None], mask[:, None])
        vectors: Tensor = self.output(self.output_norm(last))[:, 0]
        return vectors


class TwoTower(nn.Module):
    """Both towers and the learnt vectors of the training items.

    Parameters
    ----------
    config : TowerConfig
    attributes : (N, Fa) Tensor
    """

    attributes: Tensor

    def __init__(self, config: TowerConfig, attributes: Tensor) -> None:
        super().__init__()
        self.id_dropout = config.id_dropout
        self.ids = nn.Parameter(torch.zeros(len(attributes), config.width))
        self.items = ItemTower(attributes.shape[1], config.width)
        self.users = UserTower(config)
        self.register_buffer("attributes", attributes)

    def item_vectors(self) -> Tensor:
        """Return (N, d); in training, a random share of the items from attributes alone."""
        ids: Tensor = self.ids
        if self.training and self.id_dropout:
            ids = ids * (torch.rand(len(ids), 1, device=ids.device) >= self.id_dropout)
        vectors: Tensor = self.items(self.attributes, ids)
        return vectors
