"""The tables and feature views, typed for SQLAlchemy: notebooks, jobs of your own, `db apply`.

``sql/`` makes them, here they are described. :func:`verify` compares the description with a
real database. What serves does not import this module.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Engine,
    Integer,
    MetaData,
    NullPool,
    SmallInteger,
    Table,
    Text,
    Uuid,
    create_engine,
    inspect,
)
from sqlalchemy.dialects.postgresql import (
    ARRAY,
    BYTEA,
    DOUBLE_PRECISION,
    JSONB,
    REAL,
    TIMESTAMP,
)
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.engine.reflection import ObjectKind

from features.database import connect
from features.errors import SchemaError
from features.spec import names

metadata = MetaData(schema="shortlist")
_MOMENT = TIMESTAMP(timezone=True)

users = Table(
    "users",
    metadata,
    Column("user_key", BigInteger, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
)
items = Table(
    "items",
    metadata,
    Column("item_key", Integer, primary_key=True),
    Column("item_id", Text, nullable=False),
    Column("title", Text),
    Column("categories", ARRAY(Text), nullable=False),
    Column("attributes", JSONB, nullable=False),
    Column("available", Boolean, nullable=False),
    Column("created_at", _MOMENT),
    Column("updated_at", _MOMENT, nullable=False),
    Column("change_id", BigInteger, nullable=False),
)
interactions = Table(
    "interactions",
    metadata,
    Column("interaction_id", BigInteger, primary_key=True),
    Column("user_key", BigInteger, nullable=False),
    Column("occurred_at", _MOMENT, nullable=False),
    Column("received_at", _MOMENT, nullable=False),
    Column("item_key", Integer, nullable=False),
    Column("value", REAL),
    Column("event_type", Text, nullable=False),
    Column("event_id", Text),
)
impressions = Table(
    "impressions",
    metadata,
    Column("rec_id", Uuid, primary_key=True),
    Column("position", SmallInteger, primary_key=True),
    Column("item_key", Integer, nullable=False),
    Column("served_at", _MOMENT, nullable=False),
    Column("score", REAL),
    Column("user_id", Text, nullable=False),
    Column("release", Text, nullable=False),
    Column("scenario", Text),
    Column("source", Text),
)
refresh_point = Table(
    "refresh_point",
    metadata,
    Column("only_row", Boolean, primary_key=True),
    Column("watermark", BigInteger, nullable=False),
    Column("as_of", _MOMENT, nullable=False),
)
feature_refreshes = Table(
    "feature_refreshes",
    metadata,
    Column("refresh_id", BigInteger, primary_key=True),
    Column("view", Text, nullable=False),
    Column("as_of", _MOMENT, nullable=False),
    Column("watermark", BigInteger, nullable=False),
    Column("seconds", DOUBLE_PRECISION, nullable=False),
    Column("finished_at", _MOMENT, nullable=False),
)


def _view(name: str, *columns: Column[object]) -> Table:
    return Table(name, metadata, *columns, info={"view": True})


def _daily(name: str, key: Column[object]) -> Table:
    return _view(
        name,
        key,
        Column("event_day", Date),
        Column("events", BigInteger),
        Column("valued", BigInteger),
        Column("value_sum", DOUBLE_PRECISION),
        Column("value_square_sum", DOUBLE_PRECISION),
        Column("first_at", _MOMENT),
        Column("last_at", _MOMENT),
    )


item_daily = _daily("item_daily", Column("item_key", Integer))
user_daily = _daily("user_daily", Column("user_key", BigInteger))
user_category_daily = _view(
    "user_category_daily",
    Column("user_key", BigInteger),
    Column("category", Text),
    Column("event_day", Date),
    Column("events", BigInteger),
    Column("value_sum", DOUBLE_PRECISION),
)
item_features = _view(
    "item_features",
    Column("item_key", Integer),
    *(Column(name, REAL) for name in names("item")),
)
user_category_features = _view(
    "user_category_features",
    Column("user_key", BigInteger),
    Column("category", Text),
    Column("events", BigInteger),
    Column("value_sum", DOUBLE_PRECISION),
)
user_features = _view(
    "user_features",
    Column("user_key", BigInteger),
    Column("events", BigInteger),
    Column("valued", BigInteger),
    Column("value_sum", DOUBLE_PRECISION),
    Column("value_square_sum", DOUBLE_PRECISION),
    Column("first_at", _MOMENT),
    Column("last_at", _MOMENT),
    Column("seen_items", BYTEA),
    Column("category_names", ARRAY(Text)),
    Column("category_sums", BYTEA),
)


def engine(url: str) -> Engine:
    """Return an SQLAlchemy engine for jobs and notebooks; it keeps no connection open.

    Parameters
    ----------
    url : str
        What ``shortlist db url`` prints, or any PostgreSQL URL or DSN.

    Raises
    ------
    DatabaseUnavailable
        At the first connection: PostgreSQL does not answer at `url`.
    """
    return create_engine("postgresql+psycopg://", creator=lambda: connect(url), poolclass=NullPool)


def _column_problems(table: Table, found: list[ReflectedColumn], database: Engine) -> list[str]:
    """Return what is wrong with the columns of one table or view, if anything."""
    real = {column["name"]: column for column in found}
    problems = []
    for column in table.columns:
        expected = column.type.compile(database.dialect)
        if column.name not in real:
            problems.append(f"{table.fullname}.{column.name} is missing, expected {expected}")
            continue
        is_type = real[column.name]["type"].compile(database.dialect)
        if is_type != expected:
            problems.append(f"{table.fullname}.{column.name} is {is_type}, expected {expected}")
        elif "view" not in table.info and real[column.name]["nullable"] != column.nullable:
            rules = ("may be null", "not null")
            is_now, wanted = rules if real[column.name]["nullable"] else reversed(rules)
            problems.append(f"{table.fullname}.{column.name} {is_now}, expected {wanted}")
    return problems


def verify(database: Engine) -> None:
    """Compare a database with the tables and views of this module; further columns are fine.

    Parameters
    ----------
    database : Engine
        Of :func:`engine`; the schema must have been applied.

    Raises
    ------
    SchemaError
        A table, view or column is missing or of another type; the message names all of them.
    """
    found = inspect(database).get_multi_columns(schema=metadata.schema, kind=ObjectKind.ANY)
    problems: dict[bool, list[str]] = {False: [], True: []}
    for table in metadata.tables.values():
        columns = found.get((metadata.schema, table.name))
        problems["view" in table.info] += (
            [f"{table.fullname} is missing"]
            if columns is None
            else _column_problems(table, columns, database)
        )
    steps = []
    if problems[False]:
        steps.append("restore the tables by hand, or load the data into an empty database")
    if problems[True]:
        steps.append(
            "give the views of sql/ the columns of features/spec.py and features/tables.py, or,"
            ' if a view was changed by hand, run "delete from shortlist.schema_versions where'
            " name >= '10'\" and 'shortlist db apply'"
        )
    if steps:
        raise SchemaError("; ".join([*problems[False], *problems[True]]) + ": " + "; ".join(steps))
