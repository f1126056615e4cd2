"""Tries to change something in the directory given as the first argument by every way around a path check, from the
current directory, and prints `way<TAB>outcome`: `out` where the change was made, else the errno's name.
The second argument is a descriptor that was opened for writing before the start, the third a directory that may be written
besides the current one."""
import ctypes, errno, os, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)
target, inherited, spare = sys.argv[1], int(sys.argv[2]), sys.argv[3]
here = os.getcwd()
AT_FDCWD = -100
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 1, 32, 4096, 16384


class Refused(Exception):
    pass


def check(result):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def write(path, name):
    with open(path, "ab", buffering=0) as file:
        file.write(name.encode())


def victim(name):
    """A file outside that is there before the attempt."""
    return os.path.join(target, name)


def relative(path):
    return os.path.join(*[".."] * len([part for part in here.split("/") if part]), path.lstrip("/"))


def in_child(act):
    """Runs `act` in a child, since it changes the process. Exit status 0 or the errno."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
        except BaseException:
            os._exit(255)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise OSError(status if status in errno.errorcode else errno.EIO, "child")


def own_namespace():
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        try:
            check(libc.unshare(CLONE_NEWNS))
            return
        except OSError:
            pass
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    with open("/proc/self/setgroups", "w") as file:
        file.write("deny")
    with open("/proc/self/uid_map", "w") as file:
        file.write("0 %d 1" % uid)
    with open("/proc/self/gid_map", "w") as file:
        file.write("0 %d 1" % gid)


def mount(source, at, kind, flags):
    check(libc.mount(os.fsencode(source), os.fsencode(at), kind, ctypes.c_ulong(flags), None))


def bind(name):
    os.mkdir("bound")

    def act():
        own_namespace()
        mount(target, "bound", None, MS_BIND)
        write("bound/" + name, name)

    in_child(act)


def bind_recursive(name):
    def act():
        own_namespace()
        mount("/", spare, None, MS_BIND | MS_REC)
        write(spare + victim(name), name)

    in_child(act)


def remount(name):
    def act():
        own_namespace()
        for at in (target, os.path.dirname(target), "/"):
            try:
                mount("none", at, None, MS_REMOUNT | MS_BIND)
            except OSError as error:
                failure = error
        try:
            write(victim(name), name)
        except OSError:
            raise

    in_child(act)


def unmount(name):
    def act():
        own_namespace()
        for at in (here, spare, "/"):
            libc.umount2(os.fsencode(at), 2)
        write(victim(name), name)

    in_child(act)


def through_link_to_file(name):
    os.symlink(victim(name), "link-file")
    write("link-file", name)


def through_link_to_directory(name):
    os.symlink(target, "link-directory")
    write("link-directory/" + name, name)


def through_dangling_link(name):
    os.symlink(victim(name + ".new"), "link-dangling")
    os.close(os.open("link-dangling", os.O_WRONLY | os.O_CREAT, 0o644))


def through_link_chain(name):
    os.symlink(relative(target), "chain-1")
    os.symlink("chain-1", "chain-2")
    os.mkdir("chain")
    os.symlink("../chain-2", "chain/3")
    write("chain/3/" + name, name)


def through_proc_link(name):
    os.symlink("/proc/self/root" + target, "link-proc")
    write("link-proc/" + name, name)


def descriptor_of_file(name):
    fd = os.open(victim(name), os.O_RDONLY)
    write("/proc/self/fd/%d" % fd, name)


def descriptor_of_directory(name):
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open(name + ".new", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd))


def path_descriptor(name):
    fd = os.open(target, os.O_PATH | os.O_DIRECTORY)
    write("/proc/self/fd/%d/%s" % (fd, name), name)


def change_directory(name):
    def act():
        os.chdir(target)
        write(name, name)

    in_child(act)


def directory_of(pid, link):
    def act(name):
        write("/proc/%s/%s/%s" % (pid, link, relative(victim(name)) if link == "cwd" else victim(name).lstrip("/")), name)

    return act


def directory_of_child(name):
    child = subprocess.Popen(["sleep", "60"], cwd=target)
    try:
        write("/proc/%d/cwd/%s" % (child.pid, name), name)
    finally:
        child.kill()
        child.wait()


def hard_link(name):
    os.link(victim(name), "hard")
    write("hard", name)


def hard_link_by_descriptor(name):
    fd = os.open(victim(name), os.O_RDONLY)
    check(libc.linkat(AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, b"hard-fd", 0x400))
    write("hard-fd", name)


def rename_out(name):
    open("moved", "w").close()
    os.rename("moved", victim(name + ".new"))


def rename_in(name):
    os.rename(victim(name), "taken")


def exchange(name):
    open("exchanged", "w").close()
    check(libc.renameat2(AT_FDCWD, b"exchanged", AT_FDCWD, os.fsencode(victim(name)), 2))


def renamed_parent(name):
    """Keeps a directory as the current one while it is moved, then climbs out by `..`."""
    os.makedirs("p/q/r")
    os.mkdir(os.path.join(spare, "there"))

    def act():
        os.chdir("p/q/r")
        os.rename(os.path.join(here, "p/q"), os.path.join(here, "moved-q"))
        depth = len([part for part in here.split("/") if part]) + 3
        write("../" * depth + victim(name).lstrip("/"), name)

    in_child(act)


def swapped_parent(name):
    """Exchanges a directory with a link to the outside while a path through it is in use."""
    os.mkdir("swap")
    open("swap/" + name, "w").close()
    os.symlink(target, "swap-link")
    check(libc.renameat2(AT_FDCWD, b"swap", AT_FDCWD, b"swap-link", 2))
    write("swap/" + name, name)


def handle(name):
    """Opens by file handle, around every path."""
    buffer = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(buffer).value = 128
    mount_id = ctypes.c_int()
    check(libc.name_to_handle_at(AT_FDCWD, os.fsencode(victim(name)), buffer, ctypes.byref(mount_id), 0))
    root = os.open("/", os.O_RDONLY)
    fd = check(libc.open_by_handle_at(root, buffer, os.O_WRONLY | os.O_APPEND))
    os.write(fd, name.encode())


WAYS = [
    ("direct", lambda n: write(victim(n), n)),
    ("create", lambda n: os.close(os.open(victim(n + ".new"), os.O_WRONLY | os.O_CREAT, 0o644))),
    ("mkdir", lambda n: os.mkdir(victim(n + ".new"))),
    ("symlink", lambda n: os.symlink("x", victim(n + ".new"))),
    ("mkfifo", lambda n: os.mkfifo(victim(n + ".new"))),
    ("unlink", lambda n: os.unlink(victim(n))),
    ("truncate", lambda n: os.truncate(victim(n), 0)),
    ("chmod", lambda n: os.chmod(victim(n), 0o600)),
    ("utimes", lambda n: os.utime(victim(n))),
    ("xattr", lambda n: os.setxattr(victim(n), "user.x", b"1")),
    ("dot-dot", lambda n: write(relative(victim(n)), n)),
    ("link-file", through_link_to_file),
    ("link-directory", through_link_to_directory),
    ("link-dangling", through_dangling_link),
    ("link-chain", through_link_chain),
    ("link-proc", through_proc_link),
    ("proc-self-root", lambda n: write("/proc/self/root" + victim(n), n)),
    ("proc-self-cwd", lambda n: write("/proc/self/cwd/" + relative(victim(n)), n)),
    ("proc-thread-root", lambda n: write("/proc/thread-self/root" + victim(n), n)),
    ("proc-fd-file", descriptor_of_file),
    ("proc-fd-path", path_descriptor),
    ("directory-fd", descriptor_of_directory),
    ("chdir", change_directory),
    ("proc-parent-cwd", directory_of(os.getppid(), "cwd")),
    ("proc-parent-root", directory_of(os.getppid(), "root")),
    ("proc-1-cwd", directory_of(1, "cwd")),
    ("proc-1-root", directory_of(1, "root")),
    ("proc-child-cwd", directory_of_child),
    ("hard-link", hard_link),
    ("hard-link-fd", hard_link_by_descriptor),
    ("rename-out", rename_out),
    ("rename-in", rename_in),
    ("exchange", exchange),
    ("renamed-parent", renamed_parent),
    ("swapped-parent", swapped_parent),
    ("bind-mount", bind),
    ("bind-root", bind_recursive),
    ("remount", remount),
    ("unmount", unmount),
    ("file-handle", handle),
    ("inherited-fd", lambda n: os.write(inherited, n.encode())),
]

if sys.argv[4:] == ["names"]:
    for way, _ in WAYS:
        print(way)
    sys.exit()
for way, act in WAYS:
    try:
        act(way)
        outcome = "out"
    except OSError as error:
        outcome = errno.errorcode[error.errno]
    print(way, outcome, sep="\t", flush=True)
