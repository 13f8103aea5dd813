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
    history bytea, -- int4 item_key, float4 value, int8 time (microseconds since 2000); latest first
    seen_items bytea, -- int4 item_key, ascending
    recent_items bytea, -- int4 item_key of each event since the refresh
    category_names text[],
    category_sums bytea, -- float4 events and float4 value_sum for each name
    user_events real,
    user_events_30d real,
    user_value_mean real,
    user_value_std real,
    user_tenure_days real,
    user_recency_days real
)
language sql stable
as $$
    select
        users.user_id,
        unix_seconds(at_time),
        history.packed,
        past.seen_items,
        recent.items,
        recent.category_names,
        recent.category_sums,
        (coalesce(past.events, 0) + recent.events)::real,
        month.events::real,
        value_mean(
            coalesce(past.valued, 0) + recent.valued,
            coalesce(past.value_sum, 0) + recent.value_sum
        ),
        value_std(
            coalesce(past.valued, 0) + recent.valued,
            coalesce(past.value_sum, 0) + recent.value_sum,
            coalesce(past.value_square_sum, 0) + recent.value_square_sum
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
    left join user_features as past on users.user_key = past.user_key
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
        categories as (
            select
                past.category_names as names,
                past.category_sums as packed
            from totals
            where totals.events = 0
            union all
            select
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
                            user_category_features.category,
                            user_category_features.events,
                            user_category_features.value_sum
                        from user_category_features
                        where user_category_features.user_key = users.user_key
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
            where totals.events > 0
        )

        select
            totals.*,
            categories.names as category_names,
            categories.packed as category_sums
        from totals
        cross join categories
    ) as recent
    cross join lateral (
        select count(*) as events
        from interactions
        where
            interactions.user_key = users.user_key
            and interactions.occurred_at >= at_time - interval '720 hours'
            and interactions.occurred_at < at_time
    ) as month
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
