-- Purpose: all that a request reads of its users, in one statement: history, seen items, and
-- features that hold at this very moment (the refreshed sums and the events since).
-- Grain: one row for each known user of user_ids.
--
-- Live events are those that the sums do not hold: they came after the watermark, or lay in the
-- future at the refresh. One scan of the largest window counts the windows and finds the live
-- events in it; a second one, by arrival, finds those that came late from before it. When the
-- last refresh lies before the window, that one reads all of the user's events.
-- "+ interval '0'" keeps the planner, which cannot know how few came late, from walking through
-- the whole history by the other index.

drop function if exists live_categories(integer[], double precision[]) cascade;

-- Events and values by category of events with these items and values, as one JSON object
-- {category: [events, value sum]}. A function of its own: preparing its plan for each request
-- would cost more than running it, and most requests have no live event.
create function live_categories(item_keys integer[], event_values double precision[])
returns text
language sql stable
as $$
    select coalesce(jsonb_object_agg(summed.name, summed.sums), '{}')::text
    from (
        select
            category.name,
            jsonb_build_array(count(*), coalesce(sum(event.value), 0)) as sums
        from unnest(item_keys, event_values) as event (item_key, value)
        inner join items on event.item_key = items.item_key
        cross join lateral unnest(items.categories) as category (name)
        group by category.name
    ) as summed
$$;

drop function if exists user_states(text[], integer, timestamptz) cascade;

create function user_states(user_ids text[], history_limit integer, at_time timestamptz)
returns table (
    user_id text,
    as_of double precision,
    snapshot text, -- pg_current_snapshot() of the read
    history bytea, -- int4 item_key, float4 value, int8 time (microseconds since 2000); latest first
    seen_items bytea, -- int4 item_key, an item may stand there twice
    live_items bytea, -- int4 item_key of each live event
    category_names text[],
    category_sums bytea, -- float4 events and float4 value_sum for each name
    live_category_sums text, -- of the live events, as live_categories gives them
    user_events real,
    {% for days in windows %}
        user_events_{{ days }}d real,
    {% endfor %}
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
        live.items,
        past.category_names,
        past.category_sums,
        case
            when live.events > 0 then live_categories(live.item_keys, live.event_values)
        end,
        summed.events::real,
        {% for days in windows %}
            live.events_{{ days }}d::real,
        {% endfor %}
        value_mean(summed.valued, summed.value_sum),
        value_std(summed.valued, summed.value_sum, summed.value_square_sum),
        summed.active_days::real,
        session_gap_days(summed.first_at, summed.last_at, summed.active_days),
        days_between(summed.first_at, summed.now_at),
        days_between(summed.last_at, summed.now_at)
    from unnest(user_ids) as wanted (user_id)
    inner join users on wanted.user_id = users.user_id
    cross join (
        select
            refresh_point.watermark,
            refresh_point.as_of,
            case
                when refresh_point.as_of >= at_time - interval '{{ windows[-1] * 24 }} hours'
                    then refresh_point.watermark
                else 0
            end as arrived_after
        from refresh_point
        limit 1
    ) as point
    left join user_totals as past on users.user_key = past.user_key
    cross join lateral (
        select
            {% for days in windows %}
                count(*) filter (
                    where events.occurred_at >= at_time - interval '{{ days * 24 }} hours'
                ) as events_{{ days }}d,
            {% endfor %}
            count(*) filter (where events.is_live) as events,
            count(events.value) filter (where events.is_live) as valued,
            coalesce(sum(events.value) filter (where events.is_live), 0) as value_sum,
            coalesce(sum(events.value * events.value) filter (where events.is_live), 0)
                as value_square_sum,
            min(events.occurred_at) filter (where events.is_live) as first_at,
            max(events.occurred_at) filter (where events.is_live) as last_at,
            array_agg(events.item_key) filter (where events.is_live) as item_keys,
            array_agg(events.value) filter (where events.is_live) as event_values,
            string_agg(int4send(events.item_key), '') filter (where events.is_live) as items,
            count(distinct (events.occurred_at at time zone 'utc')::date) filter (
                where
                events.is_live
                and not exists (
                    select from user_daily
                    where
                        user_daily.user_key = users.user_key
                        and user_daily.event_day = (events.occurred_at at time zone 'utc')::date
                )
            ) as active_days
        from (
            select
                interactions.item_key,
                interactions.occurred_at,
                interactions.value::double precision as value,
                interactions.interaction_id > point.watermark
                or interactions.occurred_at >= point.as_of as is_live
            from interactions
            where
                interactions.user_key = users.user_key
                and interactions.occurred_at >= at_time - interval '{{ windows[-1] * 24 }} hours'
                and interactions.occurred_at < at_time
            union all
            select
                interactions.item_key,
                interactions.occurred_at,
                interactions.value::double precision as value,
                true as is_live
            from interactions
            where
                interactions.user_key = users.user_key
                and interactions.interaction_id > point.arrived_after
                -- For the partitions that lie in the future: they are left out at once.
                and interactions.occurred_at < at_time
                and interactions.occurred_at + interval '0'
                < at_time - interval '{{ windows[-1] * 24 }} hours'
                and (
                    interactions.interaction_id > point.watermark
                    or interactions.occurred_at + interval '0' >= point.as_of
                )
        ) as events
    ) as live
    -- Each sum once, however often a formula uses it.
    cross join lateral (
        select
            coalesce(past.events, 0) + live.events as events,
            coalesce(past.valued, 0) + live.valued as valued,
            coalesce(past.value_sum, 0) + live.value_sum as value_sum,
            coalesce(past.value_square_sum, 0) + live.value_square_sum as value_square_sum,
            coalesce(past.active_days, 0) + live.active_days as active_days,
            micros(least(past.first_at, live.first_at)) as first_at,
            micros(greatest(past.last_at, live.last_at)) as last_at,
            micros(at_time) as now_at
        offset 0
    ) as summed
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
