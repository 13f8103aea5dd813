-- Purpose: all that a request reads of its users, in one statement: history, seen items, and
-- features that hold at this very moment (the refreshed sums and the events since).
-- Grain: one row for each known user of user_ids.
--
-- The events since the refresh are those after its watermark (few, by arrival) and those it
-- knew but that lay in the future (fewer, by time). "+ 0" keeps the planner, which cannot know
-- how few, from walking through the whole history by the other index.

drop function if exists user_states(text[], integer, timestamptz) cascade;

create function user_states(user_ids text[], history_limit integer, at_time timestamptz)
returns table (
    user_id text,
    as_of double precision,
    snapshot text, -- pg_current_snapshot() of the read
    history bytea, -- int4 item_key, float4 value, int8 time (microseconds since 2000); latest first
    seen_items bytea, -- int4 item_key, an item may stand there twice
    recent_items bytea, -- int4 item_key of each event since the refresh
    category_names text[],
    category_sums bytea, -- float4 events and float4 value_sum for each name
    user_events real,
    user_events_1d real,
    user_events_7d real,
    user_events_30d real,
    user_events_90d real,
    user_value_mean real,
    user_value_std real,
    user_active_days real,
    user_session_gap_days real,
    user_tenure_days real,
    user_recency_days real
)
language sql stable
as $$
    select
        users.user_id,
        unix_seconds(at_time),
        pg_current_snapshot()::text,
        history.packed,
        past.seen_items,
        recent.items,
        recent.category_names,
        recent.category_sums,
        (coalesce(past.events, 0) + recent.events)::real,
        windows.events_1d::real,
        windows.events_7d::real,
        windows.events_30d::real,
        windows.events_90d::real,
        value_mean(
            coalesce(past.valued, 0) + recent.valued,
            coalesce(past.value_sum, 0) + recent.value_sum
        ),
        value_std(
            coalesce(past.valued, 0) + recent.valued,
            coalesce(past.value_sum, 0) + recent.value_sum,
            coalesce(past.value_square_sum, 0) + recent.value_square_sum
        ),
        (coalesce(past.active_days, 0) + recent.active_days)::real,
        session_gap_days(
            micros(least(past.first_at, recent.first_at)),
            micros(greatest(past.last_at, recent.last_at)),
            coalesce(past.active_days, 0) + recent.active_days
        ),
        days_between(micros(least(past.first_at, recent.first_at)), micros(at_time)),
        days_between(micros(greatest(past.last_at, recent.last_at)), micros(at_time))
    from unnest(user_ids) as wanted (user_id)
    inner join users on wanted.user_id = users.user_id
    cross join (
        select
            refresh_point.watermark,
            refresh_point.as_of
        from refresh_point
        limit 1
    ) as point
    left join user_totals as past on users.user_key = past.user_key
    cross join lateral (
        with events as (
            select
                interactions.item_key,
                interactions.occurred_at,
                interactions.value::double precision as value
            from interactions
            where
                interactions.user_key = users.user_key
                and interactions.interaction_id > point.watermark
                and interactions.occurred_at + interval '0' < at_time
            union all
            select
                interactions.item_key,
                interactions.occurred_at,
                interactions.value::double precision as value
            from interactions
            where
                interactions.user_key = users.user_key
                and interactions.interaction_id + 0 <= point.watermark
                and interactions.occurred_at >= point.as_of
                and interactions.occurred_at < at_time
        ),

        totals as (
            select
                count(*) as events,
                count(value) as valued,
                coalesce(sum(value), 0) as value_sum,
                coalesce(sum(value * value), 0) as value_square_sum,
                min(occurred_at) as first_at,
                max(occurred_at) as last_at,
                string_agg(int4send(item_key), '') as items
            from events
        ),

        -- Each half runs only when its condition holds.
        derived as (
            select
                0 as active_days,
                past.category_names as names,
                past.category_sums as packed
            from totals
            where totals.events = 0
            union all
            select
                days.active_days,
                merged.names,
                merged.packed
            from totals
            cross join lateral (
                select
                    array_agg(sums.category order by sums.category) as names,
                    string_agg(
                        float4send(sums.events::real) || float4send(sums.value_sum::real), ''
                        order by sums.category
                    ) as packed
                from (
                    select
                        parts.category,
                        sum(parts.events) as events,
                        sum(parts.value_sum) as value_sum
                    from (
                        select
                            user_category_totals.category,
                            user_category_totals.events,
                            user_category_totals.value_sum
                        from user_category_totals
                        where user_category_totals.user_key = users.user_key
                        union all
                        select
                            category.name,
                            1,
                            coalesce(events.value, 0)
                        from events
                        inner join items on events.item_key = items.item_key
                        cross join lateral unnest(items.categories) as category (name)
                    ) as parts
                    group by parts.category
                ) as sums
            ) as merged
            cross join (
                select count(*) as active_days
                from (
                    select distinct (events.occurred_at at time zone 'utc')::date as event_day
                    from events
                ) as days
                where
                    not exists (
                        select from user_daily
                        where
                            user_daily.user_key = users.user_key
                            and user_daily.event_day = days.event_day
                    )
            ) as days
            where totals.events > 0
        )

        select
            totals.*,
            derived.active_days,
            derived.names as category_names,
            derived.packed as category_sums
        from totals
        cross join derived
    ) as recent
    cross join lateral (
        select
            count(*) filter (
                where interactions.occurred_at >= at_time - interval '24 hours'
            ) as events_1d,
            count(*) filter (
                where interactions.occurred_at >= at_time - interval '168 hours'
            ) as events_7d,
            count(*) filter (
                where interactions.occurred_at >= at_time - interval '720 hours'
            ) as events_30d,
            count(*) as events_90d
        from interactions
        where
            interactions.user_key = users.user_key
            and interactions.occurred_at >= at_time - interval '2160 hours'
            and interactions.occurred_at < at_time
    ) as windows
    cross join lateral (
        select
            string_agg(
                int4send(latest.item_key)
                || float4send(coalesce(latest.value, 'nan'))
                || timestamptz_send(latest.occurred_at),
                ''
            ) as packed
        from (
            select
                interactions.item_key,
                interactions.value,
                interactions.occurred_at
            from interactions
            where
                interactions.user_key = users.user_key
                and interactions.occurred_at < at_time
            order by interactions.occurred_at desc, interactions.interaction_id desc
            limit history_limit
        ) as latest
    ) as history
$$;
