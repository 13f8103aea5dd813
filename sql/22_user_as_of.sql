-- Purpose: user features as they were before a moment, as 21_as_of.sql has those of items.
-- Grain: one row for each requested (key, moment). Moments are microseconds since 1970.

drop function if exists user_features_as_of(bigint[], bigint[], bigint[]) cascade;
drop function if exists user_features_as_of(bigint[], bigint[], bigint[], pg_snapshot) cascade;

-- before_ids breaks ties: an event at the very moment of the request is history when its
-- interaction_id is lower. 0 takes none of them.
create function user_features_as_of(
    wanted_keys bigint[],
    wanted_moments bigint[],
    before_ids bigint[],
    seen pg_snapshot default null
)
returns table (
    request bigint,
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
set plan_cache_mode = force_custom_plan
-- The linter takes the loops of the body for one long line.
-- noqa: disable=LT05
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

    wanted_users as (
        select distinct requests.user_key
        from requests
    ),

    timeline as (
        select
            interactions.user_key,
            interactions.interaction_id,
            micros(interactions.occurred_at) as moment,
            micros(interactions.occurred_at) as first_at,
            1 as events,
            (interactions.value is not null)::integer as valued,
            coalesce(interactions.value, 0)::double precision as value_sum,
            coalesce(interactions.value, 0)::double precision
            * coalesce(interactions.value, 0)::double precision as value_square_sum
        from interactions
        cross join refresh_point
        where
            interactions.user_key in (select wanted_users.user_key from wanted_users)
            and (seen is null or pg_visible_in_snapshot(interactions.transaction_id, seen))
            and (
                refresh_point.raw_since is null
                or interactions.occurred_at >= refresh_point.raw_since::timestamp at time zone 'utc'
                or interactions.interaction_id > refresh_point.watermark
            )
        union all
        select
            user_daily.user_key,
            0 as interaction_id,
            micros(user_daily.last_at) as moment,
            micros(user_daily.first_at) as first_at,
            user_daily.events,
            user_daily.valued,
            user_daily.value_sum,
            user_daily.value_square_sum
        from user_daily
        inner join refresh_point on user_daily.event_day < refresh_point.raw_since
        where user_daily.user_key in (select wanted_users.user_key from wanted_users)
    ),

    summed as (
        select
            timeline.user_key,
            timeline.moment,
            timeline.first_at,
            timeline.interaction_id,
            sum(timeline.events) over past as events,
            sum(timeline.valued) over past as valued,
            sum(timeline.value_sum) over past as value_sum,
            sum(timeline.value_square_sum) over past as value_square_sum,
            dense_rank() over (
                partition by timeline.user_key order by utc_day(timeline.moment)
            ) as active_days
        from timeline
        window past as (
            partition by timeline.user_key
            order by utc_day(timeline.moment), timeline.moment, timeline.interaction_id
            rows between unbounded preceding and current row
        )
    ),

    past as (
        select
            user_key,
            min(first_at) as first_at,
            array_agg(moment order by moment, interaction_id) as moments,
            array_agg(interaction_id order by moment, interaction_id) as ids,
            array_agg(events order by moment, interaction_id) as events,
            array_agg(valued order by moment, interaction_id) as valued,
            array_agg(active_days order by moment, interaction_id) as active_days,
            array_agg(value_sum order by moment, interaction_id) as value_sums,
            array_agg(value_square_sum order by moment, interaction_id) as value_square_sums
        from summed
        group by user_key
    ),

    found as (
        select
            requests.request,
            requests.moment,
            requests.before_id,
            past.*,
            {% for days in windows %}
                width_bucket(requests.moment - 1 - {{ days * 86400000000 }}, past.moments)
                    as place_{{ days }}d,
            {% endfor %}
            width_bucket(requests.moment - 1, past.moments) as strictly_before,
            width_bucket(requests.moment, past.moments) as up_to
        from requests
        inner join users on requests.user_key = users.user_key
        left join past on requests.user_key = past.user_key
        offset 0
    ),

    placed as (
        select
            found.*,
            case
                when before_id > 0 and up_to > strictly_before
                    then strictly_before + width_bucket(
                        before_id - 1, ids[strictly_before + 1:up_to]
                    )
                else strictly_before
            end as place
        from found
        offset 0
    ),

    counted as (
        select
            request,
            moment,
            coalesce(events[place], 0) as events,
            {% for days in windows %}
                coalesce(events[place], 0) - coalesce(events[place_{{ days }}d], 0)
                    as events_{{ days }}d,
            {% endfor %}
            valued[place] as valued,
            value_sums[place] as value_sum,
            value_square_sums[place] as value_square_sum,
            coalesce(active_days[place], 0) as active_days,
            case when place > 0 then first_at end as first_at,
            moments[place] as last_at
        from placed
        offset 0
    )

    select
        request,
        events::real,
        {% for days in windows %}
            events_{{ days }}d::real,
        {% endfor %}
        value_mean(valued, value_sum),
        value_std(valued, value_sum, value_square_sum),
        active_days::real,
        session_gap_days(first_at, last_at, active_days),
        days_between(first_at, moment),
        days_between(last_at, moment)
    from counted
$$;
