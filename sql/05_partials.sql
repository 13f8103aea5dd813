-- Purpose: what stays when raw events leave: partial aggregates by UTC day, and the sums that
-- a refresh moves forward by what is new.
-- Grain: stated above each table. features/refresh.py writes them, in one transaction with
-- refresh_point.

drop materialized view if exists
user_features, user_category_features, item_features,
user_category_daily, user_daily, item_daily cascade;
drop view if exists refreshed_interactions cascade;

-- The sums hold exactly the events with interaction_id <= watermark and occurred_at < as_of, and
-- the answers with answer_id <= answer_watermark and served_at < as_of.
-- snapshot: what the refresh saw. window_days: the windows of item_totals.window_events.
-- raw_since: raw events before this day were dropped; their partials stand for them.
alter table refresh_point
add column answer_watermark bigint not null default 0,
add column snapshot pg_snapshot,
add column window_days smallint[] not null default '{}',
add column raw_since date;

-- The sums are empty: the next refresh adds every event.
update refresh_point
set watermark = 0, as_of = now();

-- One row for each item and UTC day with an event or an impression. clicks: events of that day
-- that follow an impression of the item to the same user within 24 hours.
create table item_daily (
    item_key integer not null,
    event_day date not null,
    events integer not null default 0,
    valued integer not null default 0,
    impressions integer not null default 0,
    clicks integer not null default 0,
    value_sum double precision not null default 0,
    value_square_sum double precision not null default 0,
    last_at timestamptz,
    primary key (item_key, event_day)
) with (fillfactor = 90);

-- One row for each UTC day with an impression or a click: the prior of click rates.
create table click_daily (
    event_day date primary key,
    impressions bigint not null default 0,
    clicks bigint not null default 0
);

-- One row for each user and UTC day with an event.
create table user_daily (
    user_key bigint not null,
    event_day date not null,
    events integer not null,
    valued integer not null,
    value_sum double precision not null,
    value_square_sum double precision not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    primary key (user_key, event_day)
) with (fillfactor = 90);

-- One row for each user, category and UTC day with an event.
create table user_category_daily (
    user_key bigint not null,
    event_day date not null,
    events integer not null,
    value_sum double precision not null,
    category text not null,
    primary key (user_key, event_day, category)
) with (fillfactor = 90);

-- One row for each ordered pair of items and UTC day: how often a user came to other_key at most
-- two events and one hour after item_key (events in the order of their arrival).
create table covisit_daily (
    item_key integer not null,
    other_key integer not null,
    event_day date not null,
    pairs integer not null,
    primary key (item_key, other_key, event_day)
) with (fillfactor = 90);

-- One row for each item with an event or an impression: sums over its days, and its events in
-- each window of refresh_point.window_days before as_of.
create table item_totals (
    item_key integer primary key,
    events integer not null,
    valued integer not null,
    impressions integer not null,
    clicks integer not null,
    value_sum double precision not null,
    value_square_sum double precision not null,
    last_at timestamptz,
    window_events integer[] not null
) with (fillfactor = 80);

-- One row for each user and category: sums over its days.
create table user_category_totals (
    user_key bigint not null,
    events integer not null,
    value_sum double precision not null,
    category text not null,
    primary key (user_key, category) include (events, value_sum)
) with (fillfactor = 80);

-- One row for each user with an event: sums over the user's days, and what a request reads of
-- them packed as fixed-width big-endian numbers, since an array of a thousand elements takes
-- PostgreSQL ten times as long to send.
-- seen_items: int4 for each item, in any order, an item may stand there twice; the first
-- seen_compacted ones are distinct. category_sums: float4 events and float4 value_sum for each of
-- category_names.
create table user_totals (
    user_key bigint primary key,
    first_at timestamptz not null,
    last_at timestamptz not null,
    events integer not null,
    valued integer not null,
    active_days integer not null,
    seen_compacted integer not null default 0,
    value_sum double precision not null,
    value_square_sum double precision not null,
    seen_items bytea not null default '',
    category_names text[],
    category_sums bytea
) with (fillfactor = 80);

-- Raw events that were changed or deleted after they were counted, as they were: the
-- refresh takes them out of the sums. Erasure and retention leave none behind.
create table interaction_corrections (
    correction_id bigint generated always as identity primary key,
    interaction_id bigint not null,
    user_key bigint not null,
    item_key integer not null,
    occurred_at timestamptz not null
);

-- Items whose categories changed after their events were counted.
create table category_corrections (
    correction_id bigint generated always as identity primary key,
    item_key integer not null
);

-- Answers that were deleted after their impressions were counted.
create table answer_corrections (
    correction_id bigint generated always as identity primary key,
    answer_id bigint not null,
    served_at timestamptz not null,
    user_id text not null,
    item_keys integer[] not null
);

-- One row for each sampled request: the features that its candidates were ranked with.
-- Matrices are packed row by row as float4, in the order of the feature spec.
create table served_features (
    served_at timestamptz not null,
    rec_id uuid not null,
    user_id text not null,
    release text not null,
    spec_hash text not null,
    user_as_of timestamptz not null,
    user_snapshot pg_snapshot not null,
    item_as_of timestamptz not null,
    item_snapshot pg_snapshot,
    user_features bytea not null,
    item_keys integer[] not null,
    item_features bytea not null,
    cross_features bytea not null,
    primary key (served_at, rec_id)
);

create index served_features_user on served_features (user_id);

-- One row for each erased user, by the sha256 of the id: what waited in a replica while the user
-- was erased (answers, served features) is not stored afterwards.
create table erasures (
    user_hash bytea primary key check (octet_length(user_hash) = 32),
    erased_at timestamptz not null default clock_timestamp()
);

-- One row for each file that `shortlist load` began: where it stands, so that a load that was
-- cut goes on from there.
create table loads (
    load_id bigint generated always as identity primary key,
    source text not null,
    fingerprint text not null unique,
    rows_done bigint not null default 0,
    interactions bigint not null default 0,
    rejected bigint not null default 0,
    shifted_days integer not null default 0,
    started_at timestamptz not null default now(),
    finished_at timestamptz
);
