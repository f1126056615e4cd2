"""pjdfstest and fsx: what POSIX says of each call, and long random sequences of reads, writes and sizes."""

import os
import re
import time

from world import command, fresh

PJD = """
[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utimensat = {{}}
utime_now = {{}}
stat_st_birthtime = {{}}
[settings]
naptime = 0.02
allow_remount = {remount}
[dummy_auth]
entries = [["nobody", "nogroup"], ["stockade-pjd1", "stockade-pjd1"], ["stockade-pjd2", "stockade-pjd2"]]
"""
LINE = re.compile(r"^(\S+::\S+)\s+(ok|FAILED|skipped|expected failure)\s*$")


def pjdfstest(world, report, full):
    """Its tests of EROFS remount the file system. They come last and in a process of their own, since others leave
    descriptors open for writing, which keep a file system from becoming read-only."""
    for place, directory in world.directories():
        start = time.monotonic()
        where = fresh(directory, "p")
        secondary = fresh(world.base, "x")
        plain = _pjd(world, where, secondary, False, [])
        erofs = _pjd(world, where, secondary, True, ["erofs"])
        for test, (passed, detail) in (plain | erofs).items():
            report.add(test, place, passed, detail)
        report.seconds[place] = time.monotonic() - start


def _pjd(world, directory, secondary, remount, patterns):
    config = world.base / "pjd.toml"
    config.write_text(PJD.format(remount=str(remount).lower()))
    # It remounts with mount(8), which would look for a helper of this type of file system.
    tools = fresh(world.base, "bin")
    wrapper = tools / "mount"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/env -i /bin/mount -i "$@"\n')
    wrapper.chmod(0o755)
    environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}", RUST_BACKTRACE="0")
    arguments = ["pjdfstest", "-c", config, "-p", directory, *patterns]
    arguments[5:5] = ["-s", secondary]
    _, output = command(arguments, 600, env=environment)
    found, current = {}, None
    for line in output.splitlines():
        match = LINE.match(line)
        if match:
            current = match[1]
            passed = {"ok": True, "FAILED": False}.get(match[2])
            found[current] = (passed, "")
        elif current and line.startswith("\t"):
            found[current] = (found[current][0], found[current][1] + line.strip() + "\n")
    if not found:
        found["(run)"] = (False, output)
    return found


FSX = {
    "default": "",
    "aligned": "[opsize]\nmin = 512\nmax = 65536\nalign = 512\n",
    "holes": ("flen = 1048576\n[weights]\nclose_open = 1\nread = 10\nwrite = 10\nmapread = 5\nmapwrite = 5\n"
              "invalidate = 1\ntruncate = 5\nfsync = 0.1\nfdatasync = 0.1\nposix_fallocate = 2\npunch_hole = 5\n"
              "sendfile = 1\ncopy_file_range = 2\n"),
}


def fsx(world, report, full):
    """The same seeds in both places."""
    total = 1_000_000 if full else 12_000
    operations = total // len(FSX)
    for place, directory in world.directories():
        start = time.monotonic()
        where = fresh(directory, "f")
        for name, config in FSX.items():
            path = world.base / "fsx.toml"
            path.write_text(config)
            passed, output = command(
                ["fsx", "-q", "-f", path, "-N", operations, "-S", 1 + len(name), "-P", world.base, where / name], 3600)
            report.add(f"{name}, {operations} operations", place, passed, output)
        report.seconds[place] = time.monotonic() - start
