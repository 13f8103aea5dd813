"""Arrays on the wire: what goes in comes out, and what does not fit is said."""

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from features.binary import copy_columns
from features.errors import DatabaseError

KINDS = {"int4": np.int32, "int8": np.int64, "float4": np.float32, "float8": np.float64}


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.parametrize(("name", "dtype"), KINDS.items())
@given(data=st.data())
def test_there_and_back(sample, name, dtype, data):
    array = data.draw(hnp.arrays(dtype, st.integers(0, 50)))
    cursor = sample.cursor(binary=True)
    (back,) = cursor.execute(f"select %s::{name}[]", (array,)).fetchone()
    assert back.dtype == dtype
    assert np.array_equal(back, array, equal_nan=np.issubdtype(dtype, np.floating))


def test_each_dtype_of_one_statement(sample):
    cursor = sample.cursor(binary=True)
    arrays = [np.arange(3, dtype=dtype) for dtype in KINDS.values()]
    found = cursor.execute("select %s, %s, %s, %s", arrays).fetchone()
    assert [array.dtype for array in found] == list(KINDS.values())


@pytest.mark.parametrize("array", [np.zeros((2, 2)), np.zeros(2, np.int8), np.array(["a"])])
def test_what_cannot_be_sent(sample, array):
    with pytest.raises(TypeError, match="expected one dimension of int32"):
        sample.execute("select %s", (array,))


@pytest.mark.parametrize("text", ["'{{1,2},{3,4}}'", "'{1,null}'"])
def test_what_cannot_be_read(sample, text):
    with pytest.raises(DatabaseError, match="one dimension without nulls"):
        sample.cursor(binary=True).execute(f"select {text}::int4[]").fetchone()


def test_copy(sample):
    query = "select n::int8, (n / 2.0)::real from generate_series(1, 3) as n"
    found = copy_columns(sample, query, [("n", ">i8"), ("half", ">f4")])
    assert found["n"].tolist() == [1, 2, 3]
    assert found["half"].tolist() == [0.5, 1.0, 1.5]
    empty = copy_columns(sample, f"{query} where n > 5", [("n", ">i8"), ("half", ">f4")])
    assert len(empty) == 0


def test_copy_of_other_widths(sample):
    with pytest.raises(DatabaseError, match="declared widths"):
        copy_columns(sample, "select 1::int8", [("n", ">i4")])


def test_copy_of_a_broken_query(sample):
    with pytest.raises(psycopg.errors.UndefinedColumn):
        copy_columns(sample, "select nothing", [("n", ">i4")])
