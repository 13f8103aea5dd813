-- Purpose: what must hold between tables and feature views.
-- Grain: one row for each check: its name, whether it passed, and the figures.

with counts as (
    select
        (select count(*) from refreshed_interactions) as refreshed,
        (select coalesce(sum(events), 0) from item_daily) as item_events,
        (select coalesce(sum(events), 0) from user_daily) as user_events,
        (select coalesce(sum(item_events::double precision), 0) from item_features)
            as feature_events,
        (select coalesce(sum(events), 0) from user_features) as user_feature_events,
        (select coalesce(sum(events), 0) from user_category_daily) as category_daily_events,
        (select coalesce(sum(events), 0) from user_category_features) as category_events
),

out_of_range as (
    select count(*) as items
    from item_features
    where
        item_events_7d > item_events_30d
        or item_events_30d > item_events_365d
        or item_events_365d > item_events
        or item_age_days < 0
        or item_recency_days < 0
        or item_value_std < 0
),

leaks as (
    select count(*) as rows_after
    from refresh_point
    inner join item_daily on refresh_point.as_of <= item_daily.last_at
),

replayed as (
    select count(*) as differing
    from refresh_point
    cross join lateral (
        select
            array_agg(item_key order by item_key) as item_keys,
            array_agg(micros(refresh_point.as_of) order by item_key) as moments
        from item_features
        where item_key % 97 = 0
    ) as sample
    cross join lateral item_features_as_of(sample.item_keys, sample.moments) as again
    inner join item_features on sample.item_keys[again.request] = item_features.item_key
    where
        (select count(*) from interactions) = (select refreshed from counts)
        and (
            again.item_events,
            again.item_events_7d,
            again.item_events_30d,
            again.item_events_365d,
            again.item_value_mean,
            again.item_recency_days
        ) is distinct from (
            item_features.item_events,
            item_features.item_events_7d,
            item_features.item_events_30d,
            item_features.item_events_365d,
            item_features.item_value_mean,
            item_features.item_recency_days
        )
),

future as (
    select count(*) as events
    from interactions
    where occurred_at > now() + interval '5 minutes'
)

select
    'daily item partials hold every refreshed event' as check_name,
    refreshed = item_events as passed,
    format('%s events, %s in item_daily', refreshed, item_events) as detail
from counts
union all
select
    'daily user partials hold every refreshed event',
    refreshed = user_events,
    format('%s events, %s in user_daily', refreshed, user_events)
from counts
union all
select
    'item features hold every refreshed event',
    refreshed = feature_events,
    format('%s events, %s in item_features', refreshed, feature_events)
from counts
union all
select
    'user features hold every refreshed event',
    refreshed = user_feature_events,
    format('%s events, %s in user_features', refreshed, user_feature_events)
from counts
union all
select
    'category features hold every daily partial',
    category_daily_events = category_events,
    format('%s in user_category_daily, %s in user_category_features',
        category_daily_events, category_events)
from counts
union all
select
    'windows lie inside each other and nothing is negative',
    items = 0,
    format('%s items out of range', items)
from out_of_range
union all
select
    'no view holds an event after its as_of',
    rows_after = 0,
    format('%s daily rows reach past as_of', rows_after)
from leaks
union all
select
    'refreshed item features equal the as-of values of the same moment',
    differing = 0,
    format('%s of every 97th item differ', differing)
from replayed
union all
select
    'no event lies in the future',
    events = 0,
    format('%s events later than five minutes from now', events)
from future
