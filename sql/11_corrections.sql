-- Purpose: events that are changed or deleted, answers that are deleted, and items whose
-- categories change are remembered for the next refresh, which counts anew what they touch.
-- Grain: one row for each changed event as it was, and one as it is; one for each answer or item.
--
-- The first row of an event is how it was counted. A statement on a single partition fires
-- nothing: that is how old events leave while their sums stay (features/retention.py).

create or replace function interactions_remember_old() returns trigger
language plpgsql
as $$
begin
    insert into shortlist.interaction_corrections (
        interaction_id, user_key, item_key, occurred_at
    )
    select interaction_id, user_key, item_key, occurred_at from old_rows;
    return null;
end
$$;

create or replace function interactions_remember_both() returns trigger
language plpgsql
as $$
begin
    insert into shortlist.interaction_corrections (
        interaction_id, user_key, item_key, occurred_at
    )
    select interaction_id, user_key, item_key, occurred_at from old_rows;
    insert into shortlist.interaction_corrections (
        interaction_id, user_key, item_key, occurred_at
    )
    select interaction_id, user_key, item_key, occurred_at from new_rows;
    return null;
end
$$;

create or replace trigger interactions_remember_updated
after update on interactions
referencing old table as old_rows new table as new_rows
for each statement execute function interactions_remember_both();

create or replace trigger interactions_remember_deleted
after delete on interactions
referencing old table as old_rows
for each statement execute function interactions_remember_old();

create or replace function answers_remember_old() returns trigger
language plpgsql
as $$
begin
    insert into shortlist.answer_corrections (answer_id, served_at, user_id, item_keys)
    select answer_id, served_at, user_id, item_keys from old_rows;
    return null;
end
$$;

create or replace trigger answers_remember_deleted
after delete on answers
referencing old table as old_rows
for each statement execute function answers_remember_old();

create or replace function items_remember_categories() returns trigger
language plpgsql
as $$
begin
    insert into shortlist.category_corrections (item_key)
    select item_key
    from new_rows
    inner join old_rows using (item_key)
    where new_rows.categories is distinct from old_rows.categories;
    return null;
end
$$;

create or replace trigger items_remember_categories
after update on items
referencing old table as old_rows new table as new_rows
for each statement execute function items_remember_categories();
