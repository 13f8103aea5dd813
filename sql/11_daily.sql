-- Purpose: partial aggregates by UTC day; every window is a sum of these and of the days at
-- its edges.
-- Grain: item_daily (item, day), user_daily (user, day), user_category_daily (user, category, day).

drop view if exists refreshed_interactions cascade;

-- The events that the feature views hold.
create view refreshed_interactions as
select
    interactions.interaction_id,
    interactions.user_key,
    interactions.item_key,
    interactions.occurred_at,
    interactions.value,
    (interactions.occurred_at at time zone 'utc')::date as event_day
from interactions
cross join refresh_point
where
    interactions.interaction_id <= refresh_point.watermark
    and interactions.occurred_at < refresh_point.as_of;

drop materialized view if exists item_daily cascade;

create materialized view item_daily as
select
    item_key,
    event_day,
    count(*) as events,
    count(value) as valued,
    coalesce(sum(value::double precision), 0) as value_sum,
    coalesce(sum(value::double precision * value::double precision), 0) as value_square_sum,
    min(occurred_at) as first_at,
    max(occurred_at) as last_at
from refreshed_interactions
group by item_key, event_day;

create unique index item_daily_key on item_daily (item_key, event_day);

drop materialized view if exists user_daily cascade;

create materialized view user_daily as
select
    user_key,
    event_day,
    count(*) as events,
    count(value) as valued,
    coalesce(sum(value::double precision), 0) as value_sum,
    coalesce(sum(value::double precision * value::double precision), 0) as value_square_sum,
    min(occurred_at) as first_at,
    max(occurred_at) as last_at
from refreshed_interactions
group by user_key, event_day;

create unique index user_daily_key on user_daily (user_key, event_day);

drop materialized view if exists user_category_daily cascade;

create materialized view user_category_daily as
select
    refreshed_interactions.user_key,
    category.name as category,
    refreshed_interactions.event_day,
    count(*) as events,
    coalesce(sum(refreshed_interactions.value::double precision), 0) as value_sum
from refreshed_interactions
inner join items on refreshed_interactions.item_key = items.item_key
cross join lateral unnest(items.categories) as category (name)
group by refreshed_interactions.user_key, category.name, refreshed_interactions.event_day;

create unique index user_category_daily_key
on user_category_daily (user_key, category, event_day);
