"""Stands in the directory `d`, holds it and the file `f` open, and says so in the file `ready`. Once the file `go` is there,
tries to use what it holds in every way and prints `way<TAB>outcome`: `done`, or the errno's name."""
import errno, os, time

held = os.open("f", os.O_RDONLY)
os.chdir("d")
directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
below = os.open("below", os.O_RDONLY | os.O_DIRECTORY)
os.stat("there"), os.stat("below/there"), os.readlink("link")
with open("../ready", "w"):
    pass
for _ in range(3000):
    if os.path.exists("../go"):
        break
    time.sleep(0.01)
else:
    raise SystemExit("nobody said go")


def read(path):
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 100)
    os.close(fd)


def write(path, flags=0):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    os.write(fd, b"inside")
    os.close(fd)


def rewrite(path):
    write(path, os.O_TRUNC | os.O_CREAT)


IN = {"": None, "the descriptor, ": directory, "below, ": below}
WAYS = {}
for label, at in IN.items():
    name = (lambda at: lambda name: name if at is None else f"/proc/self/fd/{at}/{name}")(at)
    WAYS |= {
        label + "create": lambda name=name: write(name("new"), os.O_CREAT | os.O_EXCL),
        label + "rewrite": lambda name=name: rewrite(name("there")),
        label + "write": lambda name=name: write(name("there")),
        label + "append": lambda name=name: write(name("there"), os.O_APPEND),
        label + "truncate": lambda name=name: os.truncate(name("there"), 1),
        label + "chmod": lambda name=name: os.chmod(name("there"), 0o600),
        label + "utimes": lambda name=name: os.utime(name("there"), (1, 2)),
        label + "xattr": lambda name=name: os.setxattr(name("there"), "user.x", b"x"),
        label + "mkdir": lambda name=name: os.mkdir(name("newdir")),
        label + "symlink": lambda name=name: os.symlink("x", name("newlink")),
        label + "mknod": lambda name=name: os.mkfifo(name("newfifo")),
        label + "link here": lambda name=name: os.link(name("there"), name("second")),
        label + "link in": lambda name=name: os.link(name("there"), "../stolen"),
        label + "link out": lambda name=name: os.link("../inside", name("brought")),
        label + "rename here": lambda name=name: os.rename(name("there"), name("other")),
        label + "rename in": lambda name=name: os.rename(name("there"), "../stolen"),
        label + "rename out": lambda name=name: os.rename("../inside", name("brought")),
        label + "unlink": lambda name=name: os.unlink(name("there")),
        label + "rmdir": lambda name=name: os.rmdir(name("empty")),
        label + "read": lambda name=name: read(name("there")),
        label + "list": lambda name=name: os.listdir(name(".")),
        label + "readlink": lambda name=name: os.readlink(name("link")),
        label + "look": lambda name=name: os.stat(name("unseen")),
    }
WAYS |= {
    "chmod of the directory": lambda: os.fchmod(directory, 0o700),
    "utimes of the directory": lambda: os.utime(directory, (1, 2)),
    "xattr of the directory": lambda: os.setxattr(directory, "user.x", b"x"),
    "the file, write": lambda: write(f"/proc/self/fd/{held}"),
    "the file, rewrite": lambda: write(f"/proc/self/fd/{held}", os.O_TRUNC),
    "the file, read": lambda: read(f"/proc/self/fd/{held}"),
    "the file, truncate": lambda: os.truncate(f"/proc/self/fd/{held}", 1),
    "the file, chmod": lambda: os.fchmod(held, 0o600),
    "the file, utimes": lambda: os.utime(held, (1, 2)),
    "the file, xattr": lambda: os.setxattr(held, "user.x", b"x"),
    "the file, link": lambda: os.link(str(held), "../stolen", src_dir_fd=os.open("/proc/self/fd", os.O_RDONLY)),
}
for way, act in WAYS.items():
    try:
        act()
        outcome = "done"
    except OSError as error:
        outcome = errno.errorcode[error.errno]
    print(way, outcome, sep="\t", flush=True)
