-- Purpose: what finds the answers of a span of time, and what a refresh had not seen, without
-- reading all that was ever shown.
-- Grain: stated above each change.

-- Answers of a span of time: those that lay in the future at a refresh, and replay.
create index answers_by_time on answers using brin (served_at) with (pages_per_range = 32);

-- Each refresh saw exactly the answers with answer_id <= answer_watermark.
alter table feature_refreshes add column answer_watermark bigint not null default 0;
