-- Purpose: what a refresh cannot add to is counted anew: what corrections touched, or everything.
-- Grain: stale_* hold one row for each key of a partial or sum to count anew.
--
-- Partials come from raw events, sums from partials. Days before refresh_point.raw_since have
-- no raw events any more: their partials stay as they are.

drop function if exists refresh_find_stale() cascade;

-- What corrections, withdrawn answers and changed categories touch.
create function refresh_find_stale() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table withdrawn_impressions on commit drop as
    select
        shown.item_key, (served_at at time zone 'utc')::date as event_day,
        count(*)::integer as impressions
    from withdrawn
    cross join lateral unnest(item_keys) as shown (item_key)
    group by 1, 2;

    create temp table stale_item_days on commit drop as
    select item_key, event_day
    from corrected
    where occurred_at >= run.raw_from
    union
    select item_key, event_day
    from withdrawn_impressions
    where event_day >= run.raw_day
    union
    select events.item_key, (events.occurred_at at time zone 'utc')::date
    from withdrawn
    inner join users using (user_id)
    inner join interactions as events
        on
            events.user_key = users.user_key
            and events.occurred_at >= withdrawn.served_at
            and events.occurred_at <= withdrawn.served_at + interval '24 hours'
            and events.item_key = any(withdrawn.item_keys)
    where events.occurred_at >= run.raw_from;

    create temp table stale_user_days on commit drop as
    select user_key, event_day
    from corrected
    where occurred_at >= run.raw_from
    union
    select events.user_key, (events.occurred_at at time zone 'utc')::date
    from recategorised
    inner join interactions as events using (item_key)
    where
        events.interaction_id <= run.watermark
        and events.occurred_at < run.as_of
        and events.occurred_at >= run.raw_from;

    create temp table stale_items on commit drop as
    select item_key from corrected
    union
    select item_key from stale_item_days
    union
    select item_key from withdrawn_impressions;
    create temp table stale_users on commit drop as
    select user_key from corrected
    union
    select user_key from stale_user_days;
    analyze withdrawn_impressions, stale_item_days, stale_user_days, stale_items, stale_users;
end
$$;

drop function if exists recount_impressions() cascade;

create function recount_impressions() returns void
language plpgsql
as $$
begin
    update item_daily
    set impressions = item_daily.impressions - gone.impressions
    from withdrawn_impressions as gone
    where item_daily.item_key = gone.item_key and item_daily.event_day = gone.event_day;
    update click_daily
    set impressions = click_daily.impressions - gone.impressions
    from (
        select event_day, sum(impressions) as impressions
        from withdrawn_impressions
        group by event_day
    ) as gone
    where click_daily.event_day = gone.event_day;
end
$$;

drop function if exists recount_item_days() cascade;

create function recount_item_days() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    update click_daily
    set clicks = click_daily.clicks - before.clicks
    from (
        select event_day, sum(clicks) as clicks
        from item_daily
        inner join stale_item_days using (item_key, event_day)
        group by event_day
    ) as before
    where click_daily.event_day = before.event_day;

    update item_daily
    set events = 0, valued = 0, clicks = 0, value_sum = 0, value_square_sum = 0, last_at = null
    from stale_item_days as stale
    where item_daily.item_key = stale.item_key and item_daily.event_day = stale.event_day;

    insert into item_daily (
        item_key, event_day, events, valued, clicks, value_sum, value_square_sum, last_at
    )
    select
        stale.item_key, stale.event_day, count(*), count(events.value),
        count(*) filter (where exists (
            select from users
            inner join answers using (user_id)
            where
                users.user_key = events.user_key
                and answers.served_at <= events.occurred_at
                and answers.served_at >= events.occurred_at - interval '24 hours'
                and answers.answer_id <= run.answer_watermark
                and events.item_key = any(answers.item_keys)
        )),
        coalesce(sum(events.value::double precision), 0),
        coalesce(sum(events.value::double precision * events.value::double precision), 0),
        max(events.occurred_at)
    from stale_item_days as stale
    inner join interactions as events
        on
            events.item_key = stale.item_key
            and events.occurred_at >= stale.event_day::timestamp at time zone 'utc'
            and events.occurred_at < (stale.event_day + 1)::timestamp at time zone 'utc'
    where events.interaction_id <= run.watermark and events.occurred_at < run.as_of
    group by stale.item_key, stale.event_day
    on conflict (item_key, event_day) do update set
        events = excluded.events,
        valued = excluded.valued,
        clicks = excluded.clicks,
        value_sum = excluded.value_sum,
        value_square_sum = excluded.value_square_sum,
        last_at = excluded.last_at;

    insert into click_daily as known (event_day, clicks)
    select event_day, sum(clicks)
    from item_daily
    inner join stale_item_days using (item_key, event_day)
    group by event_day
    having sum(clicks) > 0
    on conflict (event_day) do update set clicks = known.clicks + excluded.clicks;

    delete from item_daily
    using stale_item_days as stale
    where
        item_daily.item_key = stale.item_key
        and item_daily.event_day = stale.event_day
        and item_daily.events = 0
        and item_daily.impressions = 0;
    delete from click_daily
    where
        event_day in (select stale_item_days.event_day from stale_item_days)
        and impressions = 0
        and clicks = 0;
end
$$;

drop function if exists recount_user_days() cascade;

create function recount_user_days() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table stale_events on commit drop as
    select
        events.user_key, events.item_key, stale.event_day, events.occurred_at,
        events.value::double precision as value
    from stale_user_days as stale
    inner join interactions as events
        on
            events.user_key = stale.user_key
            and events.occurred_at >= stale.event_day::timestamp at time zone 'utc'
            and events.occurred_at < (stale.event_day + 1)::timestamp at time zone 'utc'
    where events.interaction_id <= run.watermark and events.occurred_at < run.as_of;

    delete from user_daily
    using stale_user_days as stale
    where user_daily.user_key = stale.user_key and user_daily.event_day = stale.event_day;
    insert into user_daily (
        user_key, event_day, events, valued, value_sum, value_square_sum, first_at, last_at
    )
    select
        user_key, event_day, count(*), count(value), coalesce(sum(value), 0),
        coalesce(sum(value * value), 0), min(occurred_at), max(occurred_at)
    from stale_events
    group by user_key, event_day;

    delete from user_category_daily as daily
    using stale_user_days as stale
    where daily.user_key = stale.user_key and daily.event_day = stale.event_day;
    insert into user_category_daily (user_key, event_day, events, value_sum, category)
    select
        events.user_key, events.event_day, count(*), coalesce(sum(events.value), 0), category.name
    from stale_events as events
    inner join items using (item_key)
    cross join lateral unnest(items.categories) as category (name)
    group by events.user_key, events.event_day, category.name;
end
$$;

drop function if exists recount_covisits() cascade;

-- The pairs of users with corrected events: those of now less those of the last refresh, when
-- each corrected event was as in its first correction.
create function recount_covisits() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table covisit_changes on commit drop as
    with affected as (
        select distinct user_key from corrected
    ),

    present as (
        select events.user_key, events.interaction_id, events.item_key, events.occurred_at
        from affected
        inner join interactions as events using (user_key)
        where events.interaction_id <= run.watermark
    ),

    counted as (
        select 1 as sign, present.*, present.occurred_at < run.as_of as counts
        from present
        union all
        select -1, present.*, present.occurred_at < run.old_as_of
        from present
        where
            present.interaction_id <= run.old_watermark
            and present.interaction_id not in (select corrected.interaction_id from corrected)
        union all
        select -1, user_key, interaction_id, item_key, occurred_at, occurred_at < run.old_as_of
        from (
            select distinct on (interaction_id) *
            from corrected
            where interaction_id <= run.old_watermark
            order by interaction_id, correction_id
        ) as first_corrections
    ),

    neighbours as (
        select
            counted.*,
            lag(item_key, 1) over arrival as first_key,
            lag(occurred_at, 1) over arrival as first_at,
            lag(counts, 1) over arrival as first_counts,
            lag(item_key, 2) over arrival as second_key,
            lag(occurred_at, 2) over arrival as second_at,
            lag(counts, 2) over arrival as second_counts
        from counted
        window arrival as (partition by sign, user_key order by interaction_id)
    )

    select
        earlier.item_key, neighbours.item_key as other_key,
        (greatest(earlier.at, occurred_at) at time zone 'utc')::date as event_day,
        sum(sign)::integer as pairs
    from neighbours
    cross join lateral (
        values (first_key, first_at, first_counts), (second_key, second_at, second_counts)
    ) as earlier (item_key, at, counts)
    where
        neighbours.counts
        and earlier.counts
        and earlier.item_key <> neighbours.item_key
        and earlier.at <= occurred_at + interval '1 hour'
        and occurred_at <= earlier.at + interval '1 hour'
    group by 1, 2, 3
    having sum(sign) <> 0;

    insert into covisit_daily as known (item_key, other_key, event_day, pairs)
    select item_key, other_key, event_day, pairs from covisit_changes
    on conflict (item_key, other_key, event_day) do update set
        pairs = known.pairs + excluded.pairs;
    delete from covisit_daily as known
    using covisit_changes as changes
    where
        known.item_key = changes.item_key
        and known.other_key = changes.other_key
        and known.event_day = changes.event_day
        and known.pairs <= 0;
end
$$;

drop function if exists recount_item_totals() cascade;

create function recount_item_totals() returns void
language plpgsql
as $$
declare
    run record;
    starts_at timestamptz;
    edge_day date;
begin
    select * into run from refresh_run;
    create temp table stale_windows (
        item_key integer, place integer, events integer
    ) on commit drop;
    for place in 1 .. cardinality(run.window_days) loop
        starts_at := run.as_of - run.window_days[place] * interval '24 hours';
        edge_day := (starts_at at time zone 'utc')::date;
        insert into stale_windows
        select item_key, place, sum(events)
        from (
            select item_key, events
            from stale_items
            inner join item_daily using (item_key)
            where event_day > edge_day
            union all
            select item_key, 1
            from stale_items
            inner join interactions using (item_key)
            where
                occurred_at >= starts_at
                and occurred_at < least(
                    run.as_of, (edge_day + 1)::timestamp at time zone 'utc'
                )
                and interaction_id <= run.watermark
        ) as parts
        group by item_key;
    end loop;

    insert into item_totals (
        item_key, events, valued, impressions, clicks, value_sum, value_square_sum, last_at,
        window_events
    )
    select
        sums.*,
        coalesce(windows.events, array_fill(0, array[cardinality(run.window_days)]))
    from (
        select
            item_key, sum(events), sum(valued), sum(impressions), sum(clicks), sum(value_sum),
            sum(value_square_sum), max(last_at)
        from stale_items
        inner join item_daily using (item_key)
        group by item_key
    ) as sums
    left join (
        select
            item_key,
            array_agg(coalesce(events, 0) order by place) as events
        from (select distinct item_key from stale_windows) as touched
        cross join generate_series(1, cardinality(run.window_days)) as places (place)
        left join stale_windows using (item_key, place)
        group by item_key
    ) as windows using (item_key)
    on conflict (item_key) do update set
        events = excluded.events,
        valued = excluded.valued,
        impressions = excluded.impressions,
        clicks = excluded.clicks,
        value_sum = excluded.value_sum,
        value_square_sum = excluded.value_square_sum,
        last_at = excluded.last_at,
        window_events = excluded.window_events
    where item_totals.* is distinct from excluded.*;
    delete from item_totals
    using stale_items
    where
        item_totals.item_key = stale_items.item_key
        and not exists (
            select from item_daily where item_daily.item_key = stale_items.item_key
        );
end
$$;

drop function if exists recount_user_category_totals() cascade;

create function recount_user_category_totals() returns void
language plpgsql
as $$
begin
    delete from user_category_totals
    where user_key in (select stale_users.user_key from stale_users);
    insert into user_category_totals (user_key, events, value_sum, category)
    select user_key, sum(events), sum(value_sum), category
    from stale_users
    inner join user_category_daily using (user_key)
    group by user_key, category;
end
$$;

drop function if exists recount_user_totals() cascade;

-- Where raw events were dropped, what was seen in them is known from the packed items only, so
-- these stay even when a correction takes the last event with an item away.
create function recount_user_totals() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    insert into user_totals (
        user_key, first_at, last_at, events, valued, active_days, value_sum, value_square_sum,
        seen_items, seen_compacted, category_names, category_sums
    )
    select
        sums.*, coalesce(seen.packed, ''), coalesce(seen.items, 0), categories.names,
        categories.packed
    from (
        select
            user_key, min(first_at), max(last_at), sum(events), sum(valued), count(*),
            sum(value_sum), sum(value_square_sum)
        from stale_users
        inner join user_daily using (user_key)
        group by user_key
    ) as sums
    left join (
        select
            user_key, count(*) as items,
            string_agg(int4send(item_key), '' order by item_key) as packed
        from (
            select user_key, item_key
            from stale_users
            inner join interactions using (user_key)
            where interaction_id <= run.watermark and occurred_at < run.as_of
            union
            select user_key, substring(known.seen_items from place for 4)::integer
            from (
                select user_key, seen_items || ''::bytea as seen_items
                from stale_users
                inner join user_totals using (user_key)
                where run.raw_since is not null
                offset 0
            ) as known
            cross join lateral generate_series(1, octet_length(known.seen_items), 4)
                as places (place)
        ) as pairs
        group by user_key
    ) as seen using (user_key)
    left join (
        select
            user_key,
            array_agg(category order by category) as names,
            string_agg(
                float4send(events::real) || float4send(value_sum::real), '' order by category
            ) as packed
        from stale_users
        inner join user_category_totals using (user_key)
        group by user_key
    ) as categories using (user_key)
    on conflict (user_key) do update set
        first_at = excluded.first_at,
        last_at = excluded.last_at,
        events = excluded.events,
        valued = excluded.valued,
        active_days = excluded.active_days,
        value_sum = excluded.value_sum,
        value_square_sum = excluded.value_square_sum,
        seen_items = excluded.seen_items,
        seen_compacted = excluded.seen_compacted,
        category_names = excluded.category_names,
        category_sums = excluded.category_sums
    where user_totals.* is distinct from excluded.*;
    delete from user_totals
    using stale_users
    where
        user_totals.user_key = stale_users.user_key
        and not exists (
            select from user_daily where user_daily.user_key = stale_users.user_key
        );
end
$$;

drop function if exists recount_stale() cascade;

-- A change of the windows counts those of every item; most refreshes find nothing to do here.
create function recount_stale() returns void
language plpgsql
as $$
begin
    if exists (select from withdrawn_impressions) then
        perform recount_impressions();
    end if;
    if exists (select from stale_item_days) then
        perform recount_item_days();
    end if;
    if exists (select from stale_user_days) then
        perform recount_user_days();
    end if;
    if exists (select from corrected) then
        perform recount_covisits();
    end if;
    if (select every_window from refresh_run) then
        insert into stale_items
        select item_daily.item_key from item_daily
        except
        select stale_items.item_key from stale_items;
        analyze stale_items;
    end if;
    if exists (select from stale_items) then
        perform recount_item_totals();
    end if;
    if exists (select from stale_users) then
        perform recount_user_category_totals(), recount_user_totals();
    end if;
end
$$;
