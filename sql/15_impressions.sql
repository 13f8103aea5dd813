-- Purpose: what was shown, item by item, for readers; the service writes the table answers.
-- Grain: one row for each item of each answer.

drop view if exists impressions cascade;

create view impressions as
select
    answers.rec_id,
    shown.item_key,
    answers.served_at,
    answers.user_id,
    answers.release,
    answers.scenario,
    (shown.place - 1)::smallint as position,
    nullif(shown.score, 'nan') as score,
    nullif(shown.source, '') as source
from answers
cross join lateral unnest(
    answers.item_keys, answers.scores, answers.sources
) with ordinality as shown (item_key, score, source, place);
