-- Purpose: every trace of a person leaves, from the sums over all people too.
-- Grain: erase_user gives one row for each table: how many of the user's rows it deleted.

drop function if exists erase_user(text) cascade;

-- Runs as read committed: each statement sees what was committed before it, also while it waited
-- for a lock.
create function erase_user(erased_id text)
returns table (table_name text, deleted bigint)
language plpgsql
set search_path = shortlist, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    erased_key bigint;
    point refresh_point%rowtype;
begin
    -- No refresh and no load at the same time; whoever writes an event of this user waits for the
    -- user's row, whoever corrects one for the corrections.
    perform pg_advisory_xact_lock(hashtextextended('shortlist.refresh', 0));
    perform pg_advisory_xact_lock(hashtextextended('shortlist.load', 0));
    lock table interaction_corrections in share row exclusive mode;
    -- An answer that waits in a replica is written later, and finds the row of erasures.
    lock table only answers, served_features in share row exclusive mode;
    select user_key into erased_key from users where user_id = erased_id for update;
    select * into point from refresh_point;

    insert into erasures (user_hash, erased_at)
    values (sha256(convert_to(erased_id, 'utf8')), clock_timestamp())
    on conflict (user_hash) do update set erased_at = excluded.erased_at;
    -- A source keeps the rows of who was erased: their hashes keep them out.
    delete from erasures
    where erased_at < now() - interval '30 days' and not exists (select from sources);

    return query
    with gone as (delete from answers where user_id = erased_id returning 1)
    select 'answers', count(*) from gone;
    return query
    with gone as (delete from served_features where user_id = erased_id returning 1)
    select 'served_features', count(*) from gone;
    return query
    with gone as (
        delete from event_ids
        where event_id in (
            select event_id from interactions where user_key = erased_key
        )
        returning 1
    )
    select 'event_ids', count(*) from gone;
    return query
    with gone as (delete from interactions where user_key = erased_key returning 1)
    select 'interactions', count(*) from gone;
    return query
    with gone as (delete from user_daily where user_key = erased_key returning 1)
    select 'user_daily', count(*) from gone;
    return query
    with gone as (delete from user_category_daily where user_key = erased_key returning 1)
    select 'user_category_daily', count(*) from gone;
    return query
    with gone as (delete from user_category_totals where user_key = erased_key returning 1)
    select 'user_category_totals', count(*) from gone;
    return query
    with gone as (delete from user_totals where user_key = erased_key returning 1)
    select 'user_totals', count(*) from gone;
    return query
    with gone as (delete from users where user_key = erased_key returning 1)
    select 'users', count(*) from gone;

    -- What was deleted waits as corrections now: what it was counted in is counted anew, up to
    -- the moment of the last refresh.
    perform refresh_begin(
        point.watermark, point.answer_watermark, point.as_of, point.window_days, false
    );
    perform refresh_find_stale();
    perform recount_stale();
end
$$;
