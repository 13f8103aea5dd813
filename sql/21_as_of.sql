-- Purpose: features as they were before a moment, for training examples, evaluation and replay.
-- Grain: one row for each requested (key, moment). Moments are microseconds since 1970.
--
-- All that happened to a key becomes arrays in the order of time: the moments, and running sums
-- up to each. width_bucket finds the place of a moment in them by binary search, so a window is
-- two places and a subtraction, however many requests and windows there are; each event is
-- sorted once.
--
-- A generic plan would take the arrays of requests for short ones: each call is planned for its
-- own.
--
-- seen: only rows that this snapshot saw count (replay of served features); null: all.
-- Days whose raw events were dropped are one entry each, at the last event of the day, so that
-- nothing of a day counts before all of it had happened.
-- partials_before: impressions and clicks of days before this one come from partials too. Replay
-- gives a day up to which they still are what the refresh knew; null: all come from raw rows.
-- until: no moment lies after it.

drop function if exists clicked_interactions(pg_snapshot) cascade;
drop function if exists clicked_interactions(pg_snapshot, timestamptz, timestamptz) cascade;

-- Events of a span of time that follow an answer with their item to the same user within 24
-- hours.
create function clicked_interactions(seen pg_snapshot, since timestamptz, until timestamptz)
returns table (item_key integer, occurred_at timestamptz)
language sql stable
as $$
    select
        min(interactions.item_key) as item_key,
        min(interactions.occurred_at) as occurred_at
    from answers
    cross join lateral unnest(answers.item_keys) as shown (item_key)
    inner join users on answers.user_id = users.user_id
    inner join interactions
        on
            users.user_key = interactions.user_key
            and shown.item_key = interactions.item_key
            and answers.served_at <= interactions.occurred_at
            and answers.served_at >= interactions.occurred_at - interval '24 hours'
    where
        answers.served_at >= since - interval '24 hours'
        and answers.served_at < until
        and interactions.occurred_at >= since
        and interactions.occurred_at < until
        and (
            seen is null
            or (
                pg_visible_in_snapshot(answers.transaction_id, seen)
                and pg_visible_in_snapshot(interactions.transaction_id, seen)
            )
        )
    group by interactions.interaction_id
$$;

drop function if exists click_priors(pg_snapshot) cascade;
drop function if exists click_priors(pg_snapshot, date, timestamptz) cascade;

-- One row: the UTC days with impressions or clicks, and the sums up to each, that day included.
create function click_priors(seen pg_snapshot, partials_before date, until timestamptz)
returns table (days integer[], impressions bigint[], clicks bigint[])
language sql stable
as $$
    with partials as (
        select greatest(raw_since + 1, partials_before) as ends_on from refresh_point
    ),

    counted as (
        select
            click_daily.event_day,
            click_daily.impressions,
            click_daily.clicks
        from click_daily
        inner join partials on click_daily.event_day < partials.ends_on
        union all
        select
            (answers.served_at at time zone 'utc')::date as event_day,
            cardinality(answers.item_keys) as impressions,
            0 as clicks
        from answers
        cross join partials
        where
            answers.served_at >= midnight(partials_before)
            and answers.served_at < until
            and answers.served_at >= midnight(partials.ends_on)
            and (seen is null or pg_visible_in_snapshot(answers.transaction_id, seen))
        union all
        select
            (clicked.occurred_at at time zone 'utc')::date as event_day,
            0 as impressions,
            1 as clicks
        from clicked_interactions(seen, midnight(partials_before), until) as clicked
        inner join partials on clicked.occurred_at >= midnight(partials.ends_on)
    )

    select
        array_agg(summed.day order by summed.day),
        array_agg(summed.impressions order by summed.day),
        array_agg(summed.clicks order by summed.day)
    from (
        select
            counted.event_day - date '1970-01-01' as day,
            sum(sum(counted.impressions)) over past as impressions,
            sum(sum(counted.clicks)) over past as clicks
        from counted
        group by counted.event_day
        window past as (order by counted.event_day)
    ) as summed
$$;

drop function if exists item_features_as_of(integer[], bigint[]) cascade;
drop function if exists item_features_as_of(integer[], bigint[], pg_snapshot) cascade;
drop function if exists item_features_as_of(
    integer[], bigint[], pg_snapshot, date, timestamptz
) cascade;

create function item_features_as_of(
    wanted_keys integer[],
    wanted_moments bigint[],
    seen pg_snapshot default null,
    partials_before date default null,
    until timestamptz default 'infinity'
)
returns table (
    request bigint,
    item_events real,
    {% for days in windows %}
        item_events_{{ days }}d real,
    {% endfor %}
    {% for days in windows[:-1] %}
        item_trend_{{ days }}d real,
    {% endfor %}
    item_value_mean real,
    item_value_std real,
    item_age_days real,
    item_recency_days real,
    item_click_rate real
)
language sql stable
set plan_cache_mode = force_custom_plan
-- The linter takes the loops of the body for one long line.
-- noqa: disable=LT05
as $$
    with requests as (
        select
            wanted.item_key,
            wanted.moment,
            wanted.request
        from unnest(wanted_keys, wanted_moments) with ordinality
            as wanted (item_key, moment, request)
    ),

    wanted_items as (
        select distinct requests.item_key
        from requests
    ),

    partials as (
        select greatest(refresh_point.raw_since + 1, partials_before) as ends_on
        from refresh_point
    ),

    timeline as (
        select
            interactions.item_key,
            micros(interactions.occurred_at) as moment,
            micros(interactions.occurred_at) as event_at,
            1 as events,
            (interactions.value is not null)::integer as valued,
            coalesce(interactions.value, 0)::double precision as value_sum,
            0 as impressions,
            0 as clicks,
            coalesce(interactions.value, 0)::double precision
            * coalesce(interactions.value, 0)::double precision as value_square_sum
        from interactions
        cross join refresh_point
        where
            interactions.item_key in (select wanted_items.item_key from wanted_items)
            and (seen is null or pg_visible_in_snapshot(interactions.transaction_id, seen))
            and (
                refresh_point.raw_since is null
                or interactions.occurred_at >= refresh_point.raw_since::timestamp at time zone 'utc'
                or interactions.interaction_id > refresh_point.watermark
            )
        union all
        select
            item_daily.item_key,
            micros(item_daily.last_at) as moment,
            micros(item_daily.last_at) as event_at,
            item_daily.events,
            item_daily.valued,
            item_daily.value_sum,
            0 as impressions,
            0 as clicks,
            item_daily.value_square_sum
        from item_daily
        inner join refresh_point on item_daily.event_day < refresh_point.raw_since
        where
            item_daily.item_key in (select wanted_items.item_key from wanted_items)
            and item_daily.events > 0
        union all
        select
            item_daily.item_key,
            micros((item_daily.event_day + 1)::timestamp at time zone 'utc') - 1 as moment,
            null as event_at,
            0 as events,
            0 as valued,
            0 as value_sum,
            item_daily.impressions,
            item_daily.clicks,
            0 as value_square_sum
        from item_daily
        inner join partials on item_daily.event_day < partials.ends_on
        where
            item_daily.item_key in (select wanted_items.item_key from wanted_items)
            and (item_daily.impressions > 0 or item_daily.clicks > 0)
        union all
        select
            shown.item_key,
            micros(answers.served_at) as moment,
            null as event_at,
            0 as events,
            0 as valued,
            0 as value_sum,
            1 as impressions,
            0 as clicks,
            0 as value_square_sum
        from answers
        cross join lateral unnest(answers.item_keys) as shown (item_key)
        cross join partials
        where
            answers.served_at >= midnight(partials_before)
            and answers.served_at < until
            and answers.served_at >= midnight(partials.ends_on)
            and shown.item_key in (select wanted_items.item_key from wanted_items)
            and (seen is null or pg_visible_in_snapshot(answers.transaction_id, seen))
        union all
        select
            clicked.item_key,
            micros(clicked.occurred_at) as moment,
            null as event_at,
            0 as events,
            0 as valued,
            0 as value_sum,
            0 as impressions,
            1 as clicks,
            0 as value_square_sum
        from clicked_interactions(seen, midnight(partials_before), until) as clicked
        inner join partials on clicked.occurred_at >= midnight(partials.ends_on)
        where clicked.item_key in (select wanted_items.item_key from wanted_items)
    ),

    -- Rows of one moment have the same sums (range), so their order does not matter.
    summed as (
        select
            timeline.item_key,
            timeline.moment,
            sum(timeline.events) over past as events,
            sum(timeline.valued) over past as valued,
            sum(timeline.impressions) over past as impressions,
            sum(timeline.clicks) over past as clicks,
            sum(timeline.value_sum) over past as value_sum,
            sum(timeline.value_square_sum) over past as value_square_sum,
            max(timeline.event_at) over past as last_at
        from timeline
        window past as (
            partition by timeline.item_key order by timeline.moment
            range between unbounded preceding and current row
        )
    ),

    past as (
        select
            summed.item_key,
            array_agg(summed.moment order by summed.moment) as moments,
            array_agg(summed.events order by summed.moment) as events,
            array_agg(summed.valued order by summed.moment) as valued,
            array_agg(summed.impressions order by summed.moment) as impressions,
            array_agg(summed.clicks order by summed.moment) as clicks,
            array_agg(summed.value_sum order by summed.moment) as value_sums,
            array_agg(summed.value_square_sum order by summed.moment) as value_square_sums,
            array_agg(summed.last_at order by summed.moment) as last_at
        from summed
        group by summed.item_key
    ),

    -- The places of each request, once (offset 0 keeps them from being computed for each use).
    placed as (
        select
            requests.request,
            requests.moment,
            items.created_at,
            past.events,
            past.valued,
            past.impressions,
            past.clicks,
            past.value_sums,
            past.value_square_sums,
            past.last_at,
            priors.impressions as prior_impressions,
            priors.clicks as prior_clicks,
            width_bucket(requests.moment - 1, past.moments) as place,
            {% for days in windows %}
                width_bucket(requests.moment - 1 - {{ days * 86400000000 }}, past.moments)
                    as place_{{ days }}d,
            {% endfor %}
            width_bucket(utc_day(requests.moment) - 1, priors.days) as prior_place
        from requests
        inner join items on requests.item_key = items.item_key
        left join past on requests.item_key = past.item_key
        cross join click_priors(seen, partials_before, until) as priors
        offset 0
    ),

    counted as (
        select
            request,
            moment,
            created_at,
            coalesce(events[place], 0) as events,
            {% for days in windows %}
                coalesce(events[place], 0) - coalesce(events[place_{{ days }}d], 0)
                    as events_{{ days }}d,
            {% endfor %}
            valued[place] as valued,
            coalesce(impressions[place], 0) as impressions,
            coalesce(clicks[place], 0) as clicks,
            value_sums[place] as value_sum,
            value_square_sums[place] as value_square_sum,
            last_at[place] as last_at,
            prior_clicks[prior_place]::double precision
            / nullif(prior_impressions[prior_place], 0) as prior_rate
        from placed
        offset 0
    )

    select
        request,
        events::real,
        {% for days in windows %}
            events_{{ days }}d::real,
        {% endfor %}
        {% for days in windows[:-1] %}
            {% set larger = windows[loop.index] %}
            trend(events_{{ days }}d, events_{{ larger }}d, {{ days }}, {{ larger }}),
        {% endfor %}
        value_mean(valued, value_sum),
        value_std(valued, value_sum, value_square_sum),
        days_between(micros(created_at), moment),
        days_between(last_at, moment),
        click_rate(clicks, impressions, prior_rate)
    from counted
$$;
