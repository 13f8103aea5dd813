-- Purpose: interactions and answers by time, so that old ones leave as whole tables; event ids
-- and event types beside them.
-- Grain: stated above each table.
--
-- Keys of users and items are not foreign keys: checking them costs as much as storing the row.
-- Who writes an interaction locks its user (erasure) and knows its item; checks count strays.

-- Partitions: everything before the current month, then periods that features/partitions.py
-- makes ahead of time. The default holds what lies beyond them, so no insert is ever refused.

-- One row for each kind of event.
create table event_types (
    event_type_key smallint generated always as identity primary key,
    event_type text not null unique check (char_length(event_type) between 1 and 64)
);

insert into event_types (event_type)
select distinct event_type from interactions
order by event_type;

alter table interactions rename to interactions_before_partitions;

-- One row for each thing that a user did with an item.
-- The order of a user's events is always (occurred_at, interaction_id).
-- transaction_id tells whether a reader's snapshot saw the row: replay of served features.
create table interactions (
    interaction_id bigint generated always as identity,
    user_key bigint not null,
    occurred_at timestamptz not null check (isfinite(occurred_at)),
    transaction_id xid8 not null default pg_current_xact_id(),
    item_key integer not null,
    value real check (value > '-infinity' and value < 'infinity'),
    event_type_key smallint not null,
    event_id text check (char_length(event_id) between 1 and 256)
) partition by range (occurred_at);

-- One row for each event id ever accepted, kept as long as raw events are: a repeated call
-- changes nothing. A partitioned table cannot hold this key, which has no time in it.
create table event_ids (
    event_id text primary key check (char_length(event_id) between 1 and 256),
    received_on date not null default (now() at time zone 'utc')::date
);

-- One row for each answer; the view impressions has one for each item in it.
create table answers (
    answer_id bigint generated always as identity,
    served_at timestamptz not null default now() check (isfinite(served_at)),
    transaction_id xid8 not null default pg_current_xact_id(),
    rec_id uuid not null,
    user_id text not null,
    release text not null,
    scenario text,
    item_keys integer[] not null,
    scores real[] not null,
    sources text[] not null,
    check (cardinality(scores) = cardinality(item_keys)),
    check (cardinality(sources) = cardinality(item_keys)),
    primary key (rec_id, served_at)
) partition by range (served_at);

do $$
declare
    this_month text := date_trunc('month', now() at time zone 'utc')::text || '+00';
    parent text;
begin
    foreach parent in array array['interactions', 'answers'] loop
        execute format(
            'create table %I partition of %I for values from (minvalue) to (%L)',
            parent || '_past', parent, this_month
        );
        execute format('create table %I partition of %I default', parent || '_later', parent);
    end loop;
end
$$;

insert into interactions (
    interaction_id, user_key, occurred_at, item_key, value, event_type_key, event_id
) overriding system value
select
    old.interaction_id,
    old.user_key,
    old.occurred_at,
    old.item_key,
    old.value,
    event_types.event_type_key,
    old.event_id
from interactions_before_partitions as old
inner join event_types on old.event_type = event_types.event_type
order by old.interaction_id;

select
    setval(
        pg_get_serial_sequence('interactions', 'interaction_id'),
        coalesce(max(interaction_id), 0) + 1, false
    )
from interactions_before_partitions;

insert into event_ids (event_id, received_on)
select
    event_id,
    (received_at at time zone 'utc')::date as received_on
from interactions_before_partitions
where event_id is not null;

insert into answers (served_at, rec_id, user_id, release, scenario, item_keys, scores, sources)
select
    min(served_at) as served_at,
    rec_id,
    min(user_id) as user_id,
    min(release) as release,
    min(scenario) as scenario,
    array_agg(item_key order by position) as item_keys,
    array_agg(score order by position) as scores,
    array_agg(coalesce(source, '') order by position) as sources
from impressions
group by rec_id
order by min(served_at);

drop table interactions_before_partitions, impressions cascade;

-- A user's history, latest first, without touching the table.
create index interactions_user_history
on interactions (user_key, occurred_at, interaction_id) include (item_key, value);

-- A user's events that arrived after the last refresh.
create index interactions_user_arrival
on interactions (user_key, interaction_id) include (occurred_at, item_key, value);

-- What enters or leaves a window when it moves.
create index interactions_by_time on interactions (occurred_at, item_key, interaction_id);

-- An item's events: what a correction or an erasure counts anew, and values as of a moment.
create index interactions_item_history on interactions (item_key, occurred_at, interaction_id);

-- Everything after the watermark: ids grow with the place in the table.
create index interactions_arrival
on interactions using brin (interaction_id) with (pages_per_range = 32);

-- What a user was shown before an event.
create index answers_user on answers (user_id, served_at);
create index answers_arrival on answers using brin (answer_id) with (pages_per_range = 32);

-- What is older than raw events: retention.
create index event_ids_received_on on event_ids using brin (received_on);
