"""Connects to sockets of its own and to others, and prints `what<TAB>outcome`: `reached`, or the errno's name.
The arguments are paths of the host's sockets. Says that it is ready by making the file `ready`, and goes on when the file
`go` is there."""
import ctypes, errno, os, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
STREAM, PACKET, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM


def connect(address, kind=STREAM, family=socket.AF_UNIX):
    with socket.socket(family, kind) as own:
        own.settimeout(20)
        own.connect(address)


def listener(address, kind=STREAM, family=socket.AF_UNIX):
    made = socket.socket(family, kind)
    made.bind(address)
    made.listen(64)
    return made


def in_child(act):
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


def peer():
    """The listener sees who connects, also somebody who became another user."""
    mine = listener("peer")
    os.chmod("peer", 0o777)
    os.chmod(".", 0o777)
    uid = os.getuid()
    if uid == 0:
        uid = 1
        in_child(lambda: (os.setgid(1), os.setuid(1), connect("peer")))
    else:
        connect("peer")
    seen = struct.unpack("iii", mine.accept()[0].getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if seen[1] != uid:
        raise OSError(errno.EUCLEAN, "peer %r" % (seen,))


def closed_to_others():
    """What another user may not connect to stays closed when the connection is made for them."""
    listener("closed")
    os.chmod("closed", 0o600)
    if os.getuid() != 0:
        os.chmod("closed", 0o000)
        return connect("closed")
    in_child(lambda: (os.setgid(1), os.setuid(1), connect("closed")))


def swapped(target):
    """A thread exchanges the address while calls are made with it."""
    listener("race")
    addresses = [struct.pack("=H", socket.AF_UNIX) + os.fsencode(path).ljust(90, b"\0") for path in ("race", target)]
    buffer = ctypes.create_string_buffer(addresses[0], 92)
    over = False

    def swap():
        while not over:
            for address in addresses:
                ctypes.memmove(buffer, address, 92)

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes = set()
    for _ in range(200):
        with socket.socket(socket.AF_UNIX) as own:
            own.setblocking(False)
            result = libc.connect(own.fileno(), buffer, 92)
            failed = ctypes.get_errno()
            if result == 0 and own.getpeername() not in ("race", b"race"):
                outcomes.add("OUT")
            outcomes.add("reached" if result == 0 else errno.errorcode[failed])
    over = True
    thread.join()
    if "OUT" in outcomes:
        return
    raise OSError(errno.EACCES, str(outcomes))


def swapped_descriptor(target):
    """A thread exchanges the descriptor, an Internet socket, for a Unix one while calls are made with it."""
    number = os.open("/dev/null", os.O_RDONLY)
    over = False

    def swap():
        while not over:
            for family in (socket.AF_INET, socket.AF_UNIX):
                with socket.socket(family) as own:
                    os.dup2(own.fileno(), number)

    address = struct.pack("=H", socket.AF_UNIX) + os.fsencode(target) + b"\0"
    thread = threading.Thread(target=swap)
    thread.start()
    reached = False
    for _ in range(200):
        if libc.connect(number, address, len(address)) == 0:
            reached = True
    over = True
    thread.join()
    if not reached:
        raise OSError(errno.EACCES, "never")


def fault():
    with socket.socket() as own:
        if libc.connect(own.fileno(), ctypes.c_void_p(8), 16) == -1:
            raise OSError(ctypes.get_errno(), "")


def ring():
    if libc.syscall(425, 8, ctypes.create_string_buffer(120)) == -1:
        raise OSError(ctypes.get_errno(), "")


def internet(family, host):
    mine = listener((host, 0), family=family)
    connect(mine.getsockname()[:2], family=family)


def interrupted():
    """A signal handler runs while a connection waits, as it does natively."""
    import signal

    mine = socket.socket(socket.AF_UNIX)
    mine.bind("full")
    mine.listen(0)
    first = socket.socket(socket.AF_UNIX)
    first.connect("full")

    def ring_bell(*_):
        raise OSError(errno.EINTR, "the bell")

    signal.signal(signal.SIGALRM, ring_bell)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    second = socket.socket(socket.AF_UNIX)
    second.connect("full")


here = os.getcwd()
# The network, and abstract names with it, is shared with whoever else runs this.
abstract = "\0stockade-" + os.urandom(8).hex()
os.makedirs("d/e", exist_ok=True)
kept = [listener("own"), listener("packets", PACKET), listener("d/e/deep"), listener(abstract)]
os.symlink("d/e/deep", "link")
open("plain", "w").close()
WAYS = [
    ("own", lambda: connect("own")),
    ("own-absolute", lambda: connect(here + "/own")),
    ("own-packets", lambda: connect("packets", PACKET)),
    ("own-wrong-type", lambda: connect("own", PACKET)),
    ("own-through-link", lambda: connect("link")),
    ("own-through-dots", lambda: connect("d/e/../../own")),
    ("own-through-proc", lambda: connect("/proc/self/cwd/own")),
    ("own-abstract", lambda: connect(abstract)),
    ("own-of-child", lambda: in_child(lambda: (os.chdir("d/e"), connect("deep")))),
    ("peer", peer),
    ("closed-to-others", closed_to_others),
    ("pair", lambda: socket.socketpair()),
    ("missing", lambda: connect("missing")),
    ("plain-file", lambda: connect("plain")),
    ("bad-descriptor", lambda: libc.connect(999, b"", 0) == -1 and (_ for _ in ()).throw(OSError(ctypes.get_errno(), ""))),
    ("bad-address", fault),
    ("tcp", lambda: internet(socket.AF_INET, "127.0.0.1")),
    ("tcp-refused", lambda: connect(("127.0.0.1", 1), family=socket.AF_INET)),
    ("udp", lambda: connect(("127.0.0.1", 9), DATAGRAM, socket.AF_INET)),
    ("interrupted", interrupted),
    ("datagram", lambda: socket.socket(socket.AF_UNIX, DATAGRAM)),
    ("raw", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_RAW)),
    ("datagram-pair", lambda: socket.socketpair(socket.AF_UNIX, DATAGRAM)),
    ("io-uring", ring),
]
for index, path in enumerate(sys.argv[1:]):
    WAYS += [
        ("host-%d" % index, lambda path=path: connect(path)),
        ("host-%d-link" % index, lambda path=path, index=index: (os.symlink(path, "to-%d" % index), connect("to-%d" % index))),
        ("host-%d-root" % index, lambda path=path: connect("/proc/self/root" + path)),
        ("host-%d-chdir" % index, lambda path=path: in_child(lambda: (os.chdir(os.path.dirname(path)), connect(os.path.basename(path))))),
        ("host-%d-swapped" % index, lambda path=path, index=index: in_child(lambda: (os.mkdir("s%d" % index), os.chdir("s%d" % index), swapped(path)))),
        ("host-%d-descriptor" % index, lambda path=path: swapped_descriptor(path)),
    ]

open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
for what, act in WAYS:
    try:
        act()
        outcome = "reached"
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error.errno)) if error.errno else type(error).__name__
    print(what, outcome, sep="\t", flush=True)
