-- Purpose: what must hold between raw events, partials, sums and feature views.
-- Grain: one row for each check: its name, whether it passed, and the figures.
--
-- While corrections wait for a refresh, what they touch differs from raw events, and rightly so.

with point as (
    select
        watermark,
        as_of,
        snapshot,
        coalesce(raw_since, '-infinity') as raw_since
    from refresh_point
),

pending as (
    select
        (select count(*) from interaction_corrections)
        + (select count(*) from answer_corrections)
        + (select count(*) from category_corrections) as corrections
),

counted as (
    select
        interactions.user_key,
        interactions.item_key,
        (interactions.occurred_at at time zone 'utc')::date as event_day
    from interactions
    cross join point
    where
        interactions.interaction_id <= point.watermark
        and interactions.occurred_at < point.as_of
        and (interactions.occurred_at at time zone 'utc')::date >= point.raw_since
),

whole_item_days as (
    select
        item_daily.item_key,
        item_daily.event_day,
        item_daily.events
    from item_daily
    cross join point
    where item_daily.event_day >= point.raw_since
),

item_days as (
    select
        count(*) as days,
        count(*) filter (
            where coalesce(raw.events, 0) <> coalesce(daily.events, 0)
        ) as differing
    from (
        select
            item_key,
            event_day,
            count(*) as events
        from counted
        group by item_key, event_day
    ) as raw
    full outer join whole_item_days as daily
        on raw.item_key = daily.item_key and raw.event_day = daily.event_day
),

whole_user_days as (
    select
        user_daily.user_key,
        user_daily.event_day,
        user_daily.events
    from user_daily
    cross join point
    where user_daily.event_day >= point.raw_since
),

user_days as (
    select
        count(*) as days,
        count(*) filter (
            where coalesce(raw.events, 0) <> coalesce(daily.events, 0)
        ) as differing
    from (
        select
            user_key,
            event_day,
            count(*) as events
        from counted
        group by user_key, event_day
    ) as raw
    full outer join whole_user_days as daily
        on raw.user_key = daily.user_key and raw.event_day = daily.event_day
),

category_days as (
    select
        (
            select coalesce(sum(cardinality(items.categories)), 0)
            from counted
            inner join items on counted.item_key = items.item_key
        ) as raw_events,
        (
            select coalesce(sum(user_category_daily.events), 0)
            from user_category_daily
            cross join point
            where user_category_daily.event_day >= point.raw_since
        ) as daily_events
),

sums_by_item as (
    select
        item_key,
        sum(events) as events,
        sum(valued) as valued,
        sum(impressions) as impressions,
        sum(clicks) as clicks,
        max(last_at) as last_at
    from item_daily
    group by item_key
),

item_sums as (
    select
        count(*) as items,
        count(*) filter (
            where
            (
                totals.events, totals.valued, totals.impressions, totals.clicks, totals.last_at
            ) is distinct from (
                daily.events, daily.valued, daily.impressions, daily.clicks, daily.last_at
            )
        ) as differing
    from item_totals as totals
    full outer join sums_by_item as daily
        on totals.item_key = daily.item_key
),

sums_by_user as (
    select
        user_key,
        sum(events) as events,
        sum(valued) as valued,
        count(*) as active_days,
        min(first_at) as first_at,
        max(last_at) as last_at
    from user_daily
    group by user_key
),

user_sums as (
    select
        count(*) as users,
        count(*) filter (
            where
            (
                totals.events, totals.valued, totals.active_days, totals.first_at, totals.last_at
            ) is distinct from (
                daily.events, daily.valued, daily.active_days, daily.first_at, daily.last_at
            )
        ) as differing
    from user_totals as totals
    full outer join sums_by_user as daily
        on totals.user_key = daily.user_key
),

sums_by_category as (
    select
        user_key,
        category,
        sum(events) as events
    from user_category_daily
    group by user_key, category
),

category_sums as (
    select
        count(*) as categories,
        count(*) filter (where totals.events is distinct from daily.events) as differing
    from user_category_totals as totals
    full outer join sums_by_category as daily
        on totals.user_key = daily.user_key and totals.category = daily.category
),

out_of_range as (
    select count(*) as items
    from item_totals
    where
        clicks < 0
        or impressions < 0
        or exists (
            select
            from
                unnest(
                    array_prepend(0, window_events), array_append(window_events, events)
                ) as pair (shorter, longer)
            where pair.shorter > pair.longer
        )
),

leaks as (
    select
        (
            select count(*)
            from item_daily
            where item_daily.last_at >= point.as_of
        )
        + (
            select count(*)
            from user_daily
            where user_daily.last_at >= point.as_of
        )
        + (
            select count(*)
            from click_daily
            where click_daily.event_day > (point.as_of at time zone 'utc')::date
        )
        + (
            select count(*)
            from covisit_daily
            where covisit_daily.event_day > (point.as_of at time zone 'utc')::date
        ) as days
    from point
),

strays as (
    select
        count(*) filter (where users.user_key is null) as without_user,
        count(*) filter (where items.item_key is null) as without_item
    from interactions
    left join users on interactions.user_key = users.user_key
    left join items on interactions.item_key = items.item_key
    where users.user_key is null or items.item_key is null
),

-- Every 97th item again, from raw events, by other code than that of the view.
sample as (
    select
        array_agg(item_features.item_key order by item_features.item_key) as item_keys,
        array_agg(micros(point.as_of) order by item_features.item_key) as moments
    from item_features
    cross join point
    where item_features.item_key % 97 = 0
),

-- Sums of other orders may differ in the last digit.
differing as (
    select count(*) as items
    from sample
    cross join point
    cross join
        lateral item_features_as_of(
            sample.item_keys, sample.moments, point.snapshot
        ) as replayed
    inner join item_features as stored
        on stored.item_key = sample.item_keys[replayed.request]
    where exists (
        select
        from jsonb_each_text(to_jsonb(replayed) - 'request') as here (feature, value)
        full outer join jsonb_each_text(to_jsonb(stored) - 'item_key') as there (feature, value)
            on here.feature = there.feature
        where
            here.value is distinct from there.value
            and coalesce(
                abs(here.value::double precision - there.value::double precision)
                > 1e-5 * greatest(1, abs(there.value::double precision)),
                true
            )
    )
),

future as (
    select count(*) as events
    from interactions
    where occurred_at > now() + interval '5 minutes'
)

select
    checks.check_name,
    checks.passed or (checks.waits and pending.corrections > 0) as passed,
    checks.detail || case
        when checks.waits and pending.corrections > 0
            then format('; %s corrections wait for a refresh', pending.corrections)
        else ''
    end as detail
from pending
cross join item_days
cross join user_days
cross join category_days
cross join item_sums
cross join user_sums
cross join category_sums
cross join out_of_range
cross join leaks
cross join strays
cross join differing
cross join future
cross join lateral (
    values
    (
        'daily item partials count the raw events of their day',
        item_days.differing = 0,
        true,
        format('%s of %s items and days differ', item_days.differing, item_days.days)
    ),
    (
        'daily user partials count the raw events of their day',
        user_days.differing = 0,
        true,
        format('%s of %s users and days differ', user_days.differing, user_days.days)
    ),
    (
        'daily category partials count the categories of raw events',
        category_days.raw_events = category_days.daily_events,
        true,
        format('%s of %s', category_days.daily_events, category_days.raw_events)
    ),
    (
        'item sums are those of their days',
        item_sums.differing = 0,
        false,
        format('%s of %s items differ', item_sums.differing, item_sums.items)
    ),
    (
        'user sums are those of their days',
        user_sums.differing = 0,
        false,
        format('%s of %s users differ', user_sums.differing, user_sums.users)
    ),
    (
        'category sums are those of their days',
        category_sums.differing = 0,
        false,
        format('%s of %s differ', category_sums.differing, category_sums.categories)
    ),
    (
        'windows lie inside each other and nothing is negative',
        out_of_range.items = 0,
        false,
        format('%s items out of range', out_of_range.items)
    ),
    (
        'nothing counts an event of its as_of or later',
        leaks.days = 0,
        false,
        format('%s daily rows reach past as_of', leaks.days)
    ),
    (
        'refreshed item features equal their as-of values',
        differing.items = 0,
        true,
        format('%s of every 97th item differ', differing.items)
    ),
    (
        'every event has its user and its item',
        strays.without_user + strays.without_item = 0,
        false,
        format(
            '%s events without user, %s without item', strays.without_user, strays.without_item
        )
    ),
    (
        'no event lies in the future',
        future.events = 0,
        false,
        format('%s events more than five minutes ahead', future.events)
    )
) as checks (check_name, passed, waits, detail)
