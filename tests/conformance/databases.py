"""Databases: they notice when a lock, a write order or a shared map isn't what the kernel promises."""

import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from world import command, fresh

HERE = Path(__file__).parent
WAYS = [(journal, mmap) for journal in ("wal", "delete", "truncate", "persist") for mmap in (0, 64 << 20)]


def sqlite(world, report, full):
    """Several writers move money between accounts and are killed at random; afterwards, and each time, the database
    must be whole, hold the same sum, and have every transfer that a writer was told is committed."""
    rounds = 25 if full else 2
    for place, directory in world.directories():
        start = time.monotonic()
        for journal, mmap in WAYS:
            where = fresh(directory, "sq")
            passed, detail = _torture(where, journal, mmap, rounds)
            report.add(f"{journal}, {'mmap' if mmap else 'no mmap'}", place, passed, detail)
        report.seconds[place] = time.monotonic() - start


def _torture(where, journal, mmap, rounds):
    script = [sys.executable, str(HERE / "sqlite_writer.py")]
    base = [str(where / "bank.db"), journal, str(mmap)]
    passed, output = command([*script, "make", *base], 60)
    if not passed:
        return False, output
    chance = random.Random(f"{journal} {mmap}")
    told = 0
    for _ in range(rounds):
        writers = [subprocess.Popen([*script, "write", *base, str(number)], stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True) for number in range(3)]
        try:
            time.sleep(0.6 + chance.random() / 2)
        finally:
            for writer in writers:
                writer.send_signal(signal.SIGKILL)
        # A line each for what was committed; a last one that was cut short says nothing.
        for writer in writers:
            said = writer.communicate()[0].splitlines(keepends=True)
            odd = [line for line in said if line != "committed\n" and line.endswith("\n")]
            if odd:
                return False, "a writer failed:\n" + "".join(odd)
            told += sum(line == "committed\n" for line in said)
        passed, output = command([*script, "check", *base, str(told)], 120)
        if not passed:
            return False, output
    if told < 10 * rounds:
        return False, f"only {told} transfers in {rounds} rounds"
    return True, f"{told} transfers"


def postgresql(world, report, full):
    """initdb, load, kill -9 in the middle of it, recovery, and every page's checksum."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    tools = found[-1].parent
    for place, directory in world.directories():
        start = time.monotonic()
        Cluster(tools, fresh(directory, "pg"), report, place).run(full)
        report.seconds[place] = time.monotonic() - start


class Cluster:
    """One cluster, as user postgres, reachable by a socket in its own directory alone."""

    def __init__(self, tools, where, report, place):
        self.tools, self.report, self.place = tools, report, place
        self.data, self.socket = where / "data", where
        user = pwd.getpwnam("postgres")
        os.chown(where, user.pw_uid, user.pw_gid)
        self.prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]

    def tool(self, name, *arguments, timeout=300):
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PGHOST": str(self.socket),
                       "PGDATABASE": "postgres", "LC_ALL": "C"}
        return command([*self.prefix, self.tools / name, *arguments], timeout, env=environment, cwd="/")

    def step(self, name, result, expected=None):
        passed, output = result
        if expected is not None and passed and output.strip() != expected:
            passed, output = False, f"expected {expected!r}, got {output!r}"
        self.report.add(name, self.place, passed, output)
        return passed

    def start(self):
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.socket}' -c shared_buffers=32MB"
        return self.tool("pg_ctl", "-D", self.data, "-w", "-o", options, "-l", self.socket / "log", "start")

    def query(self, text):
        return self.tool("psql", "-X", "-q", "-A", "-t", "-c", text)

    def run(self, full):
        rounds, seconds, scale = (6, 30, 20) if full else (1, 5, 2)
        if not self.step("initdb", self.tool("initdb", "-D", self.data, "--data-checksums", "-A", "trust")):
            return
        if not self.step("start", self.start()):
            return
        try:
            self.step("load", self.tool("pgbench", "-q", "-i", "-s", scale))
            for number in range(rounds):
                self._crash(number + 1, seconds)
            self.step("vacuum", self.query("vacuum full"))
        finally:
            self.step("stop", self.tool("pg_ctl", "-D", self.data, "-w", "-m", "fast", "stop"))
        self.step("checksums", self.tool("pg_checksums", "--check", "-D", self.data))

    def _crash(self, number, seconds):
        # Without -n it would begin by emptying the history, which is what the sums are compared with.
        passed, output = self.tool("pgbench", "-n", "-c", 4, "-T", seconds)
        self.step(f"pgbench {number}", (passed, output))
        rate = [line for line in output.splitlines() if line.startswith("tps")]
        print(f"pgbench, {self.place}: {rate[0] if rate else 'no result'}", flush=True)
        load = subprocess.Popen(
            [*self.prefix, str(self.tools / "pgbench"), "-n", "-h", str(self.socket), "-c", "4", "-T", "60", "postgres"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        time.sleep(2)
        main = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in [main, *map(int, children)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        load.wait()
        for _ in range(100):
            if not any(Path(f"/proc/{pid}").exists() for pid in children):
                break
            time.sleep(0.05)
        if not self.step(f"recovery {number}", self.start()):
            raise RuntimeError("PostgreSQL doesn't start again")
        sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches) " \
               "and (select sum(tbalance) from pgbench_tellers) = (select coalesce(sum(delta), 0) from pgbench_history)"
        self.step(f"sums {number}", self.query(sums), "t")
