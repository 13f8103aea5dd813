-- Purpose: a refresh adds what is new to the partials by day: one function for each table.
-- Grain: refresh_begin puts what is new into temporary tables, one row for each event or answer,
-- for the functions that follow in the same transaction. features/refresh.py calls them in order.
--
-- New are the events that became countable: those after the old watermark, however late, and
-- those that lay in the future. Nothing here reads the history but through an index on what is
-- new, so a refresh costs what is new whatever was there before.

drop function if exists refresh_begin(
    bigint, bigint, timestamptz, smallint[], boolean
) cascade;

-- everything: count anew from raw events, as far as they are there; what is new is then only
-- what came too late for the days that were dropped.
create function refresh_begin(
    watermark bigint,
    answer_watermark bigint,
    as_of timestamptz,
    window_days smallint[],
    everything boolean
) returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    run record;
begin
    create temp table refresh_run on commit drop as
    select
        point.watermark as old_watermark,
        point.answer_watermark as old_answer_watermark,
        point.as_of as old_as_of,
        point.window_days as old_window_days,
        point.raw_since,
        coalesce(point.raw_since, '-infinity'::date) as raw_day,
        coalesce(
            point.raw_since::timestamp at time zone 'utc', '-infinity'::timestamptz
        ) as raw_from,
        refresh_begin.watermark,
        refresh_begin.answer_watermark,
        refresh_begin.as_of,
        refresh_begin.window_days,
        refresh_begin.everything,
        -- Windows of other lengths are counted anew for every item.
        refresh_begin.everything
        or point.window_days <> refresh_begin.window_days as every_window
    from refresh_point as point;
    select * into run from refresh_run;

    create temp table new_events (
        interaction_id bigint, user_key bigint, item_key integer, occurred_at timestamptz,
        event_day date, value double precision
    ) on commit drop;
    create temp table new_answers (
        answer_id bigint, served_at timestamptz, user_id text, item_keys integer[]
    ) on commit drop;
    perform refresh_find_events(), refresh_find_answers();

    create temp table corrected on commit drop as
    with taken as (delete from interaction_corrections returning *)
    select
        correction_id, interaction_id, user_key, item_key, occurred_at,
        (occurred_at at time zone 'utc')::date as event_day
    from taken;
    create temp table recategorised on commit drop as
    with taken as (delete from category_corrections returning item_key)
    select distinct item_key from taken;

    create temp table withdrawn on commit drop as
    with taken as (delete from answer_corrections returning *)
    select served_at, user_id, item_keys
    from taken
    where answer_id <= run.old_answer_watermark and served_at < run.old_as_of;

    analyze new_events, new_answers, corrected, recategorised, withdrawn;
end
$$;

drop function if exists refresh_find_events() cascade;

-- The planner cannot know how few rows lie behind the watermark and would read the whole table.
create function refresh_find_events() returns void
language plpgsql
set enable_seqscan = off
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    insert into new_events
    select
        interaction_id, user_key, item_key, occurred_at,
        (occurred_at at time zone 'utc')::date, value
    from interactions
    where
        interaction_id > run.old_watermark
        and interaction_id <= run.watermark
        and occurred_at < case when run.everything then run.raw_from else run.as_of end;
    insert into new_events
    select
        interaction_id, user_key, item_key, occurred_at,
        (occurred_at at time zone 'utc')::date, value
    from interactions
    where
        occurred_at >= run.old_as_of
        and occurred_at < case when run.everything then run.raw_from else run.as_of end
        and interaction_id <= run.old_watermark;
end
$$;

drop function if exists refresh_find_answers() cascade;

create function refresh_find_answers() returns void
language plpgsql
set enable_seqscan = off
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    insert into new_answers
    select answer_id, served_at, user_id, item_keys
    from answers
    where
        answer_id > run.old_answer_watermark
        and answer_id <= run.answer_watermark
        and served_at < case when run.everything then run.raw_from else run.as_of end;
    insert into new_answers
    select answer_id, served_at, user_id, item_keys
    from answers
    where
        served_at >= run.old_as_of
        and served_at < case when run.everything then run.raw_from else run.as_of end
        and answer_id <= run.old_answer_watermark;
end
$$;

drop function if exists refresh_clicks() cascade;

-- Impressions and clicks by item and day, for the two functions after it. A new event is a click
-- when any answer precedes it; a counted one becomes a click when none did before.
create function refresh_clicks() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table new_clicks on commit drop as
    with clicks as (
        select events.item_key, events.event_day
        from new_events as events
        inner join users using (user_key)
        where exists (
            select from answers
            where
                answers.user_id = users.user_id
                and answers.served_at <= events.occurred_at
                and answers.served_at >= events.occurred_at - interval '24 hours'
                and answers.answer_id <= run.answer_watermark
                and events.item_key = any(answers.item_keys)
        )
        union all
        select distinct_events.item_key, distinct_events.event_day
        from (
            select distinct
                events.interaction_id, events.item_key,
                (events.occurred_at at time zone 'utc')::date as event_day
            from new_answers as late
            inner join users using (user_id)
            inner join interactions as events
                on
                    events.user_key = users.user_key
                    and events.occurred_at >= late.served_at
                    and events.occurred_at <= late.served_at + interval '24 hours'
                    and events.item_key = any(late.item_keys)
            where
                events.interaction_id <= run.old_watermark
                and events.occurred_at < run.old_as_of
                and not exists (
                    select from answers
                    where
                        answers.user_id = users.user_id
                        and answers.served_at <= events.occurred_at
                        and answers.served_at >= events.occurred_at - interval '24 hours'
                        and answers.answer_id <= run.old_answer_watermark
                        and answers.served_at < run.old_as_of
                        and events.item_key = any(answers.item_keys)
                )
        ) as distinct_events
    ),

    parts as (
        select item_key, event_day, 0 as impressions, 1 as clicks from clicks
        union all
        select shown.item_key, (served_at at time zone 'utc')::date, 1, 0
        from new_answers
        cross join lateral unnest(item_keys) as shown (item_key)
    )

    select item_key, event_day, sum(impressions)::integer as impressions,
        sum(clicks)::integer as clicks
    from parts
    group by item_key, event_day;

    insert into click_daily as known (event_day, impressions, clicks)
    select event_day, sum(impressions), sum(clicks)
    from new_clicks
    group by event_day
    on conflict (event_day) do update set
        impressions = known.impressions + excluded.impressions,
        clicks = known.clicks + excluded.clicks;
end
$$;

drop function if exists refresh_item_daily() cascade;

create function refresh_item_daily() returns void
language plpgsql
as $$
begin
    insert into item_daily as known (
        item_key, event_day, events, valued, impressions, clicks, value_sum, value_square_sum,
        last_at
    )
    select
        item_key, event_day, sum(events), sum(valued), sum(impressions), sum(clicks),
        sum(value_sum), sum(value_square_sum), max(last_at)
    from (
        select
            item_key, event_day, count(*) as events, count(value) as valued, 0 as impressions,
            0 as clicks, coalesce(sum(value), 0) as value_sum,
            coalesce(sum(value * value), 0) as value_square_sum, max(occurred_at) as last_at
        from new_events
        group by item_key, event_day
        union all
        select item_key, event_day, 0, 0, impressions, clicks, 0, 0, null
        from new_clicks
    ) as parts
    group by item_key, event_day
    order by item_key, event_day
    on conflict (item_key, event_day) do update set
        events = known.events + excluded.events,
        valued = known.valued + excluded.valued,
        impressions = known.impressions + excluded.impressions,
        clicks = known.clicks + excluded.clicks,
        value_sum = known.value_sum + excluded.value_sum,
        value_square_sum = known.value_square_sum + excluded.value_square_sum,
        last_at = greatest(known.last_at, excluded.last_at);
end
$$;

drop function if exists refresh_user_daily() cascade;

-- active_days of new_user_sums: days that the user had no event on so far.
create function refresh_user_daily() returns void
language plpgsql
as $$
begin
    create temp table new_user_sums on commit drop as
    with by_day as (
        select
            user_key, event_day, count(*) as events, count(value) as valued,
            coalesce(sum(value), 0) as value_sum,
            coalesce(sum(value * value), 0) as value_square_sum,
            min(occurred_at) as first_at, max(occurred_at) as last_at
        from new_events
        group by user_key, event_day
    ),

    stored as (
        insert into user_daily as known (
            user_key, event_day, events, valued, value_sum, value_square_sum, first_at, last_at
        )
        select
            user_key, event_day, events, valued, value_sum, value_square_sum, first_at, last_at
        from by_day
        order by user_key, event_day
        on conflict (user_key, event_day) do update set
            events = known.events + excluded.events,
            valued = known.valued + excluded.valued,
            value_sum = known.value_sum + excluded.value_sum,
            value_square_sum = known.value_square_sum + excluded.value_square_sum,
            first_at = least(known.first_at, excluded.first_at),
            last_at = greatest(known.last_at, excluded.last_at)
        returning new.user_key, new.event_day, (old.user_key is null)::integer as is_first
    )

    select
        user_key, sum(events)::integer as events, sum(valued)::integer as valued,
        sum(value_sum) as value_sum, sum(value_square_sum) as value_square_sum,
        min(first_at) as first_at, max(last_at) as last_at,
        sum(is_first)::integer as active_days
    from by_day
    inner join stored using (user_key, event_day)
    group by user_key;
    analyze new_user_sums;
end
$$;

drop function if exists refresh_user_category_daily() cascade;

create function refresh_user_category_daily() returns void
language plpgsql
as $$
begin
    create temp table new_user_categories on commit drop as
    select
        events.user_key, events.event_day, category.name as category,
        count(*)::integer as events, coalesce(sum(events.value), 0) as value_sum
    from new_events as events
    inner join items using (item_key)
    cross join lateral unnest(items.categories) as category (name)
    group by events.user_key, events.event_day, category.name;

    insert into user_category_daily as known (
        user_key, event_day, events, value_sum, category
    )
    select user_key, event_day, events, value_sum, category
    from new_user_categories
    order by user_key, event_day, category
    on conflict (user_key, event_day, category) do update set
        events = known.events + excluded.events,
        value_sum = known.value_sum + excluded.value_sum;
end
$$;

drop function if exists refresh_covisit_daily() cascade;

-- An event pairs with each of the two that the user's events have before it, in the order of
-- arrival, counted or not; the pair counts when both do. A new event that had arrived before
-- may be the earlier one of a pair whose later one is counted already. Users with corrected
-- events are left to recount_covisits.
create function refresh_covisit_daily() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    insert into covisit_daily as known (item_key, other_key, event_day, pairs)
    select
        item_key, other_key, (greatest(at, other_at) at time zone 'utc')::date as event_day,
        count(*)
    from (
        select
            earlier.item_key, events.item_key as other_key, earlier.occurred_at as at,
            events.occurred_at as other_at
        from new_events as events
        cross join lateral (
            select interactions.item_key, interactions.occurred_at
            from interactions
            where
                interactions.user_key = events.user_key
                and interactions.interaction_id < events.interaction_id
            order by interactions.interaction_id desc
            limit 2
        ) as earlier
        where
            earlier.occurred_at < run.as_of
            and events.user_key not in (select corrected.user_key from corrected)
        union all
        select events.item_key, later.item_key, events.occurred_at, later.occurred_at
        from new_events as events
        cross join lateral (
            select interactions.item_key, interactions.occurred_at, interactions.interaction_id
            from interactions
            where
                interactions.user_key = events.user_key
                and interactions.interaction_id > events.interaction_id
            order by interactions.interaction_id
            limit 2
        ) as later
        where
            events.interaction_id <= run.old_watermark
            and later.interaction_id <= run.old_watermark
            and later.occurred_at < run.old_as_of
            and events.user_key not in (select corrected.user_key from corrected)
    ) as pairs
    where
        item_key <> other_key
        and at <= other_at + interval '1 hour'
        and other_at <= at + interval '1 hour'
    group by item_key, other_key, event_day
    order by item_key, other_key, event_day
    on conflict (item_key, other_key, event_day) do update set
        pairs = known.pairs + excluded.pairs;
end
$$;
