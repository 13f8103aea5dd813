-- Purpose: features as they were before a moment, for training examples and evaluation.
-- Grain: one row for each requested (key, moment). Moments are microseconds since 1970.
--
-- Requests and events are merged into one timeline for each key, and window functions count
-- what lies before: one sort, whatever the number of requests. An event at the very moment of
-- a request is not history (range … 1 preceding = one microsecond earlier).

drop function if exists item_features_as_of(integer[], bigint[]) cascade;

create function item_features_as_of(wanted_keys integer[], wanted_moments bigint[])
returns table (
    request bigint,
    item_events real,
    item_events_7d real,
    item_events_30d real,
    item_events_365d real,
    item_value_mean real,
    item_value_std real,
    item_age_days real,
    item_recency_days real
)
language sql stable
as $$
    with requests as (
        select
            wanted.item_key,
            wanted.moment,
            wanted.request
        from unnest(wanted_keys, wanted_moments) with ordinality
            as wanted (item_key, moment, request)
    ),

    timeline as (
        select
            item_key,
            moment,
            request,
            null::bigint as event_at,
            null::double precision as value
        from requests
        union all
        select
            interactions.item_key,
            micros(interactions.occurred_at) as moment,
            null as request,
            micros(interactions.occurred_at) as event_at,
            interactions.value::double precision as value
        from interactions
        where interactions.item_key in (select requests.item_key from requests)
    ),

    counted as (
        select
            request,
            item_key,
            moment,
            count(event_at) over past as events,
            count(event_at) over past_7d as events_7d,
            count(event_at) over past_30d as events_30d,
            count(event_at) over past_365d as events_365d,
            count(value) over past as valued,
            sum(value) over past as value_sum,
            sum(value * value) over past as value_square_sum,
            max(event_at) over past as last_at
        from timeline
        window
            keyed as (partition by item_key order by moment),
            past as (keyed range between unbounded preceding and 1 preceding),
            past_7d as (keyed range between 604800000000 preceding and 1 preceding),
            past_30d as (keyed range between 2592000000000 preceding and 1 preceding),
            past_365d as (keyed range between 31536000000000 preceding and 1 preceding)
    )

    select
        counted.request,
        counted.events::real,
        counted.events_7d::real,
        counted.events_30d::real,
        counted.events_365d::real,
        value_mean(counted.valued, counted.value_sum),
        value_std(counted.valued, counted.value_sum, counted.value_square_sum),
        days_between(micros(items.created_at), counted.moment),
        days_between(counted.last_at, counted.moment)
    from counted
    inner join items on counted.item_key = items.item_key
    where counted.request is not null
$$;

drop function if exists user_features_as_of(bigint[], bigint[], bigint[]) cascade;

-- before_ids breaks ties: an event at the very moment of the request is history when its
-- interaction_id is lower. 0 takes none of them.
create function user_features_as_of(
    wanted_keys bigint[], wanted_moments bigint[], before_ids bigint[]
)
returns table (
    request bigint,
    user_events real,
    user_events_30d real,
    user_value_mean real,
    user_value_std real,
    user_tenure_days real,
    user_recency_days real
)
language sql stable
as $$
    with requests as (
        select
            wanted.user_key,
            wanted.moment,
            wanted.before_id,
            wanted.request
        from unnest(wanted_keys, wanted_moments, before_ids) with ordinality
            as wanted (user_key, moment, before_id, request)
    ),

    timeline as (
        select
            user_key,
            moment,
            before_id as tie,
            request,
            false as is_window_start,
            null::bigint as event_at,
            null::double precision as value
        from requests
        union all
        select
            user_key,
            moment - 2592000000000 as moment,
            0 as tie,
            request,
            true as is_window_start,
            null as event_at,
            null as value
        from requests
        union all
        select
            interactions.user_key,
            micros(interactions.occurred_at) as moment,
            interactions.interaction_id as tie,
            null as request,
            null as is_window_start,
            micros(interactions.occurred_at) as event_at,
            interactions.value::double precision as value
        from interactions
        where interactions.user_key in (select requests.user_key from requests)
    ),

    counted as (
        select
            request,
            moment,
            is_window_start,
            count(event_at) over past as events,
            count(value) over past as valued,
            sum(value) over past as value_sum,
            sum(value * value) over past as value_square_sum,
            min(event_at) over past as first_at,
            max(event_at) over past as last_at
        from timeline
        window past as (
            partition by user_key order by moment, tie, event_at nulls first
            rows between unbounded preceding and current row
        )
    )

    select
        present.request,
        present.events::real,
        (present.events - earlier.events)::real,
        value_mean(present.valued, present.value_sum),
        value_std(present.valued, present.value_sum, present.value_square_sum),
        days_between(present.first_at, present.moment),
        days_between(present.last_at, present.moment)
    from counted as present
    inner join counted as earlier on present.request = earlier.request
    where
        not present.is_window_start
        and earlier.is_window_start
$$;
