"""Tries every operation that changes something, each on a path of its own below the current directory, and prints
`operation<TAB>path<TAB>errno name` for each (`done` where it went through). See `setup` for what must be there first."""
import ctypes, errno, fcntl, mmap, os, socket, stat, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100


def check(result):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def renameat2(old, new, flags):
    check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def opened(path, flags, mode=0o644):
    os.close(os.open(path, flags, mode))


def descriptor(path, act):
    fd = os.open(path, os.O_RDONLY)
    try:
        act(fd)
    finally:
        os.close(fd)


def bind(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)


def shared_map(path):
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        memory[0:1] = b"X"


def copy_range(path):
    source = os.open("f-source", os.O_RDONLY)
    os.copy_file_range(source, os.open(path, os.O_WRONLY), 3)


def allocate(path):
    os.posix_fallocate(os.open(path, os.O_WRONLY), 0, 8192)


def punch(path):
    check(libc.fallocate(os.open(path, os.O_WRONLY), 3, ctypes.c_long(0), ctypes.c_long(4096)))


def tmpfile(path):
    fd = os.open(path, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.close(fd)


ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, permissions, ident)
    for tag, permissions, ident in [(1, 6, 0xFFFFFFFF), (2, 4, os.getuid()), (4, 4, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
)

# name of the operation, kind of the target (f: file, d: directory, n: not there, s: symlink, x: file with an attribute)
OPERATIONS = [
    ("open-write", "f", lambda p: opened(p, os.O_WRONLY)),
    ("open-read-write", "f", lambda p: opened(p, os.O_RDWR)),
    ("open-append", "f", lambda p: opened(p, os.O_WRONLY | os.O_APPEND)),
    ("open-truncate", "f", lambda p: opened(p, os.O_WRONLY | os.O_TRUNC)),
    ("create", "n", lambda p: opened(p, os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
    ("create-read-only", "n", lambda p: opened(p, os.O_RDONLY | os.O_CREAT)),
    ("mkdir", "n", lambda p: os.mkdir(p)),
    ("mknod-file", "n", lambda p: os.mknod(p, stat.S_IFREG | 0o644)),
    ("mknod-fifo", "n", lambda p: os.mkfifo(p)),
    ("bind-socket", "n", bind),
    ("symlink", "n", lambda p: os.symlink("f-source", p)),
    ("link-new-name", "n", lambda p: os.link("f-source", p)),
    ("rename", "f", lambda p: os.rename(p, p + ".new")),
    ("rename-directory", "d", lambda p: os.rename(p, p + ".new")),
    ("rename-over", "f", lambda p: os.rename("f-other", p)),
    ("rename-no-replace", "f", lambda p: renameat2(p, p + ".new", 1)),
    ("rename-exchange", "f", lambda p: renameat2(p, "f-source", 2)),
    ("unlink", "f", os.unlink),
    ("unlink-symlink", "s", os.unlink),
    ("rmdir", "d", os.rmdir),
    ("truncate", "f", lambda p: os.truncate(p, 1)),
    ("chmod", "f", lambda p: os.chmod(p, 0o600)),
    ("chmod-directory", "d", lambda p: os.chmod(p, 0o700)),
    ("fchmod", "f", lambda p: descriptor(p, lambda fd: os.fchmod(fd, 0o600))),
    ("chown", "f", lambda p: os.chown(p, os.getuid(), os.getgid())),
    ("fchown", "f", lambda p: descriptor(p, lambda fd: os.fchown(fd, os.getuid(), os.getgid()))),
    ("lchown", "s", lambda p: os.lchown(p, os.getuid(), os.getgid())),
    ("utimes", "f", lambda p: os.utime(p, ns=(1, 1))),
    ("utimes-now", "f", lambda p: os.utime(p)),
    ("utimes-symlink", "s", lambda p: os.utime(p, ns=(1, 1), follow_symlinks=False)),
    ("futimens", "f", lambda p: descriptor(p, lambda fd: os.utime(fd, ns=(1, 1)))),
    ("setxattr", "f", lambda p: os.setxattr(p, "user.new", b"1")),
    ("setxattr-directory", "d", lambda p: os.setxattr(p, "user.new", b"1")),
    ("fsetxattr", "f", lambda p: descriptor(p, lambda fd: os.setxattr(fd, "user.new", b"1"))),
    ("removexattr", "x", lambda p: os.removexattr(p, "user.there")),
    ("set-acl", "f", lambda p: os.setxattr(p, "system.posix_acl_access", ACL)),
    ("fallocate", "f", allocate),
    ("punch-hole", "f", punch),
    ("copy-file-range", "f", copy_range),
    ("mmap-shared", "f", shared_map),
    ("tmpfile", "d", tmpfile),
]


def setup():
    for name in ("f-source", "f-other"):
        open(name, "w").write(name)
    for operation, kind, _ in OPERATIONS:
        path = "%s-%s" % (kind, operation)
        if kind in "fx":
            open(path, "w").write("content of " + path)
        if kind == "x":
            os.setxattr(path, "user.there", b"1")
        if kind == "d":
            os.mkdir(path)
        if kind == "s":
            os.symlink("f-source", path)


def attempt():
    for operation, kind, act in OPERATIONS:
        path = "%s-%s" % (kind, operation)
        try:
            act(path)
            outcome = "done"
        except OSError as error:
            outcome = errno.errorcode[error.errno]
        print(operation, path, outcome, sep="\t")


{"setup": setup, "attempt": attempt}[sys.argv[1]]()
