"""One process of the SQLite torture: make DB | write DB N | check DB TOLD. See databases.py."""

import random
import sqlite3
import sys

ACCOUNTS, EACH = 200, 1000


def connect(path, journal, mmap):
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    connection.execute(f"pragma mmap_size = {mmap}")
    mode = connection.execute(f"pragma journal_mode = {journal}").fetchone()[0]
    if mode != journal:
        raise RuntimeError(f"journal mode is {mode}")
    connection.execute("pragma synchronous = full")
    return connection


def make(connection):
    connection.execute("create table account (id integer primary key, money integer not null, note blob)")
    connection.execute("create table transfer (id integer primary key, source, target, money)")
    connection.execute("create index by_source on transfer (source)")
    connection.execute("begin")
    for number in range(ACCOUNTS):
        connection.execute("insert into account values (?, ?, zeroblob(700))", (number, EACH))
    connection.execute("commit")


def write(connection, number):
    chance = random.Random()
    while True:
        source, target, money = chance.randrange(ACCOUNTS), chance.randrange(ACCOUNTS), chance.randrange(50)
        connection.execute("begin immediate")
        # Leaves the page cache now and then, so that a rollback has something to restore.
        note = chance.randbytes(chance.choice((100, 5000)))
        connection.execute("update account set money = money - ?, note = ? where id = ?", (money, note, source))
        connection.execute("update account set money = money + ? where id = ?", (money, target))
        connection.execute("insert into transfer (source, target, money) values (?, ?, ?)", (source, target, money))
        if chance.random() < 0.1:
            connection.execute("rollback")
            continue
        connection.execute("commit")
        print("committed", flush=True)


def check(connection, told):
    problems = connection.execute("pragma integrity_check").fetchall()
    if problems != [("ok",)]:
        raise RuntimeError(f"not whole: {problems[:5]}")
    total = connection.execute("select sum(money) from account").fetchone()[0]
    if total != ACCOUNTS * EACH:
        raise RuntimeError(f"the sum is {total}")
    count = connection.execute("select count(*) from transfer").fetchone()[0]
    if count < told:
        raise RuntimeError(f"{told} transfers were committed, {count} are there")
    wrong = connection.execute(
        f"select id from account a where money != {EACH} - (select coalesce(sum(money), 0) from transfer"
        " where source = a.id) + (select coalesce(sum(money), 0) from transfer where target = a.id)").fetchall()
    if wrong:
        raise RuntimeError(f"accounts that don't fit their transfers: {wrong[:5]}")


def main():
    what, path, journal, mmap, *rest = sys.argv[1:]
    connection = connect(path, journal, int(mmap))
    match what:
        case "make":
            make(connection)
        case "write":
            write(connection, int(rest[0]))
        case "check":
            check(connection, int(rest[0]))


main()
