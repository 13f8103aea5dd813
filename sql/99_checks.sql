-- Purpose: what must hold between tables and feature views.
-- Grain: one row for each check: its name, whether it passed, and the figures.

with counts as (
    select
        (select count(*) from refreshed_interactions) as refreshed,
        (select coalesce(sum(item_daily.events), 0) from item_daily) as item_daily_events,
        (select coalesce(sum(user_daily.events), 0) from user_daily) as user_daily_events,
        (
            select coalesce(sum(item_features.item_events::double precision), 0)
            from item_features
        ) as item_events,
        (select coalesce(sum(user_features.events), 0) from user_features) as user_events,
        (select coalesce(sum(user_category_daily.events), 0) from user_category_daily)
            as category_daily_events,
        (select coalesce(sum(user_category_features.events), 0) from user_category_features)
            as category_events
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
    select count(*) as days
    from refresh_point
    inner join item_daily on refresh_point.as_of <= item_daily.last_at
),

late as (
    select count(*) as events
    from refresh_point
    inner join interactions
        on
            refresh_point.watermark < interactions.interaction_id
            and refresh_point.as_of > interactions.occurred_at
),

-- Every 97th item again, from raw events, by other code than that of the view.
sample as (
    select
        array_agg(item_features.item_key order by item_features.item_key) as item_keys,
        array_agg(micros(refresh_point.as_of) order by item_features.item_key) as moments
    from item_features
    cross join refresh_point
    where item_features.item_key % 97 = 0
),

differing as (
    select count(*) as items
    from sample
    cross join lateral item_features_as_of(sample.item_keys, sample.moments) as replayed
    inner join item_features as stored
        on stored.item_key = sample.item_keys[replayed.request]
    where to_jsonb(replayed) - 'request' is distinct from to_jsonb(stored) - 'item_key'
),

future as (
    select count(*) as events
    from interactions
    where occurred_at > now() + interval '5 minutes'
)

select
    checks.check_name,
    checks.passed,
    checks.detail
from counts
cross join out_of_range
cross join leaks
cross join late
cross join differing
cross join future
cross join lateral (
    values
    (
        'daily item partials hold every refreshed event',
        counts.item_daily_events = counts.refreshed,
        format('%s of %s events', counts.item_daily_events, counts.refreshed)
    ),
    (
        'daily user partials hold every refreshed event',
        counts.user_daily_events = counts.refreshed,
        format('%s of %s events', counts.user_daily_events, counts.refreshed)
    ),
    (
        'item features hold every refreshed event',
        counts.item_events = counts.refreshed,
        format('%s of %s events', counts.item_events, counts.refreshed)
    ),
    (
        'user features hold every refreshed event',
        counts.user_events = counts.refreshed,
        format('%s of %s events', counts.user_events, counts.refreshed)
    ),
    (
        'category features hold every daily partial',
        counts.category_events = counts.category_daily_events,
        format('%s of %s', counts.category_events, counts.category_daily_events)
    ),
    (
        'windows lie inside each other and nothing is negative',
        out_of_range.items = 0,
        format('%s items out of range', out_of_range.items)
    ),
    (
        'no view holds an event of its as_of or later',
        leaks.days = 0,
        format('%s daily rows reach past as_of', leaks.days)
    ),
    (
        'refreshed item features equal their as-of values',
        differing.items = 0 or late.events > 0,
        format(
            '%s of every 97th item differ, %s late events wait for a refresh',
            differing.items, late.events
        )
    ),
    (
        'no event lies in the future',
        future.events = 0,
        format('%s events more than five minutes ahead', future.events)
    )
) as checks (check_name, passed, detail)
