"""Makes sequences of system calls below the current directory and prints what came of each: results, errnos, contents. The
same section prints the same lines on any POSIX file system of Linux, so a difference between two is a fault of one.

    posix.py SECTION        runs one section in a new directory of that name
    posix.py                lists the sections"""
import ctypes, errno, fcntl, mmap, os, select, socket, stat, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP_SIZE, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
SECTIONS = {}


def section(function):
    SECTIONS[function.__name__] = function
    return function


def check(result):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def say(*parts):
    print(*parts, sep=" ", flush=True)


def tell(label, act, *arguments, **options):
    """Prints what a call returns, or its errno."""
    try:
        result = act(*arguments, **options)
    except OSError as error:
        say(label, errno.errorcode.get(error.errno, error.errno))
        return None
    say(label, "ok" if result is None else result)
    return result


def renameat2(old, new, flags):
    check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def put(name, content=b""):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view):]
    os.close(fd)


def get(name):
    with open(name, "rb") as file:
        return file.read()


def digest(content):
    import hashlib

    return hashlib.sha256(content).hexdigest()[:12], len(content)


def shape(name, follow=False):
    status = os.stat(name, follow_symlinks=follow)
    return "%o n%d u%d g%d s%s" % (
        status.st_mode,
        status.st_nlink if not stat.S_ISDIR(status.st_mode) else 0,
        status.st_uid,
        status.st_gid,
        "-" if stat.S_ISDIR(status.st_mode) else status.st_size,
    )


def tree(top="."):
    for directory, names, files in sorted(os.walk(os.fsencode(top))):
        names.sort()
        for name in sorted(files + [n for n in names if os.path.islink(os.path.join(directory, n))]):
            path = os.path.join(directory, name)
            extra = os.readlink(path) if os.path.islink(path) else b""
            say("tree", path, shape(path), extra)
        say("tree", directory + b"/", sorted(names))


def forked(act):
    """Runs `act` in another process and returns what it returns (text), or its errno's name."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = act()
        except OSError as error:
            text = errno.errorcode[error.errno]
        except BaseException as error:
            text = repr(error)
        os.write(write, str(text).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


@section
def renames():
    put("a", b"a")
    put("b", b"bb")
    os.mkdir("d")
    os.mkdir("e")
    put("e/in", b"in")
    os.symlink("a", "s")
    tell("noreplace onto existing", renameat2, "a", "b", NOREPLACE)
    tell("noreplace onto itself", renameat2, "a", "a", NOREPLACE)
    tell("noreplace onto new", renameat2, "a", "c", NOREPLACE)
    tell("exchange files", renameat2, "b", "c", EXCHANGE)
    say(get("b"), get("c"))
    tell("exchange file and directory", renameat2, "b", "e", EXCHANGE)
    say(shape("b"), shape("e"), os.listdir("b"), get("e"))
    tell("exchange with missing", renameat2, "c", "missing", EXCHANGE)
    tell("exchange symlink", renameat2, "s", "c", EXCHANGE)
    say(os.readlink("c"))
    tell("exchange and noreplace", renameat2, "c", "s", EXCHANGE | NOREPLACE)
    tell("unknown flag", renameat2, "c", "s", 64)
    tell("file onto directory", os.rename, "s", "d")
    tell("directory onto file", os.rename, "d", "s")
    tell("directory onto full directory", os.rename, "d", "b")
    tell("full onto empty directory", os.rename, "b", "d")
    tell("directory into itself", os.rename, "d", "d/x")
    tell("directory into own child", lambda: (os.mkdir("d/y"), os.rename("d", "d/y/z"))[1])
    tell("ancestor as target", os.rename, "d/y", "d")
    tell("missing", os.rename, "missing", "x")
    tell("onto missing directory", os.rename, "s", "nodir/x")
    tell("trailing slash file", os.rename, "s", "new/")
    tell("trailing slash directory", os.rename, "d", "dd/")
    tell("dot", os.rename, ".", "x")
    tell("dot dot", os.rename, "dd/..", "x")
    tell("through file", os.rename, "s/x", "y")
    tell("long name", os.rename, "s", "n" * 256)
    os.link("s", "t")
    tell("two names of one file", os.rename, "s", "t")
    say(sorted(os.listdir(".")), os.stat("t").st_nlink)
    fd = os.open("t", os.O_RDONLY)
    put("u", b"uu")
    os.rename("u", "t")
    say("open over replace", os.read(fd, 10), os.fstat(fd).st_nlink, get("t"))
    os.chdir("dd")
    os.rename("../dd", "../moved")
    say(os.path.basename(os.getcwd()), os.listdir("."))
    put("in-moved", b"")
    os.chdir("..")
    tree()


@section
def unlinked():
    put("f", b"content")
    fd = os.open("f", os.O_RDWR)
    os.unlink("f")
    say(os.path.exists("f"), os.fstat(fd).st_nlink, os.listdir("."))
    say(os.write(fd, b"CON"), os.pread(fd, 100, 0))
    tell("truncate", os.ftruncate, fd, 5)
    tell("chmod", os.fchmod, fd, 0o600)
    tell("utimes", os.utime, fd, ns=(5, 7))
    tell("setxattr", os.setxattr, fd, "user.a", b"b")
    tell("getxattr", os.getxattr, fd, "user.a")
    say(oct(os.fstat(fd).st_mode), os.fstat(fd).st_size, os.fstat(fd).st_mtime_ns)
    put("f", b"another")
    say(os.pread(fd, 100, 0), get("f"))
    tell("reopen", lambda: os.read(os.open("/proc/self/fd/%d" % fd, os.O_RDONLY), 10))
    tell("link back", lambda: check(libc.linkat(AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, b"back", 0x400)))
    other = os.open("f", os.O_RDONLY)
    os.unlink("f")
    os.mkdir("f")
    say(os.read(other, 100), os.listdir("."))
    dirfd = os.open("f", os.O_RDONLY)
    os.rmdir("f")
    tell("create in removed directory", os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=dirfd)
    tell("mkdir in removed directory", os.mkdir, "x", dir_fd=dirfd)
    tell("list removed directory", os.listdir, dirfd)
    say(os.fstat(dirfd).st_nlink)
    os.mkdir("cwd")
    os.chdir("cwd")
    os.rmdir("../cwd")
    tell("getcwd of removed", os.getcwd)
    tell("create in removed cwd", os.open, "x", os.O_CREAT | os.O_WRONLY)
    os.chdir("..")
    for name, kind in (("dir", "unlink"), ("file", "rmdir")):
        os.mkdir(name) if name == "dir" else put(name)
        tell(kind + " of " + name, getattr(os, kind), name)
    os.mkdir("dir/full")
    tell("rmdir full", os.rmdir, "dir")
    tell("rmdir dot", os.rmdir, "dir/.")
    tell("rmdir dot dot", os.rmdir, "dir/full/..")
    tell("unlink missing", os.unlink, "missing")
    tell("unlink trailing slash", os.unlink, "file/")


@section
def create_delete_create():
    for round in range(50):
        put("x", b"%d" % round)
        say(get("x"))
        os.unlink("x")
        tell("gone", os.stat, "x")
        os.mkdir("x")
        os.rmdir("x")
        os.symlink("nowhere", "x")
        say(os.readlink("x"), os.path.exists("x"))
        os.unlink("x")


@section
def appends():
    fd = os.open("f", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, b"one ")
    say(os.lseek(fd, 0, os.SEEK_CUR), os.lseek(fd, 0, os.SEEK_SET))
    os.write(fd, b"two ")
    say(os.pwrite(fd, b"three ", 0), get("f"))
    other = os.open("f", os.O_WRONLY | os.O_APPEND)
    os.write(other, b"four ")
    os.write(fd, b"five ")
    say(get("f"))
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"ONE")
    fcntl.fcntl(other, fcntl.F_SETFL, fcntl.fcntl(other, fcntl.F_GETFL) | os.O_APPEND)
    os.write(other, b"six")
    say(get("f"))
    put("records")

    def appender(letter):
        def act():
            fd = os.open("records", os.O_WRONLY | os.O_APPEND)
            for _ in range(500):
                os.write(fd, letter * 39 + b"\n")
            return "done"

        return act

    pids = []
    for letter in (b"a", b"b", b"c", b"d"):
        pid = os.fork()
        if pid == 0:
            appender(letter)()
            os._exit(0)
        pids.append(pid)
    say([os.waitpid(pid, 0)[1] for pid in pids])
    lines = get("records").split(b"\n")
    say(len(lines), sorted((line[:1], lines.count(line)) for line in set(lines)), all(len(set(line)) <= 1 for line in lines))
    os.unlink("records")
    tell("truncating append", lambda: os.write(os.open("f", os.O_WRONLY | os.O_APPEND | os.O_TRUNC), b"new"))
    say(get("f"))


@section
def open_flags():
    put("f", b"content")
    os.symlink("f", "s")
    os.symlink("missing", "dangling")
    os.mkdir("d")
    W, R, C, X, T = os.O_WRONLY, os.O_RDONLY, os.O_CREAT, os.O_EXCL, os.O_TRUNC
    cases = [
        ("exclusive on existing", "f", W | C | X), ("exclusive on symlink", "dangling", W | C | X), ("create over dangling", "dangling", W | C),
        ("no follow", "s", R | os.O_NOFOLLOW), ("path no follow", "s", os.O_PATH | os.O_NOFOLLOW), ("directory on file", "f", R | os.O_DIRECTORY),
        ("write directory", "d", W), ("create on directory", "d", R | C), ("directory trailing slash", "d/", R), ("file trailing slash", "f/", R),
        ("missing", "nothing", R), ("through file", "f/x", R), ("empty", "", R), ("long", "n" * 256, W | C), ("255", "n" * 255, W | C),
        ("truncate reading", "f", R | T), ("noatime", "f", R | os.O_NOATIME), ("sync", "f", W | os.O_SYNC), ("dsync", "f", W | os.O_DSYNC),
        ("nonblock", "f", R | os.O_NONBLOCK), ("direct", "f", R | os.O_DIRECT), ("loop", "loop", R), ("path directory", "d", os.O_PATH),
    ]
    os.symlink("loop", "loop")
    for label, name, flags in cases:
        fd = tell(label, lambda: (os.open(name, flags, 0o640), "opened")[0] and "opened")
    for umask in (0, 0o022, 0o077, 0o777):
        os.umask(umask)
        for mode in (0o666, 0o777, 0o1755, 0o000, 0o400):
            name = "m%o-%o" % (umask, mode)
            fd = tell("create %s" % name, lambda: os.write(os.open(name, W | C, mode), b"x"))
            say(shape(name))
        os.mkdir("d%o" % umask, 0o1777)
        say(shape("d%o" % umask))
    os.umask(0o022)
    fd = os.open("f", R)
    tell("write to reader", os.write, fd, b"x")
    tell("truncate reader", os.ftruncate, fd, 0)
    fd = os.open("f", W)
    tell("read from writer", os.read, fd, 1)
    fd = os.open("f", os.O_PATH)
    tell("read from path", os.read, fd, 1)
    tell("chmod path", os.fchmod, fd, 0o600)
    say(os.fstat(fd).st_size)
    fd = os.open("d", R)
    tell("read directory", os.read, fd, 1)
    say(sorted(os.listdir("."))[:3])


@section
def reads_and_writes():
    fd = os.open("f", os.O_RDWR | os.O_CREAT, 0o644)
    pattern = bytes(range(256)) * 4096
    say(os.write(fd, pattern), os.fstat(fd).st_size)
    say(digest(os.pread(fd, len(pattern), 0)), digest(os.pread(fd, 5000, 4095)), os.pread(fd, 10, len(pattern)), os.pread(fd, 10, len(pattern) - 3))
    say(os.pwrite(fd, b"hole", 5_000_000), os.fstat(fd).st_size, os.pread(fd, 8, 4_999_996), digest(get("f")))
    say(os.writev(fd, [b"one", b"", b"two"]), os.preadv(fd, [bytearray(3), bytearray(5)], 0))
    tell("big offset", os.pwrite, fd, b"x", (1 << 40))
    say(os.fstat(fd).st_size, os.pread(fd, 2, (1 << 40)))
    tell("negative", os.pwrite, fd, b"x", -1)
    tell("truncate down", os.ftruncate, fd, 1000)
    tell("truncate up", os.ftruncate, fd, 3000)
    say(digest(get("f")), get("f")[998:1002])
    tell("negative truncate", os.ftruncate, fd, -1)
    tell("seek end", os.lseek, fd, -10, os.SEEK_END)
    tell("seek before", os.lseek, fd, -1, os.SEEK_SET)
    tell("zero read", os.read, fd, 0)
    tell("zero write", os.write, fd, b"")
    tell("fsync", os.fsync, fd)
    tell("fdatasync", os.fdatasync, fd)
    directory = os.open(".", os.O_RDONLY)
    tell("fsync directory", os.fsync, directory)
    tell("sync range", lambda: check(libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7)))
    other = os.open("f", os.O_RDONLY)
    os.pwrite(fd, b"seen at once", 100)
    say(os.pread(other, 12, 100), forked(lambda: get("f")[100:112]))
    duplicate = os.dup(fd)
    os.lseek(fd, 7, os.SEEK_SET)
    os.write(duplicate, b"shared offset")
    os.close(fd)
    os.write(duplicate, b" goes on")
    say(get("f")[7:28])
    for size in (1, 511, 512, 4095, 4096, 4097, 131071, 131072, 131073, 1 << 20, (1 << 20) + 1):
        put("size", os.urandom(1) * 0 + b"z" * size)
        say(size, digest(get("size")))
    for round in range(3):
        put("rewritten", b"version %d " % round * 1000)
        say(digest(get("rewritten")))
    tell("sendfile", lambda: os.sendfile(duplicate, os.open("rewritten", os.O_RDONLY), 0, 4000))
    say(os.fstat(duplicate).st_size)
    read, write = os.pipe()
    tell("splice in", lambda: os.splice(os.open("rewritten", os.O_RDONLY), write, 100))
    say(digest(os.read(read, 1000)))


@section
def early_close():
    """A child that closes its copy of the descriptor doesn't end the writing."""
    fd = os.open("f", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    say(forked(lambda: os.close(fd)))
    os.write(fd, b"after the child's close")
    say(forked(lambda: get("f")))
    os.close(os.dup(fd))
    os.write(fd, b", and after a dup's")
    say(get("f"))
    os.close(fd)
    say(get("f"))
    fd = os.open("f", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"half")
    os.fsync(fd)
    say(get("f"))
    os.write(fd, b" whole")
    say(get("f"), os.stat("f").st_size)
    os.close(fd)
    say(get("f"))
    reader = os.open("f", os.O_RDONLY)
    writer = os.open("f", os.O_WRONLY | os.O_TRUNC)
    say(os.read(reader, 10))
    os.write(writer, b"growing")
    say(os.read(reader, 10))
    os.write(writer, b" on")
    say(os.read(reader, 10))
    os.close(writer)
    say(os.pread(reader, 20, 0))
    os.rename("f", "g")
    say(os.pread(reader, 20, 0), get("g"))
    first, second = (os.open("g", os.O_WRONLY | os.O_TRUNC) for _ in range(2))
    os.write(first, b"first....")
    os.write(second, b"second")
    os.close(first)
    say(get("g"))
    os.close(second)
    say(get("g"))


@section
def direct():
    fd = os.open("f", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    area = mmap.mmap(-1, 65536)
    area[:] = b"d" * 65536
    tell("aligned write", os.writev, fd, [memoryview(area)[:8192]])
    say(os.fstat(fd).st_size, digest(get("f")))
    os.lseek(fd, 0, os.SEEK_SET)
    tell("aligned read", os.readv, fd, [memoryview(area)[:4096]])
    cached = os.open("f", os.O_RDWR)
    os.pwrite(cached, b"C" * 100, 4096)
    tell("direct after cached", os.preadv, fd, [memoryview(area)[:4096]], 4096)
    say(bytes(area[:4]), digest(bytes(area[:4096])))
    area[:] = b"e" * 65536
    tell("direct write", os.pwritev, fd, [memoryview(area)[:4096]], 0)
    say(os.pread(cached, 4, 0), os.pread(cached, 4, 4096))
    tell("read past the end", os.preadv, fd, [memoryview(area)[:4096]], 8192)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
    tell("unaligned after clearing", os.pwrite, fd, b"tail", 8192)
    say(digest(get("f")))


@section
def maps():
    put("times", b"a" * 4096)
    os.utime("times", (1, 1))
    os.stat("times")
    fd = os.open("times", os.O_RDWR)
    memory = mmap.mmap(fd, 4096)
    memory[0] = 7
    memory.flush()
    say("a store shows", os.stat("times").st_mtime > 1, os.fstat(fd).st_mtime > 1)
    os.utime("times", (1, 1))
    memory[0] = 8
    memory.close()
    os.close(fd)
    say("a store showed", os.stat("times").st_mtime > 1)
    put("f", b"a" * 10000)
    fd = os.open("f", os.O_RDWR)
    memory = mmap.mmap(fd, 10000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[5000:5006] = b"mapped"
    say(os.pread(fd, 6, 5000), forked(lambda: get("f")[5000:5006]))
    os.pwrite(fd, b"written", 6000)
    say(memory[6000:6007])
    other = mmap.mmap(os.open("f", os.O_RDONLY), 10000, mmap.MAP_SHARED, mmap.PROT_READ)
    memory[0:4] = b"both"
    say(other[0:4])

    def child():
        memory[100:105] = b"child"
        return "written"

    say(forked(child), memory[100:105])
    tell("msync", memory.flush)
    private = mmap.mmap(fd, 10000, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    private[0:4] = b"mine"
    say(memory[0:4], private[0:4])
    os.close(fd)
    memory[9999:10000] = b"!"
    memory.flush()
    memory.close()
    say(digest(get("f")))
    fd = os.open("f", os.O_RDWR)
    memory = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    os.unlink("f")
    memory[0:7] = b"removed"
    say(os.pread(fd, 7, 0))
    put("f", b"x" * 4096)
    fd = os.open("f", os.O_RDONLY)
    tell("map a reader writable", lambda: (mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE), None)[1])
    put("g", b"")
    fd = os.open("g", os.O_RDWR)
    os.ftruncate(fd, 8192)
    memory = mmap.mmap(fd, 8192, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[8190:8192] = b"ok"
    os.ftruncate(fd, 20000)
    os.close(fd)
    memory.close()
    say(digest(get("g")))
    put("exe", b"#!/bin/sh\necho run\n")
    os.chmod("exe", 0o755)
    say(os.popen("./exe").read())
    # A map of a file that was made for appending doesn't keep others out.
    for flags in (0, os.O_APPEND, os.O_APPEND | os.O_TRUNC):
        name = f"appended-{flags:o}"
        fd = os.open(name, os.O_CREAT | os.O_RDWR | flags, 0o644)
        os.write(fd, b"content")
        map = mmap.mmap(fd, 7)
        tell("mapped", get, name)
        map[0:1] = b"C"
        tell("mapped by another", forked, lambda: get(name))
        os.write(fd, b" and more")
        tell("mapped and appended", get, name)
        map.close()
        os.close(fd)
        tell("closed", get, name)
    # A store isn't a write(2): it leaves set-id bits.
    put("privileged", b"x" * 8192)
    fd = os.open("privileged", os.O_RDWR)
    memory = mmap.mmap(fd, 8192, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    os.fchmod(fd, 0o6711)
    memory[0:4] = b"abcd"
    memory.flush()
    say("stored, set-id", oct(os.stat("privileged").st_mode), get("privileged")[:4])
    memory[4096:4100] = b"efgh"
    memory.close()
    os.close(fd)
    say("closed, set-id", oct(os.stat("privileged").st_mode))


@section
def holes():
    fd = os.open("f", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, 1 << 20)
    os.pwrite(fd, b"d" * 65536, 262144)
    os.pwrite(fd, b"e" * 4096, 786432)
    os.fsync(fd)
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        for offset in (0, 262144, 300000, 327680, 786432, 790528, (1 << 20) - 1, 1 << 20):
            tell("%s %d" % ("data" if whence == os.SEEK_DATA else "hole", offset), os.lseek, fd, offset, whence)
    say(os.fstat(fd).st_blocks < 600)
    say(digest(get("f")))
    say(os.system("cp --sparse=always f copy && cmp f copy"), os.stat("copy").st_blocks < 600)


@section
def allocations():
    fd = os.open("f", os.O_RDWR | os.O_CREAT, 0o644)
    tell("plain", fallocate, fd, 0, 0, 65536)
    say(os.fstat(fd).st_size, os.fstat(fd).st_blocks >= 128)
    tell("keep size", fallocate, fd, KEEP_SIZE, 65536, 65536)
    say(os.fstat(fd).st_size)
    os.pwrite(fd, b"x" * 65536, 0)
    tell("punch", fallocate, fd, PUNCH | KEEP_SIZE, 4096, 8192)
    say(os.pread(fd, 4, 4094), os.pread(fd, 4, 12286), digest(get("f")))
    tell("punch without keep", fallocate, fd, PUNCH, 4096, 8192)
    tell("zero", fallocate, fd, ZERO, 16384, 4096)
    say(digest(get("f")))
    tell("zero beyond", fallocate, fd, ZERO, 65536, 4096)
    say(os.fstat(fd).st_size)
    tell("no length", fallocate, fd, 0, 0, 0)
    tell("negative", fallocate, fd, 0, -1, 10)
    tell("unknown mode", fallocate, fd, 128, 0, 10)
    tell("reader", lambda: fallocate(os.open("f", os.O_RDONLY), 0, 0, 10))
    tell("posix", os.posix_fallocate, fd, 0, 100000)
    say(os.fstat(fd).st_size)
    tell("advise", os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_DONTNEED)


@section
def copies():
    content = b"".join(b"%07d\n" % number for number in range(37500))
    put("source", content)
    source, target = os.open("source", os.O_RDONLY), os.open("target", os.O_RDWR | os.O_CREAT, 0o644)
    done = 0
    while True:
        step = os.copy_file_range(source, target, 1 << 20)
        if step == 0:
            break
        done += step
    say(done, get("target") == content)
    tell("with offsets", os.copy_file_range, source, target, 1000, 5000, 400000)
    say(os.fstat(target).st_size, get("target")[400000:] == content[5000:6000])
    tell("into itself, apart", os.copy_file_range, target, target, 100, 0, 200000)
    say(get("target")[200000:200100] == content[:100])
    tell("into itself, overlapping", os.copy_file_range, target, target, 100, 0, 50)
    tell("past the end", os.copy_file_range, source, target, 100, 300000, 0)
    tell("into a reader", lambda: os.copy_file_range(source, os.open("target", os.O_RDONLY), 10))
    say(os.system("cp --reflink=auto source copied && cmp source copied && cat source > catted && cmp source catted"))


@section
def attributes():
    put("f")
    os.mkdir("d")
    os.symlink("f", "s")
    for name in ("f", "d"):
        tell("none", os.listxattr, name)
        tell("set", os.setxattr, name, "user.a", b"1")
        tell("create existing", os.setxattr, name, "user.a", b"2", os.XATTR_CREATE)
        tell("replace missing", os.setxattr, name, "user.b", b"2", os.XATTR_REPLACE)
        tell("replace", os.setxattr, name, "user.a", b"22", os.XATTR_REPLACE)
        tell("empty value", os.setxattr, name, "user.empty", b"")
        tell("bytes", os.setxattr, name, b"user.\xff", b"\0\xff\0")
        say(sorted(os.fsencode(n) for n in os.listxattr(name)), [os.getxattr(name, n) for n in sorted(os.listxattr(name))])
        tell("missing", os.getxattr, name, "user.none")
        tell("no space", os.getxattr, name, "none")
        tell("no such space", os.setxattr, name, "nonsense.x", b"")
        tell("empty name", os.setxattr, name, "user.", b"")
        tell("long name", os.setxattr, name, "user." + "n" * 250, b"")
        tell("longer name", os.setxattr, name, "user." + "n" * 251, b"")
        tell("large value", os.setxattr, name, "user.large", b"v" * 2000)
        tell("huge value", os.setxattr, name, "user.huge", b"v" * 65537)
        tell("remove", os.removexattr, name, "user.a")
        tell("remove again", os.removexattr, name, "user.a")
        say(len(os.listxattr(name)))
    tell("on a symlink", os.setxattr, "s", "user.a", b"1", follow_symlinks=False)
    tell("through a symlink", os.setxattr, "s", "user.a", b"1")
    tell("size only", lambda: libc.getxattr(b"f", b"user.large", None, 0))
    tell("too small", lambda: check(libc.getxattr(b"f", b"user.large", ctypes.create_string_buffer(5), 5)))
    tell("list too small", lambda: check(libc.listxattr(b"f", ctypes.create_string_buffer(5), 5)))
    fd = os.open("f", os.O_RDONLY)
    tell("by descriptor", os.getxattr, fd, "user.a")
    os.chmod("f", 0o000)
    if os.getuid():
        tell("unreadable", os.getxattr, "f", "user.a")
        tell("unwritable", os.setxattr, "f", "user.c", b"1")
    os.rename("f", "g")
    say(len(os.listxattr("d")))


def acl(*entries):
    tags = {"u": 1, "U": 2, "g": 4, "G": 8, "m": 16, "o": 32}
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tags[tag], permissions, ident) for tag, permissions, ident in entries)


NONE = 0xFFFFFFFF
# A user namespace with one id knows no other.
SOMEBODY = os.getuid() or 12345


@section
def acls():
    put("f")
    os.chmod("f", 0o640)
    full = acl(("u", 6, NONE), ("U", 7, SOMEBODY), ("g", 4, NONE), ("m", 7, NONE), ("o", 0, NONE))
    tell("set", os.setxattr, "f", "system.posix_acl_access", full)
    say(shape("f"), tell("get", os.getxattr, "f", "system.posix_acl_access") == full)
    os.chmod("f", 0o600)
    say(shape("f"), os.getxattr("f", "system.posix_acl_access") == acl(("u", 6, NONE), ("U", 7, SOMEBODY), ("g", 4, NONE), ("m", 0, NONE), ("o", 0, NONE)))
    tell("trivial", os.setxattr, "f", "system.posix_acl_access", acl(("u", 7, NONE), ("g", 5, NONE), ("o", 1, NONE)))
    say(shape("f"))
    tell("listed", os.listxattr, "f")
    tell("malformed", os.setxattr, "f", "system.posix_acl_access", b"nonsense")
    tell("default on a file", os.setxattr, "f", "system.posix_acl_default", full)
    os.mkdir("d")
    default = acl(("u", 7, NONE), ("U", 6, SOMEBODY), ("g", 5, NONE), ("m", 7, NONE), ("o", 0, NONE))
    tell("default", os.setxattr, "d", "system.posix_acl_default", default)
    os.umask(0o077)
    put("d/f")
    os.mkdir("d/d")
    os.close(os.open("d/g", os.O_CREAT | os.O_WRONLY, 0o666))
    say(shape("d/f"), shape("d/g"), shape("d/d"))
    say(digest(os.getxattr("d/g", "system.posix_acl_access")), digest(os.getxattr("d/d", "system.posix_acl_default")))
    tell("remove", os.removexattr, "d", "system.posix_acl_default")
    os.umask(0o022)
    put("d/h")
    say(shape("d/h"), os.listxattr("d/h"))
    say(os.system("setfacl -m u:%d:rw f && getfacl -nc f" % SOMEBODY))


@section
def locks():
    put("f", b"x" * 100)
    fd = os.open("f", os.O_RDWR)
    other = os.open("f", os.O_RDWR)
    EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB
    tell("flock", fcntl.flock, fd, EX)
    tell("second", fcntl.flock, other, EX | NB)
    say(forked(lambda: fcntl.flock(os.open("f", os.O_RDWR), SH | NB)))
    tell("downgrade", fcntl.flock, fd, SH)
    tell("shared", fcntl.flock, other, SH | NB)
    say(forked(lambda: fcntl.flock(os.open("f", os.O_RDONLY), SH | NB)))
    tell("unlock", fcntl.flock, fd, UN)
    os.close(other)
    say(forked(lambda: fcntl.flock(os.open("f", os.O_RDWR), EX | NB)))

    def locked(start, length, kind=EX):
        return forked(lambda: fcntl.lockf(os.open("f", os.O_RDWR), kind | NB, length, start))

    tell("record", fcntl.lockf, fd, EX, 10, 20)
    say(locked(0, 20), locked(20, 1), locked(29, 1), locked(30, 10), locked(0, 0), locked(25, 1, SH))
    tell("own again", fcntl.lockf, fd, SH, 5, 22)
    say(locked(22, 5, SH), locked(20, 2, SH))
    tell("unlock part", fcntl.lockf, fd, UN, 2, 20)
    say(locked(20, 2))
    template = "hhqqi"
    query = struct.pack(template, fcntl.F_WRLCK, 0, 0, 0, 0)

    def who():
        found = struct.unpack(template, fcntl.fcntl(os.open("f", os.O_RDWR), fcntl.F_GETLK, query))
        return found[0], found[2], found[3], found[4] == os.getppid()

    say(forked(who))
    os.close(os.open("f", os.O_RDONLY))
    say("released by closing another", locked(0, 0))
    ofd = struct.pack(template, fcntl.F_WRLCK, 0, 50, 10, 0)
    tell("open file lock", lambda: fcntl.fcntl(fd, 37, ofd) and None)
    again = os.open("f", os.O_RDWR)
    tell("open file lock, second", lambda: fcntl.fcntl(again, 37, ofd) and None)
    say(locked(50, 1), locked(60, 1))
    os.close(os.open("f", os.O_RDONLY))
    say("kept over closing another", locked(50, 1))
    os.close(fd)
    say(locked(50, 1))
    tell("shared lock of a writer", lambda: fcntl.lockf(os.open("f", os.O_WRONLY), SH | NB))
    tell("lease", lambda: fcntl.fcntl(os.open("f", os.O_RDONLY), 1025))
    holder = os.open("f", os.O_RDWR)
    fcntl.lockf(holder, EX)
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(os.open("f", os.O_RDWR), EX)
        os.pwrite(os.open("f", os.O_RDWR), b"waited", 0)
        os._exit(0)
    time.sleep(0.2)
    # Opening and closing the file here would release the lock (fcntl(2)).
    holder2 = holder
    os.pwrite(holder2, b"holder", 0)
    os.close(holder2)
    say(os.waitpid(pid, 0)[1], get("f")[:6])


@section
def times():
    put("f")
    os.mkdir("d")
    os.symlink("f", "s")
    moments = [0, 1, 999_999_999, 1_000_000_000, 1_234_567_890_123_456_789, -1, -999_999_999, -1_000_000_001, -1_500_000_000_000_000_001, 4_294_967_295_999_999_999, 4_294_967_296_000_000_001]
    for name in ("f", "d", "s"):
        for moment in moments:
            os.utime(name, ns=(moment, moment + 5), follow_symlinks=False)
            status = os.stat(name, follow_symlinks=False)
            say(name, moment, status.st_atime_ns, status.st_mtime_ns)
            say(forked(lambda: os.stat(name, follow_symlinks=False).st_mtime_ns))
    UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2

    def utimens(name, atime, mtime):
        spec = struct.pack("qqqq", 0, atime, 0, mtime)
        check(libc.utimensat(AT_FDCWD, os.fsencode(name), spec, 0))

    os.utime("f", ns=(11, 22))
    tell("omit access", utimens, "f", UTIME_OMIT, 33)
    say(os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns)
    tell("omit both", utimens, "f", UTIME_OMIT, UTIME_OMIT)
    say(os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns)
    before = time.time_ns()
    tell("now", utimens, "f", UTIME_OMIT, UTIME_NOW)
    say(os.stat("f").st_atime_ns, abs(os.stat("f").st_mtime_ns - before) < 2_000_000_000)

    def moves(act, name):
        """Which times an operation moves."""
        os.utime(name, ns=(1, 1))
        time.sleep(0.02)
        old = os.stat(name)
        time.sleep(0.02)
        act()
        new = os.stat(name)
        return "mtime" * (old.st_mtime_ns != new.st_mtime_ns) + " ctime" * (old.st_ctime_ns != new.st_ctime_ns)

    put("f", b"content")
    say("write", moves(lambda: os.write(os.open("f", os.O_WRONLY), b"x"), "f"))
    say("read", moves(lambda: get("f"), "f"))
    say("chmod", moves(lambda: os.chmod("f", 0o600), "f"))
    say("truncate", moves(lambda: os.truncate("f", 3), "f"))
    say("truncate to the same", moves(lambda: os.truncate("f", 3), "f"))
    say("open truncating", moves(lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)), "f"))
    say("link", moves(lambda: os.link("f", "g"), "f"))
    say("unlink", moves(lambda: os.unlink("g"), "f"))
    say("rename", moves(lambda: os.rename("f", "h"), "d"))
    os.rename("h", "f")
    say("setxattr", moves(lambda: os.setxattr("f", "user.a", b"1"), "f"))
    say("create in", moves(lambda: put("d/x"), "d"))

    def empties():
        """Creates that don't show in the directory's times, which are looked at while the file is being closed."""
        missed = 0
        for number in range(200):
            os.utime("d", ns=(1, 1))
            os.close(os.open("d/e%d" % number, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            missed += os.stat("d").st_mtime_ns == 1
        return missed

    say("empty files created in", empties())
    os.chmod("d", 0o700)
    os.utime("d", ns=(1, 1))
    say("times set", os.stat("d").st_mtime_ns)
    fd = os.open("d/e", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.chmod("d", 0o755)
    say("seen after chmod", os.stat("d").st_mtime_ns != 1)
    os.utime("d", ns=(1, 1))
    say("times set while being created", os.stat("d").st_mtime_ns)
    os.unlink("d/e")
    say("unlinked while being created", os.stat("d").st_mtime_ns != 1)
    os.close(fd)
    for flags in (os.O_CREAT | os.O_EXCL, os.O_TRUNC):
        fd = os.open("d/late", os.O_WRONLY | flags, 0o600)
        os.write(fd, b"x")
        os.utime("d", ns=(7, 7))
        os.close(fd)
        say("times set before a close", os.stat("d").st_mtime_ns)
    say("write in", moves(lambda: os.write(os.open("d/x", os.O_WRONLY), b"x"), "d"))
    say("rename in", moves(lambda: os.rename("d/x", "d/y"), "d"))
    say("unlink in", moves(lambda: os.unlink("d/y"), "d"))
    say("list", moves(lambda: os.listdir("d"), "d"))
    fd = os.open("f", os.O_WRONLY)
    os.write(fd, b"x")
    os.utime("f", ns=(7, 8))
    os.close(fd)
    say("kept over close", os.stat("f").st_mtime_ns)
    fd = os.open("f", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"y")
    os.utime(fd, ns=(9, 10))
    os.close(fd)
    say("kept over rewrite", os.stat("f").st_mtime_ns)


    # A directory's own time counts, though a file in it isn't published yet.
    for moment in (-1_500_000_000, 0, 5):
        fd = os.open("d/unpublished", os.O_CREAT | os.O_WRONLY, 0o644)
        os.utime("d", ns=(0, moment))
        say("before the close", os.stat("d").st_mtime_ns)
        os.close(fd)
        say("after it", os.stat("d").st_mtime_ns)
        os.unlink("d/unpublished")
    # One that is gone before it's published has changed its directory as well, whatever befalls that directory afterwards.
    for befall in (lambda: os.rename("d", "d2") or os.rename("d2", "d"), lambda: os.chmod("d", 0o700)):
        fd = os.open("d/unpublished", os.O_CREAT | os.O_WRONLY, 0o644)
        os.utime("d", ns=(0, 5))
        os.unlink("d/unpublished")
        os.close(fd)
        befall()
        say("after one that was never published", os.stat("d").st_mtime_ns == 5)
    # What is published late must not be seen to change by itself: git takes such a file for modified.
    for name in ("late", "late"):
        fd = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        os.write(fd, b"content")
        seen = os.fstat(fd)
        os.close(fd)
        time.sleep(0.3)
        after = os.stat(name)
        say("closed", seen.st_ctime_ns == after.st_ctime_ns, seen.st_mtime_ns == after.st_mtime_ns)
        os.chmod(name, 0o600)
        say("changed", seen.st_ctime_ns < os.stat(name).st_ctime_ns)


@section
def names():
    odd = [b"\xff\xfe", b"a\nb", b" ", b"-", b"~", b"*?[", b"\x01\x7f", "\u00fc\u4e16".encode(), "u\u0308".encode(), b"n" * 255, "\u4e16".encode() * 85, b"...", b".hidden", b"a\\b", b"con", b"A", b"a", b"\xc3"]
    for name in odd:
        put(name, name)
    say(sorted(os.listdir(b".")) == sorted(odd), [get(name) == name for name in odd])
    for name in odd:
        os.mkdir(name + b"d" if len(name) < 255 else name[:-1])
        os.rename(name, b"renamed")
        os.symlink(name, b"link")
        say(os.readlink(b"link") == name, os.path.exists(name))
        os.unlink(b"link")
        os.rename(b"renamed", name)
    tell("too long", put, b"n" * 256)
    tell("too long lookup", os.stat, b"n" * 256)
    tell("too long path", os.stat, b"./" * 2048 + b"x")
    say(len(os.listdir(b".")))
    tell("case", os.stat, "CON")
    tell("composed", os.stat, "\u00fc")


@section
def deep():
    depth, name = 300, "d" * 40
    for _ in range(depth):
        os.mkdir(name)
        os.chdir(name)
    put("bottom", b"deep")
    say(get("bottom"))
    tell("getcwd", lambda: len(os.getcwd()) > 4096 or None)
    say(forked(lambda: get("bottom")))
    for _ in range(depth):
        os.chdir("..")
    say(os.listdir("."))
    os.mkdir("wide")
    for number in range(300):
        os.makedirs("wide/%d/x/y" % number)
    say(sum(len(names) for _, names, _ in os.walk("wide")), os.stat("wide").st_nlink)
    say(os.system("rm -rf %s wide" % name), os.listdir("."))


@section
def links():
    put("f", b"shared")
    say(os.stat("f").st_nlink)
    for number in range(20):
        os.link("f", "l%d" % number)
        say(os.stat("f").st_nlink, os.stat("l0").st_nlink)
    say(len({os.stat(name).st_ino for name in os.listdir(".")}))
    with open("l7", "ab") as file:
        file.write(b" by another name")
    say(get("f"), os.stat("l3").st_size)
    fd = os.open("l5", os.O_RDONLY)
    for number in range(10):
        os.unlink("l%d" % number)
    say(os.stat("f").st_nlink, os.fstat(fd).st_nlink, os.read(fd, 100))
    with open("l12", "r+b") as file:
        file.write(b"SHARED")
    say(get("l15"))
    os.truncate("l12", 3)
    say(get("f"))
    os.chmod("l13", 0o600)
    say(shape("f"))
    put("f", b"truncated and rewritten")
    say(get("l14"), os.stat("f").st_nlink, os.path.samefile("f", "l14"))
    os.mkdir("d")
    tell("onto existing", os.link, "f", "l12")
    tell("of a directory", os.link, "d", "e")
    tell("of missing", os.link, "missing", "x")
    tell("into missing", os.link, "f", "nodir/x")
    os.symlink("f", "s")
    tell("of a symlink", os.link, "s", "s2")
    tell("of a symlink, followed", lambda: check(libc.linkat(AT_FDCWD, b"s", AT_FDCWD, b"s3", 0x400)))
    say(shape("s2"), shape("s3"))
    tell("across directories", os.link, "f", "d/f")
    os.rename("d/f", "d/g")
    os.unlink("f")
    say(get("d/g"), os.stat("d/g").st_nlink)
    os.mkfifo("p")
    tell("of a fifo", os.link, "p", "p2")
    say(shape("p"))
    for number in range(5):
        os.link("d/g", "x")
        os.rename("x", "y")
        os.unlink("y")
    say(os.stat("d/g").st_nlink)
    tree()


@section
def symlinks():
    tell("loop", lambda: (os.symlink("b", "a"), os.symlink("a", "b"), os.stat("a"))[2])
    tell("itself", lambda: (os.symlink("self", "self"), os.open("self", os.O_RDONLY))[1])
    os.mkdir("d")
    put("d/f", b"content")
    os.symlink("f", "d/rel")
    os.symlink(os.path.abspath("d"), "abs")
    os.symlink("d", "l0")
    for number in range(1, 45):
        os.symlink("l%d" % (number - 1), "l%d" % number)
    for number in (38, 39, 40, 44):
        tell("chain %d" % number, lambda: os.listdir("l%d" % number) and None)
    say(get("abs/rel"), get("l5/rel"), os.readlink("d/rel"))
    say(os.lstat("d/rel").st_size, shape("d/rel"))
    for length in (1, 255, 256, 1023, 4095):
        os.symlink("t" * length, "long%d" % length)
        say(len(os.readlink("long%d" % length)), os.lstat("long%d" % length).st_size)
    tell("too long", os.symlink, "t" * 4096, "x")
    tell("empty", os.symlink, "", "x")
    tell("onto existing", os.symlink, "x", "abs")
    os.symlink(b"\xff/\n", b"bytes")
    say(os.readlink(b"bytes"))
    tell("readlink of file", os.readlink, "d/f")
    tell("chmod through", os.chmod, "d/rel", 0o600)
    say(shape("d/f"), shape("d/rel"))
    tell("trailing slash", lambda: os.lstat("abs/") and None)
    say(stat.S_ISDIR(os.lstat("abs/").st_mode))
    tell("unlink with slash", os.unlink, "abs/")
    tell("rmdir of link", os.rmdir, "abs")
    tell("mkdir over dangling", lambda: (os.symlink("nowhere", "dangling"), os.mkdir("dangling"))[1])
    os.rename("abs", "renamed")
    say(get("renamed/f"))
    os.unlink("d/rel")
    os.symlink("other", "d/rel")
    say(os.readlink("d/rel"))


@section
def specials():
    os.mkfifo("p", 0o640)
    say(shape("p"))
    pid = os.fork()
    if pid == 0:
        fd = os.open("p", os.O_WRONLY)
        os.write(fd, b"through the fifo")
        os._exit(0)
    fd = os.open("p", os.O_RDONLY)
    say(os.read(fd, 100), os.waitpid(pid, 0)[1])
    tell("no reader", os.open, "p", os.O_WRONLY | os.O_NONBLOCK) if os.close(fd) is None else None
    tell("chmod", os.chmod, "p", 0o600)
    tell("truncate", os.truncate, "p", 0)
    tell("existing", os.mkfifo, "p")
    server = socket.socket(socket.AF_UNIX)
    server.bind("sock")
    server.listen()
    say(stat.S_ISSOCK(os.stat("sock").st_mode), os.stat("sock").st_size)
    client = socket.socket(socket.AF_UNIX)
    tell("connect", client.connect, "sock")
    client.send(b"hello")
    connection, _ = server.accept()
    say(connection.recv(10))
    tell("bind again", socket.socket(socket.AF_UNIX).bind, "sock")
    tell("open a socket", os.open, "sock", os.O_RDONLY)
    tell("chmod a socket", os.chmod, "sock", 0o600)
    os.rename("sock", "sock2")
    tell("connect to the new name", socket.socket(socket.AF_UNIX).connect, "sock2")
    os.unlink("sock2")
    tell("connect to nothing", socket.socket(socket.AF_UNIX).connect, "sock2")
    tell("regular by mknod", os.mknod, "reg", stat.S_IFREG | 0o600)
    say(shape("reg"))
    tell("directory by mknod", os.mknod, "dir", stat.S_IFDIR | 0o600)
    tell("socket by mknod", os.mknod, "s", stat.S_IFSOCK | 0o600)
    say(shape("s"))

    def datagrams():
        datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        datagram.bind("datagram")
        try:
            return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "datagram")
        finally:
            os.unlink("datagram")

    tell("datagrams", datagrams)
    tree()


@section
def directories():
    for number in range(10_000):
        os.close(os.open("n%05d" % number, os.O_CREAT | os.O_WRONLY, 0o644))
    say(len(os.listdir(".")))
    seen = deleted = 0
    with os.scandir(".") as entries:
        for entry in entries:
            seen += 1
            if int(entry.name[1:]) % 3 == 0:
                os.unlink(entry.name)
                deleted += 1
    say(seen, deleted)
    left = sorted(os.listdir("."))
    say(len(left), left[:4], len(set(left)))
    with os.scandir(".") as entries:
        for entry in entries:
            os.rename(entry.name, "m" + entry.name[1:]) if entry.name[0] == "n" else None
    say(len(os.listdir(".")), all(name[0] == "m" for name in os.listdir(".")))
    kinds = os.path.join("..", "kinds")
    os.mkdir("x")
    os.chdir("x")
    put("f")
    os.mkdir("d")
    os.symlink("f", "s")
    os.mkfifo("p")
    with os.scandir(".") as entries:
        say(sorted((e.name, e.is_file(follow_symlinks=False), e.is_dir(follow_symlinks=False), e.is_symlink()) for e in entries))
    with os.scandir(".") as entries:
        say(all(e.inode() == os.lstat(e.name).st_ino for e in entries))
    libc.opendir.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long

    class Dirent(ctypes.Structure):
        _fields_ = [("ino", ctypes.c_ulong), ("off", ctypes.c_long), ("len", ctypes.c_ushort), ("kind", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]

    libc.readdir.restype = ctypes.POINTER(Dirent)
    for number in range(500):
        put("e%d" % number)
    stream = ctypes.c_void_p(libc.opendir(b"."))

    def entries():
        found = []
        while True:
            position = libc.telldir(stream)
            entry = libc.readdir(stream)
            if not entry:
                return found
            found.append((position, entry.contents.name, entry.contents.ino != 0))

    first = entries()
    say(len(first), {b".", b".."} <= {name for _, name, _ in first}, all(ino for _, _, ino in first))
    libc.rewinddir(stream)
    say([name for _, name, _ in entries()] == [name for _, name, _ in first])
    for index in (0, 1, 2, 17, 250, len(first) - 1):
        libc.seekdir(stream, ctypes.c_long(first[index][0]))
        say(index, [name for _, name, _ in entries()] == [name for _, name, _ in first[index:]])
    put("late")
    libc.rewinddir(stream)
    say(b"late" in [name for _, name, _ in entries()])
    os.unlink("late")
    libc.rewinddir(stream)
    say(b"late" in [name for _, name, _ in entries()])
    libc.closedir(stream)
    tell("list a file", os.listdir, "f")


@section
def permissions():
    put("f", b"x")
    for mode in (0, 0o400, 0o200, 0o777, 0o4755, 0o2755, 0o6777, 0o1644):
        tell("chmod %o" % mode, os.chmod, "f", mode)
        say(shape("f"), os.access("f", os.R_OK), os.access("f", os.W_OK), os.access("f", os.X_OK))
        tell("read", lambda: (os.close(os.open("f", os.O_RDONLY)), None)[1])
        tell("write", lambda: (os.close(os.open("f", os.O_WRONLY)), None)[1])
    for mode in (0o4755, 0o2755, 0o6755, 0o2644):
        os.chmod("f", mode)
        os.write(os.open("f", os.O_WRONLY), b"x")
        say("written %o" % mode, shape("f"))
        os.chmod("f", mode)
        os.truncate("f", 0)
        say("truncated %o" % mode, shape("f"))
        os.chmod("f", mode)
        tell("chown", os.chown, "f", os.getuid(), os.getgid())
        say("chowned %o" % mode, shape("f"))
    os.chmod("f", 0o644)
    os.mkdir("d", 0o755)
    put("d/f", b"x")
    for mode in (0o000, 0o444, 0o111, 0o555, 0o333):
        os.chmod("d", mode)
        tell("list %o" % mode, os.listdir, "d")
        tell("stat in %o" % mode, lambda: os.stat("d/f") and None)
        tell("create in %o" % mode, lambda: os.close(os.open("d/g", os.O_CREAT | os.O_WRONLY)))
        tell("unlink in %o" % mode, os.unlink, "d/g")
        tell("enter %o" % mode, lambda: forked(lambda: os.chdir("d")))
    os.chmod("d", 0o2775)
    os.mkdir("d/sub")
    put("d/inherits")
    say(shape("d/sub"), shape("d/inherits"))
    tell("chown to another", os.chown, "f", 12345, -1)
    tell("chgrp to another", os.chown, "f", -1, 12345)
    say(shape("f"))
    tell("exec without x", lambda: os.execv("./f", ["f"]))
    put("script", b"#!/bin/sh\necho ran $0 $1\n")
    os.chmod("script", 0o755)
    say(os.popen("./script argument").read())
    # What was made before its directory was closed is there afterwards.
    os.mkdir("shut")
    directory = os.open("shut", os.O_RDONLY)
    for mode in (0o600, 0o500, 0o300, 0):
        fd = os.open(f"shut/made-{mode:o}", os.O_CREAT | os.O_WRONLY, 0o644)
        put(f"shut/old-{mode:o}", b"old content")
        rewrite = os.open(f"shut/old-{mode:o}", os.O_TRUNC | os.O_WRONLY)
        os.write(fd, b"content")
        os.write(rewrite, b"new")
        os.fchmod(directory, mode)
        os.write(rewrite, b" content")
        tell("sync", os.fsync, fd)
        tell("sync", os.fsync, rewrite)
        tell("chmod", os.fchmod, fd, 0o640)
        tell("times", os.utime, rewrite, (1, 1))
        tell("close", os.close, fd)
        tell("close", os.close, rewrite)
        os.fchmod(directory, 0o700)
        say(sorted(os.listdir("shut")), get(f"shut/made-{mode:o}"), get(f"shut/old-{mode:o}"))
    # Listing what may not be searched leaves alone what is open.
    os.mkdir("closed")
    fd = os.open("closed/f", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, b"content")
    directory = os.open("closed", os.O_RDONLY)
    os.mkdir("closed/d")
    here = os.open(".", os.O_RDONLY)
    os.chdir("closed/d")
    os.listdir(".")
    os.fchmod(directory, 0o600)
    say(sorted(os.listdir(directory)))
    tell("open in what may not be searched", lambda: os.fstat(fd).st_size)
    tell("read there", os.pread, fd, 20, 0)
    tell("write there", os.write, fd, b"more")
    tell("work there", lambda: (os.stat(".").st_mode, os.listdir(".")))
    os.fchdir(here)
    os.fchmod(directory, 0o700)
    tell("and again", get, "closed/f")
    tell("and again", os.listdir, "closed/d")


@section
def limits():
    for name in (".",):
        status = os.statvfs(name)
        say(status.f_namemax, status.f_bsize > 0, status.f_blocks > 0, status.f_files > 0, status.f_bavail <= status.f_blocks)
    tell("pathconf", os.pathconf, ".", "PC_NAME_MAX")
    tell("file too large", lambda: os.truncate("missing", 1))
    put("f")
    tell("truncate huge", os.truncate, "f", 1 << 62)
    import resource, signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        fd = os.open("limited", os.O_CREAT | os.O_WRONLY)
        return os.write(fd, b"x" * 2000), os.fstat(fd).st_size, os.write(fd, b"x")

    say(forked(limited), os.stat("limited").st_size)

    def starved():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        fds = []
        try:
            while True:
                fds.append(os.open("f", os.O_RDONLY))
        except OSError as error:
            return errno.errorcode[error.errno]

    say(forked(starved))
    fds = [os.open("f", os.O_RDONLY) for _ in range(500)]
    say(len(fds), len({os.fstat(fd).st_ino for fd in fds}))
    poll = select.poll()
    poll.register(fds[0], select.POLLIN)
    say([event for _, event in poll.poll(0)])
    tell("ioctl", fcntl.ioctl, fds[0], 0x12345678, b"\0" * 8)
    epoll = select.epoll()
    tell("epoll of a file", epoll.register, fds[0], select.EPOLLIN)


@section
def unnamed():
    """Whether unnamed files can be made is the file system's choice; refusing them must be honest."""
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        say(error.errno in (errno.EOPNOTSUPP, errno.EISDIR))
        say(os.listdir("."))
        say(True)
        return
    say(os.write(fd, b"x") == 1 and os.fstat(fd).st_nlink == 0)
    say(os.listdir("."))
    check(libc.linkat(AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, b"named", 0x400))
    say(get("named") == b"x")
    os.unlink("named")


@section
def many_processes():
    """Creates, renames, links and removals by several processes at once lose nothing."""
    pids = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for number in range(150):
                    name = "w%d-%d" % (worker, number)
                    put(name + ".tmp", name.encode())
                    os.rename(name + ".tmp", name)
                    os.link(name, name + ".link")
                    put("common", name.encode())
                    if number % 2:
                        os.unlink(name)
                        os.rename(name + ".link", name)
                    assert get(name) == name.encode(), name
                    try:
                        os.mkdir("shared%d" % number)
                    except FileExistsError:
                        pass
                os._exit(0)
            except BaseException as error:
                say(repr(error))
                os._exit(1)
        pids.append(pid)
    say([os.waitpid(pid, 0)[1] for pid in pids])
    listed = sorted(os.listdir("."))
    say(len(listed), digest("\n".join(listed).encode()))
    say(all(get("w%d-%d" % (worker, number)) == b"w%d-%d" % (worker, number) for worker in range(4) for number in range(150)))
    say(get("common").startswith(b"w"))
    os.unlink("common")
    failures = []
    stop = threading.Event()

    def reader():
        while not stop.is_set():
            try:
                content = get("replaced")
                if len(content) != 5000 or len(set(content)) != 1:
                    failures.append(len(content))
            except OSError as error:
                failures.append(errno.errorcode[error.errno])

    put("replaced", b"0" * 5000)
    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for round in range(500):
        put("replacement", b"%d" % (round % 10) * 5000)
        os.rename("replacement", "replaced")
    stop.set()
    for thread in threads:
        thread.join()
    say(failures[:5])


if len(sys.argv) == 1:
    say("\n".join(SECTIONS))
else:
    os.umask(0o022)
    os.mkdir(sys.argv[1])
    os.chdir(sys.argv[1])
    SECTIONS[sys.argv[1]]()
