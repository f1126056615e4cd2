"""stress-ng's file-system stressors, fio's verifying jobs, dbench: load from many processes, with every byte checked."""

import time

from world import command, fresh

# Each with what it needs beside a directory. Left out: those that want a block device or a file system of their own.
STRESSORS = [
    "access", "acl", "aio", "chdir", "chmod", "chown", "copy-file", "dentry", "dir", "dirdeep", "dirmany", "dup",
    "eventfd", "fallocate", "fcntl", "fiemap", "file-ioctl", "filename", "flock", "fpunch", "fsize", "fstat",
    "getdent", "handle", "hdd", "inode-flags", "inotify", "io-uring", "iomix", "lease", "link", "locka", "lockf",
    "lockofd", "mknod", "mmap-file", "mmapfork", "open", "readahead", "rename", "seek", "sendfile", "symlink",
    "sync-file", "touch", "allocate and punch", "unlink", "utime", "verity", "xattr",
]
SPECIAL = {
    "mmap-file": ["--mmap", "2", "--mmap-file"],
    "allocate and punch": ["--fallocate", "1", "--fpunch", "1"],
}


def _stressor(name, seconds, directory):
    what = SPECIAL.get(name, [f"--{name}", "2"])
    return ["stress-ng", *what, "--timeout", f"{seconds}s", "--verify", "--temp-path", directory, "--metrics-brief"]


def stress_ng(world, report, full):
    """One stressor after the other; stress-ng's exit says whether it and its verification succeeded (3: not for this
    machine)."""
    seconds = 12 if full else 1
    for place, directory in world.directories():
        start = time.monotonic()
        where = fresh(directory, "t")
        for name in STRESSORS:
            passed, output = command(_stressor(name, seconds, where), seconds + 120)
            skipped = "not implemented" in output or "unrecognized option" in output or "skipped: 1" in output
            report.add(name, place, None if skipped and not passed else passed, output)
        report.seconds[place] = time.monotonic() - start


JOBS = {
    "sequential, psync": "rw=write ioengine=psync bs=64k",
    "random, psync": "rw=randwrite ioengine=psync bs=4k",
    "random mixed, psync": "rw=randrw ioengine=psync bs=4k",
    "random, direct": "rw=randwrite ioengine=psync bs=4k direct=1",
    "random, libaio direct": "rw=randwrite ioengine=libaio iodepth=16 bs=4k direct=1",
    "random, io_uring": "rw=randwrite ioengine=io_uring iodepth=16 bs=4k",
    "random, mmap": "rw=randwrite ioengine=mmap bs=4k",
    "odd sizes, psync": "rw=randwrite ioengine=psync bsrange=512-16k bs_unaligned=1",
    "synchronous": "rw=randwrite ioengine=psync bs=4k sync=1 size=2m",
    "vectors": "rw=randwrite ioengine=pvsync2 bs=4k",
    "two processes, fallocated": "rw=randwrite ioengine=psync bs=4k numjobs=2 fallocate=posix",
    "fsync every 32": "rw=randwrite ioengine=psync bs=4k fsync=32 size=2m",
}


def fio(world, report, full):
    """Everything written is read back and its checksum compared."""
    size = "256m" if full else "8m"
    for place, directory in world.directories():
        start = time.monotonic()
        for name, job in JOBS.items():
            where = fresh(directory, "fio")
            options = {"name": "job", "size": size, "verify": "crc32c", "verify_fatal": "1", "do_verify": "1",
                       "verify_state_save": "0", "randrepeat": "1", "group_reporting": "1"}
            options |= dict(item.split("=", 1) for item in job.split())
            arguments = ["fio", f"--directory={where}", *(f"--{key}={value}" for key, value in options.items())]
            passed, output = command(arguments, 900)
            missing = "engine" in output and "not loadable" in output or "Operation not supported" in output
            report.add(name, place, None if missing else passed, output)
        report.seconds[place] = time.monotonic() - start


def dbench(world, report, full):
    """The file traffic of a file server with several clients."""
    seconds = 120 if full else 8
    for place, directory in world.directories():
        start = time.monotonic()
        for clients in (1, 8):
            where = fresh(directory, "db")
            passed, output = command(["dbench", "-t", seconds, "-D", where, clients], seconds + 120)
            report.add(f"{clients} clients", place, passed and "Throughput" in output, output)
            rate = [line for line in output.splitlines() if line.startswith("Throughput")]
            print(f"dbench, {clients} clients, {place}: {rate[0] if rate else 'no result'}", flush=True)
        report.seconds[place] = time.monotonic() - start
