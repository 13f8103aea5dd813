"""From a request to the pipeline's query, and from its ranking to the encoded answer."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from math import isnan

import msgspec
import uuid_utils

from features.states import UserState
from ranking.catalogue import LiveCatalogue
from ranking.types import Freshness, HistoryEvent, Query, RankedItem, Ranking
from serve.items import fields_of
from serve.moments import rfc3339
from serve.schemas import (
    FeatureGroup,
    FeatureGroups,
    ItemOut,
    NoteOut,
    RecommendationRequest,
    Recommendations,
    SourceOut,
)
from serve.serving import Serving

_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class Job:
    """A request on its way.

    Attributes
    ----------
    request : RecommendationRequest
    arrived : float
        When its first byte was read, in seconds of `time.perf_counter`.
    queued : float
        When it was put into the queue.
    """

    request: RecommendationRequest
    arrived: float
    queued: float


@dataclass(slots=True)
class Ranked:
    """What a batch gives for one job."""

    serving: Serving
    ranking: Ranking
    as_of: float
    parse_s: float
    queue_s: float
    user_state_s: float
    finished: float
    snapshot: str = ""


@dataclass(slots=True)
class Answer:
    """An encoded answer; `done` is None for a repeated one, which is not counted again."""

    body: bytes
    done: Ranked | None = None
    rec_id: str = ""
    timing_ms: dict[str, float] = field(default_factory=dict)


def query_of(request: RecommendationRequest, state: UserState, sample_rate: float = 0.0) -> Query:
    """Return the query of a request as of the moment its user's state was read.

    Parameters
    ----------
    request : RecommendationRequest
    state : UserState
    sample_rate : float
        Probability that the answer keeps its features; those of a history that the request
        brings along never are.
    """
    history = None
    if request.history is not None:
        history = tuple(
            HistoryEvent(
                entry.item_id,
                entry.value,
                None if entry.occurred_at is None else entry.occurred_at.timestamp(),
            )
            for entry in request.history
        )
    return Query(
        user_id=request.user_id,
        count=request.count,
        now=state.as_of,
        history=history,
        context_item_ids=tuple(request.context_item_ids),
        exclude_item_ids=frozenset(request.exclude_item_ids),
        exclude_seen=request.exclude_seen,
        categories=frozenset(request.categories),
        diversity=request.diversity,
        category_cap=request.category_cap,
        pins=tuple(request.pins),
        sampled=history is None and random.random() < sample_rate,  # noqa: S311  # no secret
    )


def items_out(
    items: list[RankedItem], catalogue: LiveCatalogue, wanted: list[str] | None
) -> list[ItemOut]:
    """Return items with their fields inline: all for None, the `wanted` ones else."""
    found = []
    for item in items:
        out = ItemOut(
            item.item_id, item.score, [SourceOut(s.name, s.rank, s.score) for s in item.sources]
        )
        if wanted is None:
            out.fields = msgspec.Raw(catalogue.fields(item.row))
        elif wanted:
            out.fields = fields_of(catalogue.fields(item.row), wanted)
        found.append(out)
    return found


def respond(request: RecommendationRequest, done: Ranked, arrived: float) -> Answer:
    """Encode the answer to a request.

    Parameters
    ----------
    request : RecommendationRequest
    done : Ranked
    arrived : float
        When the request arrived, in seconds of `time.perf_counter`.

    Returns
    -------
    Answer
    """
    ranking = done.ranking
    items = items_out(ranking.items, done.serving.catalogue, request.fields)
    encoded = msgspec.Raw(_ENCODER.encode(items))
    rec_id = str(uuid_utils.uuid7())
    now = time.perf_counter()
    timing = {
        "parse": done.parse_s * 1e3,
        "queue": done.queue_s * 1e3,
        "user_state": done.user_state_s * 1e3,
        **ranking.timing_ms,
        "respond": (now - done.finished) * 1e3,
        # Measured on its own, so that a stage that nobody timed would show.
        "total": (now - arrived) * 1e3,
    }
    body = Recommendations(
        rec_id=rec_id,
        request_id=request.request_id,
        release=ranking.release,
        as_of=rfc3339(done.as_of),
        features=FeatureGroups(
            **{name: _group(group) for name, group in ranking.freshness.items()}
        ),
        status="short" if len(items) < request.count else "ok",
        notes=[NoteOut(note.code, note.detail) for note in ranking.notes],
        requested=request.count,
        returned=len(items),
        counts=ranking.counts,
        timing_ms={stage: round(value, 4) for stage, value in timing.items()},
        items=encoded,  # type: ignore[arg-type]  # encoded above, so that "respond" counts it
    )
    return Answer(_ENCODER.encode(body), done, rec_id, timing)


def _group(group: Freshness) -> FeatureGroup:
    return FeatureGroup(None if isnan(group.as_of) else rfc3339(group.as_of), group.expired)
