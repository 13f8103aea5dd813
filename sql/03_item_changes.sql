-- Purpose: number every change of the catalogue so that a follower never misses one.
-- Grain: items.change_id grows by one for each inserted or updated row.
--
-- The lock makes writers of items wait for each other until commit. Without it a transaction
-- could take a lower number, commit later, and never be seen by a follower that already read
-- a higher one. Readers wait for nothing.

create sequence item_changes as bigint;

create function items_wait_for_turn() returns trigger
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('shortlist.item_changes', 0));
    return null;
end
$$;

create function items_number_change() returns trigger
language plpgsql
as $$
begin
    new.change_id := nextval('shortlist.item_changes');
    new.updated_at := clock_timestamp();
    return new;
end
$$;

-- Before the statement touches a row: a writer that held a row and then waited for its turn
-- would stand in the way of the one whose turn it is.
create trigger items_wait_for_turn
before insert or update on items
for each statement execute function items_wait_for_turn();

create trigger items_number_change
before insert or update on items
for each row execute function items_number_change();
