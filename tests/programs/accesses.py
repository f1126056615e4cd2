"""Tries accesses, each on a target of its own, and prints what came of each: 0 or the errno's name.

Reads one JSON list of [op, path] from the file that is named; a path is a text or a list of bytes.
"""
import errno
import json
import os
import sys


def name(path):
    return os.fsencode(path) if isinstance(path, str) else bytes(path)


def attempt(op, path):
    if op in ("read", "exec"):
        os.close(os.open(path, os.O_RDONLY))
    elif op == "readdir":
        os.listdir(path)
    elif op in ("write", "copy", "fallocate"):
        fd = os.open(path, os.O_WRONLY)
        try:
            if op == "fallocate":
                os.posix_fallocate(fd, 0, 64)
            else:
                os.write(fd, b"x")
        finally:
            os.close(fd)
    elif op == "truncate":
        os.truncate(path, 1)
    elif op == "chmod":
        os.chmod(path, 0o600)
    elif op == "chown":
        os.chown(path, os.getuid(), os.getgid())
    elif op == "utimes":
        os.utime(path, (1, 1))
    elif op == "setxattr":
        os.setxattr(path, "user.a", b"1")
    elif op == "removexattr":
        os.removexattr(path, "user.b")
    elif op == "create":
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    elif op == "mkdir":
        os.mkdir(path)
    elif op == "symlink":
        os.symlink("/nonexistent/target", path)
    elif op == "mknod":
        os.mkfifo(path)
    elif op == "link":
        os.link(source(path), path)
    elif op == "unlink":
        os.unlink(path)
    elif op == "rmdir":
        os.rmdir(path)
    elif op == "rename":
        os.rename(path, os.path.join(top(path), b"moved"))
    else:
        raise ValueError(op)


def top(path):
    """The directory of this one target."""
    base = os.fsencode(sys.argv[2])
    return os.path.join(base, *os.path.relpath(path, base).split(b"/")[:3])


def source(path):
    return os.path.join(top(path), b"plain")


for op, path in json.load(open(sys.argv[1])):
    try:
        attempt(op, name(path))
        print(0)
    except OSError as error:
        print(errno.errorcode[error.errno])
