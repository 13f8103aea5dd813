"""The tables and feature views, typed for SQLAlchemy: notebooks, jobs of your own, `db apply`.

``sql/`` makes them, here they are described. :func:`verify` compares the description with a
real database. What serves does not import this module.
"""

from __future__ import annotations

from typing import Any

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
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.engine.reflection import ObjectKind
from sqlalchemy.types import UserDefinedType

from features.database import connect
from features.errors import SchemaError
from features.spec import names


class TransactionId(UserDefinedType[str]):
    """``xid8``: which transaction wrote a row."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "XID8"


class Snapshot(UserDefinedType[str]):
    """``pg_snapshot``: which transactions a reader saw."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "PG_SNAPSHOT"


# SQLAlchemy does not know them when it looks at a database.
ischema_names.update(xid8=TransactionId, pg_snapshot=Snapshot)

metadata = MetaData(schema="shortlist")
_MOMENT = TIMESTAMP(timezone=True)


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(name, metadata, *columns)


users = _table(
    "users",
    Column("user_key", BigInteger, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("created_at", _MOMENT, nullable=False),
)
items = _table(
    "items",
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
event_types = _table(
    "event_types",
    Column("event_type_key", SmallInteger, primary_key=True),
    Column("event_type", Text, nullable=False),
)
interactions = _table(
    "interactions",
    Column("interaction_id", BigInteger, nullable=False),
    Column("user_key", BigInteger, nullable=False),
    Column("occurred_at", _MOMENT, nullable=False),
    Column("transaction_id", TransactionId, nullable=False),
    Column("item_key", Integer, nullable=False),
    Column("value", REAL),
    Column("event_type_key", SmallInteger, nullable=False),
    Column("event_id", Text),
)
event_ids = _table(
    "event_ids",
    Column("event_id", Text, primary_key=True),
    Column("received_on", Date, nullable=False),
)
answers = _table(
    "answers",
    Column("answer_id", BigInteger, nullable=False),
    Column("served_at", _MOMENT, primary_key=True),
    Column("transaction_id", TransactionId, nullable=False),
    Column("rec_id", Uuid, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("release", Text, nullable=False),
    Column("scenario", Text),
    Column("item_keys", ARRAY(Integer), nullable=False),
    Column("scores", ARRAY(REAL), nullable=False),
    Column("sources", ARRAY(Text), nullable=False),
)
refresh_point = _table(
    "refresh_point",
    Column("only_row", Boolean, primary_key=True),
    Column("watermark", BigInteger, nullable=False),
    Column("as_of", _MOMENT, nullable=False),
    Column("answer_watermark", BigInteger, nullable=False),
    Column("snapshot", Snapshot),
    Column("window_days", ARRAY(SmallInteger), nullable=False),
    Column("raw_since", Date),
)
feature_refreshes = _table(
    "feature_refreshes",
    Column("refresh_id", BigInteger, primary_key=True),
    Column("view", Text, nullable=False),
    Column("as_of", _MOMENT, nullable=False),
    Column("watermark", BigInteger, nullable=False),
    Column("answer_watermark", BigInteger, nullable=False),
    Column("seconds", DOUBLE_PRECISION, nullable=False),
    Column("finished_at", _MOMENT, nullable=False),
)


def _counts() -> tuple[Column[object], ...]:
    """Return how many events there were, how many had a value, and the sums of the values."""
    return (
        Column("events", Integer, nullable=False),
        Column("valued", Integer, nullable=False),
        Column("value_sum", DOUBLE_PRECISION, nullable=False),
        Column("value_square_sum", DOUBLE_PRECISION, nullable=False),
    )


item_daily = _table(
    "item_daily",
    Column("item_key", Integer, primary_key=True),
    Column("event_day", Date, primary_key=True),
    *_counts(),
    Column("impressions", Integer, nullable=False),
    Column("clicks", Integer, nullable=False),
    Column("last_at", _MOMENT),
)
click_daily = _table(
    "click_daily",
    Column("event_day", Date, primary_key=True),
    Column("impressions", BigInteger, nullable=False),
    Column("clicks", BigInteger, nullable=False),
)
user_daily = _table(
    "user_daily",
    Column("user_key", BigInteger, primary_key=True),
    Column("event_day", Date, primary_key=True),
    *_counts(),
    Column("first_at", _MOMENT, nullable=False),
    Column("last_at", _MOMENT, nullable=False),
)
user_category_daily = _table(
    "user_category_daily",
    Column("user_key", BigInteger, primary_key=True),
    Column("event_day", Date, primary_key=True),
    Column("category", Text, primary_key=True),
    Column("events", Integer, nullable=False),
    Column("value_sum", DOUBLE_PRECISION, nullable=False),
)
covisit_daily = _table(
    "covisit_daily",
    Column("item_key", Integer, primary_key=True),
    Column("other_key", Integer, primary_key=True),
    Column("event_day", Date, primary_key=True),
    Column("pairs", Integer, nullable=False),
)
item_totals = _table(
    "item_totals",
    Column("item_key", Integer, primary_key=True),
    *_counts(),
    Column("impressions", Integer, nullable=False),
    Column("clicks", Integer, nullable=False),
    Column("last_at", _MOMENT),
    Column("window_events", ARRAY(Integer), nullable=False),
)
user_category_totals = _table(
    "user_category_totals",
    Column("user_key", BigInteger, primary_key=True),
    Column("category", Text, primary_key=True),
    Column("events", Integer, nullable=False),
    Column("value_sum", DOUBLE_PRECISION, nullable=False),
)
user_totals = _table(
    "user_totals",
    Column("user_key", BigInteger, primary_key=True),
    *_counts(),
    Column("first_at", _MOMENT, nullable=False),
    Column("last_at", _MOMENT, nullable=False),
    Column("active_days", Integer, nullable=False),
    Column("seen_compacted", Integer, nullable=False),
    Column("seen_items", BYTEA, nullable=False),
    Column("category_names", ARRAY(Text)),
    Column("category_sums", BYTEA),
)


def _corrections(name: str, *columns: Column[object]) -> Table:
    return _table(name, Column("correction_id", BigInteger, primary_key=True), *columns)


interaction_corrections = _corrections(
    "interaction_corrections",
    Column("interaction_id", BigInteger, nullable=False),
    Column("user_key", BigInteger, nullable=False),
    Column("item_key", Integer, nullable=False),
    Column("occurred_at", _MOMENT, nullable=False),
)
answer_corrections = _corrections(
    "answer_corrections",
    Column("answer_id", BigInteger, nullable=False),
    Column("served_at", _MOMENT, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("item_keys", ARRAY(Integer), nullable=False),
)
category_corrections = _corrections(
    "category_corrections", Column("item_key", Integer, nullable=False)
)
served_features = _table(
    "served_features",
    Column("served_at", _MOMENT, primary_key=True),
    Column("rec_id", Uuid, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("release", Text, nullable=False),
    Column("spec_hash", Text, nullable=False),
    Column("user_as_of", _MOMENT, nullable=False),
    Column("user_snapshot", Snapshot, nullable=False),
    Column("item_as_of", _MOMENT, nullable=False),
    Column("item_snapshot", Snapshot),
    Column("user_features", BYTEA, nullable=False),
    Column("item_keys", ARRAY(Integer), nullable=False),
    Column("item_features", BYTEA, nullable=False),
    Column("cross_features", BYTEA, nullable=False),
)
erasures = _table(
    "erasures",
    Column("user_hash", BYTEA, primary_key=True),
    Column("erased_at", _MOMENT, nullable=False),
)
loads = _table(
    "loads",
    Column("load_id", BigInteger, primary_key=True),
    Column("source", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("rows_done", BigInteger, nullable=False),
    Column("interactions", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("shifted_days", Integer, nullable=False),
    Column("started_at", _MOMENT, nullable=False),
    Column("finished_at", _MOMENT),
)
sources = _table(
    "sources",
    Column("source_id", Integer, primary_key=True),
    Column("mapping", JSONB, nullable=False),
    Column("pending_transactions", ARRAY(Text), nullable=False),
    Column("loaded_at", _MOMENT),
    *(Column(name, Text, nullable=False) for name in ("events_table", "view_name")),
    *(Column(name, Text) for name in ("items_table", "increasing", "read_from", "pending_from")),
)


def _view(name: str, *columns: Column[object]) -> Table:
    return Table(name, metadata, *columns, info={"view": True})


impressions = _view(
    "impressions",
    Column("rec_id", Uuid),
    Column("item_key", Integer),
    Column("served_at", _MOMENT),
    Column("user_id", Text),
    Column("release", Text),
    Column("scenario", Text),
    Column("position", SmallInteger),
    Column("score", REAL),
    Column("source", Text),
)
item_features = _view(
    "item_features",
    Column("item_key", Integer),
    *(Column(name, REAL) for name in names("item")),
)
item_covisits = _view(
    "item_covisits",
    Column("item_key", Integer),
    Column("other_key", Integer),
    Column("pairs", Integer),
    Column("rank", Integer),
)
user_features = _view(
    "user_features",
    Column("user_key", BigInteger),
    Column("user_id", Text),
    *(Column(f"user_{name}", REAL) for name in ("events", "value_mean", "value_std")),
    *(Column(f"user_{name}_days", REAL) for name in ("active", "session_gap", "tenure", "recency")),
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
