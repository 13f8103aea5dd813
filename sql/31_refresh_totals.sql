-- Purpose: a refresh moves the sums over all days forward by what is new.
-- Grain: one function for each table; they read the temporary tables of 30_refresh.sql.

drop function if exists add_counts(integer[], integer[]) cascade;

create function add_counts(counts integer[], added integer[]) returns integer[]
language sql immutable
return (
    select array_agg(coalesce(first_count, 0) + coalesce(second_count, 0) order by place)
    from unnest(counts, added) with ordinality as pair (first_count, second_count, place)
);

drop function if exists refresh_item_totals() cascade;

-- A window gains the new events in it, and loses the counted ones that it moved past.
create function refresh_item_totals() returns void
language plpgsql
as $$
declare
    run record;
    width interval;
begin
    select * into run from refresh_run;
    create temp table new_window_events (
        item_key integer, place integer, events integer
    ) on commit drop;
    if not run.every_window then
        for place in 1 .. cardinality(run.window_days) loop
            width := run.window_days[place] * interval '24 hours';
            insert into new_window_events
            select item_key, place, count(*)
            from new_events
            where occurred_at >= run.as_of - width
            group by item_key;
            insert into new_window_events
            select item_key, place, -count(*)
            from interactions
            where
                occurred_at >= run.old_as_of - width
                and occurred_at < least(run.old_as_of, run.as_of - width)
                and interaction_id <= run.old_watermark
            group by item_key;
        end loop;
    end if;

    insert into item_totals as known (
        item_key, events, valued, impressions, clicks, value_sum, value_square_sum, last_at,
        window_events
    )
    select
        sums.item_key, sums.events, sums.valued, sums.impressions, sums.clicks, sums.value_sum,
        sums.value_square_sum, sums.last_at, windows.events
    from (
        select
            item_key, sum(events) as events, sum(valued) as valued,
            sum(impressions) as impressions, sum(clicks) as clicks,
            sum(value_sum) as value_sum, sum(value_square_sum) as value_square_sum,
            max(last_at) as last_at
        from (
            select
                item_key, count(*) as events, count(value) as valued, 0 as impressions,
                0 as clicks, coalesce(sum(value), 0) as value_sum,
                coalesce(sum(value * value), 0) as value_square_sum,
                max(occurred_at) as last_at
            from new_events
            group by item_key
            union all
            select item_key, 0, 0, impressions, clicks, 0, 0, null from new_clicks
            union all
            select distinct item_key, 0, 0, 0, 0, 0, 0, null::timestamptz
            from new_window_events
        ) as parts
        group by item_key
    ) as sums
    inner join (
        select
            touched.item_key,
            array_agg(coalesce(counted.events, 0) order by places.place) as events
        from (
            select item_key from new_events
            union
            select item_key from new_clicks
            union
            select item_key from new_window_events
        ) as touched
        cross join generate_series(1, cardinality(run.window_days)) as places (place)
        left join (
            select item_key, place, sum(events)::integer as events
            from new_window_events
            group by item_key, place
        ) as counted using (item_key, place)
        group by touched.item_key
    ) as windows using (item_key)
    on conflict (item_key) do update set
        events = known.events + excluded.events,
        valued = known.valued + excluded.valued,
        impressions = known.impressions + excluded.impressions,
        clicks = known.clicks + excluded.clicks,
        value_sum = known.value_sum + excluded.value_sum,
        value_square_sum = known.value_square_sum + excluded.value_square_sum,
        last_at = greatest(known.last_at, excluded.last_at),
        window_events = add_counts(known.window_events, excluded.window_events);
end
$$;

drop function if exists refresh_user_category_totals() cascade;

create function refresh_user_category_totals() returns void
language plpgsql
as $$
begin
    insert into user_category_totals as known (user_key, events, value_sum, category)
    select user_key, sum(events), sum(value_sum), category
    from new_user_categories
    group by user_key, category
    order by user_key, category
    on conflict (user_key, category) do update set
        events = known.events + excluded.events,
        value_sum = known.value_sum + excluded.value_sum;
end
$$;

drop function if exists pack_categories(bigint) cascade;

-- float4 events and float4 value_sum for each name; null for a user without categories.
create function pack_categories(wanted bigint)
returns table (names text[], packed bytea)
language sql stable
as $$
    select
        array_agg(category order by category),
        string_agg(
            float4send(events::real) || float4send(value_sum::real), '' order by category
        )
    from user_category_totals
    where user_key = wanted
$$;

drop function if exists refresh_user_totals() cascade;

-- Seen items are appended; when half of them may be repetitions, they are made distinct, so a
-- user costs what is new, and once in a while what was seen.
create function refresh_user_totals() returns void
language plpgsql
as $$
begin
    insert into user_totals as known (
        user_key, first_at, last_at, events, valued, active_days, seen_compacted, value_sum,
        value_square_sum, seen_items, category_names, category_sums
    )
    select
        sums.user_key, sums.first_at, sums.last_at, sums.events, sums.valued, sums.active_days,
        seen.items, sums.value_sum, sums.value_square_sum, seen.packed, categories.names,
        categories.packed
    from new_user_sums as sums
    inner join (
        select
            user_key, count(distinct item_key) as items,
            string_agg(distinct int4send(item_key), '') as packed
        from new_events
        group by user_key
    ) as seen using (user_key)
    cross join lateral pack_categories(sums.user_key) as categories
    order by sums.user_key
    on conflict (user_key) do update set
        first_at = least(known.first_at, excluded.first_at),
        last_at = greatest(known.last_at, excluded.last_at),
        events = known.events + excluded.events,
        valued = known.valued + excluded.valued,
        active_days = known.active_days + excluded.active_days,
        value_sum = known.value_sum + excluded.value_sum,
        value_square_sum = known.value_square_sum + excluded.value_square_sum,
        seen_items = known.seen_items || excluded.seen_items,
        category_names = excluded.category_names,
        category_sums = excluded.category_sums;

    update user_totals
    set seen_items = packed.items, seen_compacted = octet_length(packed.items) / 4
    from (
        select long.user_key, string_agg(distinct item.packed, '') as items
        from (
            -- "|| ''" unpacks the value once, not for each item.
            select user_totals.user_key, user_totals.seen_items || ''::bytea as seen_items
            from user_totals
            where
                user_totals.user_key in (select new_user_sums.user_key from new_user_sums)
                and octet_length(user_totals.seen_items) / 4 > 2 * user_totals.seen_compacted + 64
            offset 0
        ) as long
        cross join lateral generate_series(1, octet_length(long.seen_items), 4) as places (place)
        cross join lateral (
            select substring(long.seen_items from places.place for 4) as packed
        ) as item
        group by long.user_key
    ) as packed
    where user_totals.user_key = packed.user_key;
end
$$;
