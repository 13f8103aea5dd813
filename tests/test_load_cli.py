"""`shortlist load`: what its flags say, what it shows."""

import json

import pytest
from typer.testing import CliRunner

from features.errors import InputError
from serve.cli.app import app

TEXT = "buyer;sku;paid;stars\nu,1;a;1700000000000;4.5\nu2;b;x;1\n"
FLAGS = ["--separator", ";", "--map", "user_id=buyer", "--map", "occurred_at=paid"]


@pytest.fixture
def orders(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text(TEXT)
    return str(path)


def run(
    *arguments,
    command="load",
    database_url="postgresql://nobody@127.0.0.1:1/none",
    home="/nowhere",
    **options,
):
    environment = {"SHORTLIST_DATABASE_URL": database_url, "SHORTLIST_HOME": str(home)}
    runner = CliRunner(env={**environment, "COLUMNS": "120"})
    return runner.invoke(app, [command, *arguments], **options)


def test_a_dry_run_needs_no_database(orders):
    result = run(orders, *FLAGS, "--dry-run", "--json")
    (found,) = json.loads(result.stdout)
    assert found["mapping"]["user_id"] == ["buyer", "text"]
    assert found["mapping"]["occurred_at"] == ["paid", "text, ISO 8601 or unix milliseconds"]
    assert [row["user_id"] for row in found["rows"]] == ["u,1"]
    assert [(row["line"], row["column"]) for row in found["rejects"]] == [(3, "paid")]
    shown = run(orders, *FLAGS, "--event-type", "purchase", "--dry-run")
    assert "orders.csv: csv" in shown.stdout
    assert "always 'purchase'" in shown.stdout
    assert "2023-11-14T22:13:20+00:00" in shown.stdout


def test_a_load_says_what_it_did_and_where_the_rejects_are(database_url, orders, tmp_path):
    result = run(orders, *FLAGS, database_url=database_url, home=tmp_path)
    assert result.exit_code == 0, result.output
    assert "1 users, 1 items, 1 interactions in" in result.stdout
    assert "rows/s)" in result.stdout
    assert "orders.csv:3 paid: 'x' is not a time" in result.stderr
    rejects = tmp_path / "rejects" / "orders.csv.csv"
    assert rejects.read_text().splitlines()[0] == "file,line,column,reason"
    piped = run(
        "-", "--format", "csv", *FLAGS, "--json",
        database_url=database_url, home=tmp_path, input=TEXT.encode(),
    )  # fmt: skip
    report = json.loads(piped.stdout)
    assert (report["interactions"], report["already_loaded"], report["rejected"]) == (0, 1, 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--map", "user_id"], "expected NAME=COLUMN"),
        (["--map", "user=buyer"], "expected one of user_id, item_id"),
        (["--table", "public.t"], "--items-table the items and --increasing a column"),
        (["--increasing", "id"], "--items-table the items and --increasing a column"),
        (["--mapping", "/nowhere.toml"], "cannot be read"),
    ],
)
def test_flags_that_cannot_be(orders, flags, message):
    result = run(orders, *flags)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    "flag",
    ["--rebase-to-now", "--rejects=r.csv", "--dry-run", "--columns=a", "--separator=;"],
)
def test_a_table_is_loaded_without_what_is_for_files(flag):
    result = run("--table", "public.t", flag)
    assert isinstance(result.exception, InputError)
    assert f"{flag.partition('=')[0]} is for files" in str(result.exception)


def test_a_table_becomes_a_source_that_is_listed_and_removed(connection, database_url, tmp_path):
    connection.execute(
        "create table public.views as select 'u' as who, n as item_id, now() as ts, n"
        " from generate_series(0, 2) as n; insert into public.views values ('', 1, now(), 3)"
    )
    connection.commit()
    where = {"database_url": database_url, "home": tmp_path}
    first = run("--table", "public.views", "--map", "user_id=who", "--increasing", "n", **where)
    assert first.exit_code == 0, first.output
    assert "1 users, 3 items, 3 interactions of 4 rows in" in first.stdout
    assert "1 rows were not loaded: the user's id is empty" in first.stderr
    second, again = (
        json.loads(run("--table", "public.views", *flags, "--json", **where).stdout)["read"]
        for flags in ([], ["--again"])
    )
    assert (second, again) == (1, 4)
    listed = json.loads(run("list", "--json", command="source", **where).stdout)
    found = [(row["events"], row["view"], row["increasing"]) for row in listed]
    assert found == [("public.views", "source_public_views", "n")]
    # A narrow terminal folds the longer columns.
    assert "public.views" in run("list", command="source", **where).stdout
    removed = run("remove", "public.views", command="source", **where)
    assert "public.views is no source any more" in removed.stderr
    assert run("list", "--json", command="source", **where).stdout == "[]\n"
