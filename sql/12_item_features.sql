-- Purpose: item features as of the last refresh.
-- Grain: one row for each item known at the refresh, with or without events.

drop materialized view if exists item_features cascade;

create materialized view item_features as
with windows as (
    select
        span.days,
        refresh_point.as_of - span.days * interval '24 hours' as starts_at,
        (
            (refresh_point.as_of - span.days * interval '24 hours') at time zone 'utc'
        )::date as edge_day
    from refresh_point
    cross join unnest(array[7, 30, 365]) as span (days)
),

whole_days as (
    select
        item_daily.item_key,
        windows.days,
        sum(item_daily.events) as events
    from windows
    inner join item_daily on windows.edge_day < item_daily.event_day
    group by item_daily.item_key, windows.days
),

edge_days as (
    select
        refreshed_interactions.item_key,
        windows.days,
        count(*) as events
    from windows
    inner join refreshed_interactions
        on
            windows.starts_at <= refreshed_interactions.occurred_at
            and windows.edge_day = refreshed_interactions.event_day
    group by refreshed_interactions.item_key, windows.days
),

windowed as (
    select
        item_key,
        sum(events) filter (where days = 7) as events_7d,
        sum(events) filter (where days = 30) as events_30d,
        sum(events) filter (where days = 365) as events_365d
    from (
        select
            item_key,
            days,
            events
        from whole_days
        union all
        select
            item_key,
            days,
            events
        from edge_days
    ) as parts
    group by item_key
),

totals as (
    select
        item_key,
        sum(events)::bigint as events,
        sum(valued)::bigint as valued,
        sum(value_sum) as value_sum,
        sum(value_square_sum) as value_square_sum,
        max(last_at) as last_at
    from item_daily
    group by item_key
)

select
    items.item_key,
    coalesce(totals.events, 0)::real as item_events,
    coalesce(windowed.events_7d, 0)::real as item_events_7d,
    coalesce(windowed.events_30d, 0)::real as item_events_30d,
    coalesce(windowed.events_365d, 0)::real as item_events_365d,
    value_mean(totals.valued, totals.value_sum) as item_value_mean,
    value_std(totals.valued, totals.value_sum, totals.value_square_sum) as item_value_std,
    days_between(micros(items.created_at), micros(refresh_point.as_of)) as item_age_days,
    days_between(micros(totals.last_at), micros(refresh_point.as_of)) as item_recency_days
from items
cross join refresh_point
left join totals on items.item_key = totals.item_key
left join windowed on items.item_key = windowed.item_key;

create unique index item_features_key on item_features (item_key);
