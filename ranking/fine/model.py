"""The ranker in torch: a score for each candidate, higher first.

Each candidate attends to the latest events of the history (target attention, after DIN, Zhou et
al. 2018, https://arxiv.org/abs/1706.06978), and a small gated network reads that, the user, item
and pair features, and the features' place within the list: a score of 3 means little until one
knows what the others have. A linear path beside it starts from the coarse stage's own scores.

A score is a log-likelihood against 0, that of "none of these": see
:func:`ranking.fine.probability.probabilities`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from features.spec import names
from ranking.training_config import RankerConfig

_MASKED = -1e9
_GAP_CENTRE = 8.2


class Ranker(nn.Module):
    """Listwise ranker.

    Buffers hold mean and standard deviation of every feature in the training data, so that the
    exported graph reads encoded features as they are.

    Parameters
    ----------
    config : RankerConfig
    width : int
        Length d of item vectors.
    """

    user_mean: Tensor
    user_std: Tensor
    item_mean: Tensor
    item_std: Tensor
    pair_mean: Tensor
    pair_std: Tensor
    value_mean: Tensor
    value_std: Tensor
    vector_scale: Tensor

    def __init__(self, config: RankerConfig, width: int) -> None:
        super().__init__()
        sizes = {
            "user": len(names("user")),
            "item": len(names("item")),
            "pair": len(names("cross")) + len(names("candidate")),
        }
        for name, size in sizes.items():
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        for name in ("value_std", "vector_scale"):
            self.register_buffer(name, torch.ones(()))
        self.register_buffer("value_mean", torch.zeros(()))
        a = config.attention_width
        self.query = nn.Linear(width, a)
        self.key = nn.Linear(width + 5, a)
        self.value = nn.Linear(width + 5, a)
        dense = sizes["user"] + 2 * (sizes["item"] + sizes["pair"]) + 3 * a
        self.linear = nn.Linear(sizes["pair"] + sizes["item"], 1, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.hidden = nn.Linear(dense, 2 * config.hidden)
        self.second = nn.Linear(config.hidden, config.hidden)
        self.out = nn.Linear(config.hidden, 1)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.out.weight.mul_(0.1)
            # Before it has learnt anything the ranker repeats the coarse order.
            place = len(names("cross")) + names("candidate").index("cand_coarse_log_rank")
            self.linear.weight[0, place] = -1.0

    def start(self, level: float) -> None:
        """Begin at the towers' logits: their softmax over the catalogue is a likelihood already.

        Parameters
        ----------
        level : float
            Added to every score.
        """
        place = len(names("cross")) + names("candidate").index("cand_ann_score")
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[0, place] = self.pair_std[place]
            self.out.bias.fill_(level)

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        pair: Tensor,
        candidates: Tensor,
        history: Tensor,
        values: Tensor,
        log_gaps: Tensor,
        lengths: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return scores (B, C); see :func:`ranking.fine.inputs.ranker_inputs`."""
        user = ((user - self.user_mean) / self.user_std).clamp(-4, 4)
        item = ((item - self.item_mean) / self.item_std).clamp(-4, 4)
        pair = ((pair - self.pair_mean) / self.pair_std).clamp(-4, 4)
        features = torch.cat([item, pair], dim=-1)  # (B, C, Fi + Fp)
        real = mask[..., None]
        count = real.sum(dim=1, keepdim=True).clamp(min=1.0)
        mean = (features * real).sum(dim=1, keepdim=True) / count
        centred = (features - mean) * real
        spread = (centred.square().sum(dim=1, keepdim=True) / count + 1e-2).sqrt()
        in_list = centred / spread
        query, attended = self._attend(candidates, history, values, log_gaps, lengths)
        C = item.shape[1]
        x = torch.cat(
            [
                user[:, None].expand(-1, C, -1),
                features,
                in_list,
                query,
                attended,
                query * attended,
            ],
            dim=-1,
        )
        wide, gate = self.hidden(self.dropout(x)).chunk(2, dim=-1)
        h = wide * torch.sigmoid(gate)
        h = h + functional.silu(self.second(h))
        scores: Tensor = (self.out(h) + self.linear(torch.cat([pair, item], dim=-1)))[..., 0]
        return scores

    def _attend(
        self, candidates: Tensor, history: Tensor, values: Tensor, log_gaps: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        age = lengths[:, None] - 1 - torch.arange(history.shape[1], device=history.device)  # (B, L)
        has_value = ~torch.isnan(values)
        scaled = torch.where(has_value, values, self.value_mean) - self.value_mean
        event = torch.stack(
            [
                (scaled / self.value_std).clamp(-4, 4),
                has_value.float(),
                (log_gaps - _GAP_CENTRE) / _GAP_CENTRE,
                torch.log1p(age.clamp(min=0).float()),
                (age == 0).float(),
            ],
            dim=-1,
        )
        events = torch.cat([history * self.vector_scale, event], dim=-1)
        query = self.query(candidates * self.vector_scale)  # (B, C, a)
        key, value = self.key(events), self.value(events)  # (B, L, a)
        padding = _MASKED * (age < 0).float()
        logits = query @ key.transpose(1, 2) * key.shape[-1] ** -0.5 + padding[:, None]
        attended = torch.softmax(logits, dim=-1) @ value
        # An empty history has nothing to attend to, and softmax would spread over padding.
        return query, attended * (lengths > 0).float()[:, None, None]
