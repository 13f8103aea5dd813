-- Purpose: every partial from raw events and answers, for `shortlist features refresh --full` and
-- for the first refresh.
-- Grain: one function for each partial; the sums follow from them (32_recompute.sql).
--
-- Each counts into the temporary table fresh; only the differences are written, so counting anew
-- what was right leaves no dead rows, and readers see the old rows until the commit, which they
-- would not after truncate.

drop function if exists rebuild_store(text, text[]) cascade;

-- Make the rows of a table, from the first day with raw events on, those of fresh.
create function rebuild_store(target text, keys text[]) returns void
language plpgsql
as $$
declare
    first_day date := (select raw_day from refresh_run);
    all_columns text;
    same_key text;
    same_values text;
begin
    analyze fresh;
    select
        string_agg(quote_ident(attname), ', ' order by attnum),
        string_agg(format('known.%1$I = fresh.%1$I', attname), ' and ' order by attnum)
            filter (where attname = any(keys)),
        format(
            '(%s) is not distinct from (%s)',
            string_agg(format('known.%I', attname), ', ' order by attnum)
                filter (where attname <> all(keys)),
            string_agg(format('fresh.%I', attname), ', ' order by attnum)
                filter (where attname <> all(keys))
        )
    into all_columns, same_key, same_values
    from pg_attribute
    where attrelid = 'fresh'::regclass and attnum > 0;
    execute format(
        'delete from %I as known where %s not exists (select from fresh where %s and %s)',
        target, case when 'event_day' = any(keys) then 'event_day >= $1 and' else '' end,
        same_key, same_values
    ) using first_day;
    execute format(
        'insert into %1$I (%2$s) select %2$s from fresh'
        ' where not exists (select from %1$I as known where %3$s) order by %4$s',
        target, all_columns, same_key,
        (select string_agg(quote_ident(name), ', ') from unnest(keys) as name)
    );
    drop table fresh;
end
$$;

drop function if exists rebuild_item_daily() cascade;

create function rebuild_item_daily() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table fresh (like item_daily) on commit drop;
    insert into fresh (
        item_key, event_day, events, valued, impressions, clicks, value_sum, value_square_sum,
        last_at
    )
    select
        item_key, event_day, sum(events), sum(valued), sum(impressions), sum(clicks),
        sum(value_sum), sum(value_square_sum), max(last_at)
    from (
        select
            item_key, (occurred_at at time zone 'utc')::date as event_day, count(*) as events,
            count(value) as valued, 0 as impressions, 0 as clicks,
            coalesce(sum(value::double precision), 0) as value_sum,
            coalesce(sum(value::double precision * value::double precision), 0)
                as value_square_sum,
            max(occurred_at) as last_at
        from interactions
        where
            interaction_id <= run.watermark
            and occurred_at >= run.raw_from
            and occurred_at < run.as_of
        group by 1, 2
        union all
        select shown.item_key, (served_at at time zone 'utc')::date, 0, 0, count(*), 0, 0, 0, null
        from answers
        cross join lateral unnest(item_keys) as shown (item_key)
        where
            answer_id <= run.answer_watermark
            and served_at >= run.raw_from
            and served_at < run.as_of
        group by 1, 2
        union all
        select item_key, event_day, 0, 0, 0, count(*), 0, 0, null
        from (
            select distinct
                events.interaction_id, events.item_key,
                (events.occurred_at at time zone 'utc')::date as event_day
            from answers
            inner join users using (user_id)
            inner join interactions as events
                on
                    events.user_key = users.user_key
                    and events.occurred_at >= answers.served_at
                    and events.occurred_at <= answers.served_at + interval '24 hours'
                    and events.item_key = any(answers.item_keys)
            where
                answers.answer_id <= run.answer_watermark
                and events.interaction_id <= run.watermark
                and events.occurred_at >= run.raw_from
                and events.occurred_at < run.as_of
        ) as clicks
        group by 1, 2
    ) as parts
    group by item_key, event_day;
    perform rebuild_store('item_daily', '{item_key, event_day}');

    create temp table fresh (like click_daily) on commit drop;
    insert into fresh (event_day, impressions, clicks)
    select event_day, sum(impressions), sum(clicks)
    from item_daily
    where event_day >= run.raw_day and (impressions > 0 or clicks > 0)
    group by event_day;
    perform rebuild_store('click_daily', '{event_day}');
end
$$;

drop function if exists rebuild_user_daily() cascade;

create function rebuild_user_daily() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table fresh (like user_daily) on commit drop;
    insert into fresh (
        user_key, event_day, events, valued, value_sum, value_square_sum, first_at, last_at
    )
    select
        user_key, (occurred_at at time zone 'utc')::date as event_day, count(*), count(value),
        coalesce(sum(value::double precision), 0),
        coalesce(sum(value::double precision * value::double precision), 0),
        min(occurred_at), max(occurred_at)
    from interactions
    where
        interaction_id <= run.watermark
        and occurred_at >= run.raw_from
        and occurred_at < run.as_of
    group by user_key, event_day;
    perform rebuild_store('user_daily', '{user_key, event_day}');
end
$$;

drop function if exists rebuild_user_category_daily() cascade;

create function rebuild_user_category_daily() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table fresh (like user_category_daily) on commit drop;
    insert into fresh (user_key, event_day, events, value_sum, category)
    select
        events.user_key, (events.occurred_at at time zone 'utc')::date as event_day, count(*),
        coalesce(sum(events.value::double precision), 0), category.name
    from interactions as events
    inner join items using (item_key)
    cross join lateral unnest(items.categories) as category (name)
    where
        events.interaction_id <= run.watermark
        and events.occurred_at >= run.raw_from
        and events.occurred_at < run.as_of
    group by events.user_key, event_day, category.name;
    perform rebuild_store('user_category_daily', '{user_key, event_day, category}');
end
$$;

drop function if exists rebuild_covisit_daily() cascade;

create function rebuild_covisit_daily() returns void
language plpgsql
as $$
declare
    run record;
begin
    select * into run from refresh_run;
    create temp table fresh (like covisit_daily) on commit drop;
    insert into fresh (item_key, other_key, event_day, pairs)
    select
        earlier.item_key, events.item_key,
        (greatest(earlier.at, events.occurred_at) at time zone 'utc')::date as event_day, count(*)
    from (
        select
            item_key, occurred_at,
            lag(item_key, 1) over arrival as first_key,
            lag(occurred_at, 1) over arrival as first_at,
            lag(item_key, 2) over arrival as second_key,
            lag(occurred_at, 2) over arrival as second_at
        from interactions
        where interaction_id <= run.watermark
        window arrival as (partition by user_key order by interaction_id)
    ) as events
    cross join lateral (
        values (first_key, first_at), (second_key, second_at)
    ) as earlier (item_key, at)
    where
        earlier.item_key <> events.item_key
        and earlier.at <= events.occurred_at + interval '1 hour'
        and events.occurred_at <= earlier.at + interval '1 hour'
        and greatest(earlier.at, events.occurred_at) >= run.raw_from
        and greatest(earlier.at, events.occurred_at) < run.as_of
    group by earlier.item_key, events.item_key, event_day;
    perform rebuild_store('covisit_daily', '{item_key, other_key, event_day}');
end
$$;

drop function if exists rebuild_user_category_totals() cascade;

create function rebuild_user_category_totals() returns void
language plpgsql
as $$
begin
    create temp table fresh (like user_category_totals) on commit drop;
    insert into fresh (user_key, events, value_sum, category)
    select user_key, sum(events), sum(value_sum), category
    from user_category_daily
    group by user_key, category;
    perform rebuild_store('user_category_totals', '{user_key, category}');
end
$$;

drop function if exists rebuild_find_keys() cascade;

-- Every key is stale: what recount_item_totals and recount_user_totals then work on.
create function rebuild_find_keys() returns void
language plpgsql
as $$
begin
    create temp table stale_items on commit drop as
    select item_key from item_daily
    union
    select item_key from item_totals;
    create temp table stale_users on commit drop as
    select user_key from user_daily
    union
    select user_key from user_totals;
    analyze stale_items, stale_users;
end
$$;
