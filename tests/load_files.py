"""Files to load, and what became of them."""


def count(connection, table):
    return connection.execute(f"select count(*) from {table}").fetchone()[0]


def write(folder, interactions=None, items=None):
    folder.mkdir(exist_ok=True)
    for name, content in (("interactions.csv", interactions), ("items.csv", items)):
        if content is not None:
            data = content if isinstance(content, bytes) else content.encode()
            (folder / name).write_bytes(data)
    return folder


def reasons(report):
    return [(row.file, row.line, row.column, row.reason) for row in report.rejects]


HEADER = "user_id,item_id,event_type,value,occurred_at\n"
