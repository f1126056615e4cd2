"""A hundred operations on files, each with its answer on a line, for two sandboxes to be compared.

usage: compat.py WORKSPACE OUTSIDE; in WORKSPACE are `file`, `dir/inner`, `hidden/secret`, `covered` and `kept/config`."""
import errno, fcntl, mmap, os, shutil, stat, subprocess, sys, tempfile

workspace, outside = sys.argv[1:]
os.chdir(workspace)
os.umask(0o022)


def text(path):
    with open(path, "rb") as file:
        return file.read(200)


def write(path, content="x\n", flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o666)
    try:
        return os.write(fd, content.encode())
    finally:
        os.close(fd)


def shape(path):
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    return oct(status.st_mode), status.st_nlink if kind == stat.S_IFREG else "-", status.st_size if kind == stat.S_IFREG else "-"


def mapped(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0:1] = b"M"
    return text(path)


def locked(path):
    with open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return "locked"


def seek(path):
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"end")
    return os.stat(path).st_size


def shell(line):
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    return done.returncode, done.stdout


def unlinked():
    with open("gone", "w+") as file:
        os.unlink("gone")
        file.write("still")
        file.seek(0)
        return file.read(), os.fstat(file.fileno()).st_nlink


def temporary(directory):
    fd, path = tempfile.mkstemp(dir=directory)
    os.write(fd, b"t")
    os.close(fd)
    os.unlink(path)
    return "made and gone"


def stamp(path):
    os.utime(path, ns=(1_600_000_000_123_456_789, 1_600_000_001_987_654_321))
    status = os.stat(path)
    return status.st_mtime_ns, status.st_atime_ns


def attribute(path):
    os.setxattr(path, "user.note", b"value")
    return os.getxattr(path, "user.note"), os.listxattr(path)


def places(where):
    """What may be done in a place, whichever it is."""
    at = lambda name: os.path.join(where, name)
    return [
        ("list", lambda: sorted(os.listdir(where))),
        ("create", lambda: write(at("new"))),
        ("mkdir", lambda: os.mkdir(at("newdir"))),
        ("symlink", lambda: os.symlink("target", at("newlink"))),
        ("fifo", lambda: os.mkfifo(at("newfifo"))),
        ("rename", lambda: os.rename(at("new"), at("newer"))),
        ("remove", lambda: [os.unlink(at(name)) for name in ("newer", "newlink", "newfifo")]),
        ("rmdir", lambda: os.rmdir(at("newdir"))),
        ("temporary", lambda: temporary(where)),
    ]


operations = [
    ("read", lambda: text("file")),
    ("rewrite", lambda: write("file", "rewritten\n")),
    ("read again", lambda: text("file")),
    ("append", lambda: write("file", "more\n", os.O_WRONLY | os.O_APPEND)),
    ("exclusive", lambda: write("file", "x", os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
    ("directory as file", lambda: write("dir")),
    ("file as directory", lambda: os.listdir("file")),
    ("missing", lambda: text("missing")),
    ("truncate", lambda: (os.truncate("file", 3), text("file"))),
    ("grow", lambda: (os.truncate("file", 50), os.stat("file").st_size)),
    ("hole", lambda: seek("file")),
    ("map", lambda: mapped("file")),
    ("lock", lambda: locked("file")),
    ("shape", lambda: shape("file")),
    ("chmod", lambda: (os.chmod("file", 0o751), shape("file"))),
    ("chmod fd", lambda: (os.chmod("dir", 0o700), shape("dir"))),
    ("chown", lambda: os.chown("file", os.getuid(), os.getgid())),
    ("times", lambda: stamp("file")),
    ("attribute", lambda: attribute("file")),
    ("no attribute", lambda: os.getxattr("file", "user.none")),
    ("link", lambda: (os.link("file", "link"), shape("link"))),
    ("same", lambda: os.path.samefile("file", "link")),
    ("write the link", lambda: (write("link", "through\n"), text("file"))),
    ("unlink the link", lambda: (os.unlink("link"), shape("file"))),
    ("symlink", lambda: (os.symlink("file", "soft"), text("soft"))),
    ("readlink", lambda: os.readlink("soft")),
    ("write a symlink", lambda: (write("soft", "soft\n"), text("file"), shape("soft")[0])),
    ("loop", lambda: (os.symlink("loop", "loop"), text("loop"))),
    ("remove symlinks", lambda: [os.unlink(name) for name in ("soft", "loop")]),
    ("rename over", lambda: (write("other", "other\n"), os.rename("other", "file"), text("file"))),
    ("rename a directory", lambda: (os.rename("dir", "dir2"), os.rename("dir2", "dir"), text("dir/inner"))),
    ("rename into itself", lambda: os.rename("dir", "dir/inside")),
    ("rmdir full", lambda: os.rmdir("dir")),
    ("unlink a directory", lambda: os.unlink("dir")),
    ("deep", lambda: (os.makedirs("a/b/c/d"), write("a/b/c/d/e"), shutil.rmtree("a"), os.path.exists("a"))),
    ("long name", lambda: write("n" * 256)),
    ("bytes", lambda: (write(b"\xff\xfe"), b"\xff\xfe" in os.listdir(b"."), os.unlink(b"\xff\xfe"))),
    ("unlinked but open", unlinked),
    ("copy", lambda: (shutil.copy2("file", "copy"), text("copy"), os.unlink("copy"))),
    ("device", lambda: os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3)) or os.unlink("device")),
    ("access", lambda: [os.access("file", mode) for mode in (os.R_OK, os.W_OK, os.X_OK)]),
    ("shell", lambda: shell("for i in 1 2 3; do echo $i; done > out && sort -r out && rm out")),
    ("run", lambda: (write("script", "#!/bin/sh\necho ran\n"), os.chmod("script", 0o755), shell("./script"), os.unlink("script"))),
    ("cwd", os.getcwd),
    ("null", lambda: (write("/dev/null"), text("/dev/null"))),
    ("zero", lambda: text("/dev/zero")[:4]),
    ("id", lambda: (os.getuid(), os.geteuid(), os.getgid())),
    ("hostname", lambda: open("/proc/sys/kernel/hostname").read() and "read"),
    ("note", lambda: os.environ.get("NOTE")),
    ("list covered", lambda: text("covered")),
    ("write covered", lambda: write("covered", "x", os.O_WRONLY)),
    ("unlink covered", lambda: os.unlink("covered")),
    ("rename covered", lambda: os.rename("covered", "uncovered")),
    ("read kept", lambda: text("kept/config")),
    ("write kept", lambda: write("kept/config")),
    ("rename kept", lambda: os.rename("kept", "lost")),
    ("read outside", lambda: text(outside + "/there")),
    ("write outside", lambda: write(outside + "/there")),
    ("unlink outside", lambda: os.unlink(outside + "/there")),
    ("chmod outside", lambda: os.chmod(outside + "/there", 0o600)),
    ("link outside", lambda: os.link(outside + "/there", "stolen")),
    ("move outside", lambda: os.rename("file", outside + "/file")),
    ("write root", lambda: write("/stockade-test-file")),
    ("mkdir root", lambda: os.mkdir("/stockade-test-directory")),
    ("etc", lambda: write("/etc/passwd", "x", os.O_WRONLY | os.O_APPEND)),
]
for where in ("hidden", "/tmp", "kept", outside):
    operations += [(f"{os.path.basename(where)}: {name}", what) for name, what in places(where)]
for name, what in operations:
    try:
        answer = what()
    except OSError as error:
        answer = errno.errorcode.get(error.errno, error.errno)
    if name == "tmp: list":
        answer = "listed"
    print(f"{name}\t{answer!r}".replace(outside, "OUTSIDE").replace(workspace, "WORKSPACE"), flush=True)
print("operations\t", len(operations))
