"""What is counted and stored of an answer, after it was sent."""

from __future__ import annotations

from ranking.types import DROP_REASONS
from serve.impressions import ImpressionWriter, Shown
from serve.metrics import Metrics
from serve.respond import Answer
from serve.samples import SampleWriter
from serve.schemas import RecommendationRequest


def account(
    request: RecommendationRequest,
    answer: Answer,
    metrics: Metrics,
    impressions: ImpressionWriter,
    samples: SampleWriter,
) -> None:
    """Count an answer, and queue what it showed and, if sampled, its features.

    A repeated answer is not counted again.
    """
    done = answer.done
    if done is None:
        return
    ranking = done.ranking
    for stage, milliseconds in answer.timing_ms.items():
        if stage != "total":
            metrics.observe("shortlist_stage_seconds", milliseconds / 1e3, stage)
    counts = ranking.counts
    for step in ("retrieved", "filtered", "ranked"):
        metrics.count("shortlist_candidates", step, by=counts.get(step, 0))
    metrics.count("shortlist_candidates", "returned", by=len(ranking.items))
    for reason in DROP_REASONS:
        if dropped := counts.get(reason, 0):
            metrics.count("shortlist_candidates_dropped", reason, by=dropped)
    for note in ranking.notes:
        metrics.count("shortlist_notes", note.code)
    for group in ranking.expired:
        metrics.count("shortlist_features_expired", group)
    if ranking.items:
        impressions.add(
            Shown(
                rec_id=answer.rec_id,
                user_id=request.user_id,
                release=ranking.release,
                scenario=request.scenario,
                items=ranking.items,
                catalogue=done.serving.catalogue,
                served_at=done.as_of,
            )
        )
    if ranking.served is not None:
        samples.add(request.user_id, answer, ranking.served)
