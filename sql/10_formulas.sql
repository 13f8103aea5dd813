-- Purpose: each formula of the features once, for refreshed, live and as-of values alike.
-- Grain: scalar functions, inlined by the planner.

drop function if exists micros(timestamptz) cascade;

-- Microseconds since 1970; PostgreSQL stores no finer time. Exact from 1834 to 2106, where the
-- rounding of the two doubles stays below half a microsecond, and faster than numeric.
create function micros(moment timestamptz) returns bigint
language sql stable parallel safe
return (date_part('epoch', moment) * 1000000)::bigint;

drop function if exists unix_seconds(timestamptz) cascade;

create function unix_seconds(moment timestamptz) returns double precision
language sql stable parallel safe
return date_part('epoch', moment);

drop function if exists days_between(bigint, bigint) cascade;

-- Days from one moment to another, both in microseconds; 0 when the first lies after the second.
create function days_between(earlier bigint, later bigint) returns real
language sql immutable parallel safe
return (
    case when later < earlier then 0 else later - earlier end::double precision / 86400000000.0
)::real;

drop function if exists value_mean(bigint, double precision) cascade;

create function value_mean(valued bigint, value_sum double precision) returns real
language sql immutable parallel safe
return (value_sum / nullif(valued, 0))::real;

drop function if exists value_std(bigint, double precision, double precision) cascade;

-- Population standard deviation from sums: sqrt(E[v^2] - E[v]^2), never below 0 by rounding.
create function value_std(
    valued bigint, value_sum double precision, value_square_sum double precision
) returns real
language sql immutable parallel safe
return (
    case
        when valued > 0
            then sqrt(greatest(0, value_square_sum / valued - power(value_sum / valued, 2)))
    end
)::real;
