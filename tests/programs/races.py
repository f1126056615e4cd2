# Races between threads; prints what happened how often. Usage: races.py SCENARIO ROUNDS OUTSIDE
import os, sys, threading

scenario, rounds, outside = sys.argv[1], int(sys.argv[2]), sys.argv[3]
count = {}
stop = threading.Event()


def add(name, number=1):
    count[name] = count.get(name, 0) + number


def background(body):
    def loop():
        while not stop.is_set():
            try:
                body()
            except OSError:
                pass
    thread = threading.Thread(target=loop)
    thread.start()
    return thread


def until_both(names, body):
    """Goes through the rounds, and on for a while until each outcome was seen."""
    for i in range(rounds * 50):
        if i >= rounds and all(count.get(name) for name in names):
            break
        body(i)


def put(path, data):
    with open(path, "wb", buffering=0) as file:
        file.write(data)


def swap():
    for name in ("inside", "refused"):
        add(name, 0)
    os.mkdir("real")
    os.mkdir("d")

    def swapping():
        os.rename("d", "away")
        os.symlink(outside, "d")
        os.unlink("d")
        os.rename("away", "d")

    thread = background(swapping)

    def write(i):
        try:
            fd = os.open("d/target", os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(fd, b"inside")
            os.close(fd)
            add("inside")
        except OSError:
            add("refused")
        for other in (lambda: os.chmod("d/target", 0o600), lambda: os.unlink("d/target"),
                      lambda: os.rename("d/target", "d/other"), lambda: os.mkdir("d/made")):
            try:
                other()
            except OSError:
                pass

    until_both(("inside", "refused"), write)
    stop.set()
    thread.join()


def parent():
    for name in ("written", "missed", "lost"):
        add(name, 0)
    os.mkdir("p")

    def moving():
        os.rename("p", "q")
        os.rename("q", "p")

    thread = background(moving)

    def write(i):
        try:
            fd = os.open("p/f", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            add("missed")
            return
        data = b"%d" % i
        os.pwrite(fd, data, 0)
        if os.pread(fd, len(data), 0) != data or os.fstat(fd).st_nlink != 1:
            add("lost")
        os.close(fd)
        add("written")

    until_both(("written", "missed"), write)
    stop.set()
    thread.join()
    if os.listdir("p") != ["f"]:
        add("lost")


def replace():
    for name in ("old", "new", "missing", "torn"):
        add(name, 0)
    contents = [b"o" * 5000, b"n" * 9000]
    put("f", contents[0])
    turn = [0]

    def replacing():
        turn[0] += 1
        put("f.new", contents[turn[0] % 2])
        os.rename("f.new", "f")

    thread = background(replacing)

    def read(i):
        try:
            with open("f", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            add("missing")
            return
        add("old" if data == contents[0] else "new" if data == contents[1] else "torn")

    until_both(("old", "new"), read)
    stop.set()
    thread.join()


def judge():
    for name in ("kept", "refused", "evil"):
        add(name, 0)
    fine = b"[core]\n\tbare = false\n[user]\n\tfsmonitox = evil\n"
    evil = b"[user]\n\tbare = false\n[core]\n\tfsmonitor = evil\n"
    held = [None]

    def rewriting():
        fd = held[0]
        if fd is not None:
            os.pwrite(fd, evil, 0)
            os.pwrite(fd, fine, 0)

    threads = [background(rewriting)]

    def move(i):
        fd = os.open("lock", os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(fd, fine, 0)
        held[0] = fd
        try:
            os.rename("lock", ".git/config")
            add("kept")
        except OSError:
            add("refused")
        with open(".git/config", "rb") as file:
            if b"fsmonitor" in file.read():
                add("evil")
        held[0] = None
        os.close(fd)

    until_both(("kept", "refused"), move)
    stop.set()
    for thread in threads:
        thread.join()


def deny():
    for name in ("plain", "refused", "secret"):
        add(name, 0)

    def renaming():
        os.rename("one", "three")
        os.rename("three", "one")

    def linking():
        for way in (lambda: os.link("one/x.secret", "alias"), lambda: os.rename("one/x.secret", "one/plain"),
                    lambda: os.rename("two/plain", "one/x.secret")):
            try:
                way()
            except OSError:
                pass

    threads = [background(renaming), background(linking)]
    paths = ["one/x.secret", "two/x.secret", "three/x.secret", "alias", "one/plain", "two/plain", "three/plain"]

    def read(i):
        try:
            with open(paths[i % len(paths)], "rb") as file:
                add("secret" if file.read() == b"secret" else "plain")
        except PermissionError:
            add("refused")
        except OSError:
            pass

    until_both(("plain", "refused"), read)
    stop.set()
    for thread in threads:
        thread.join()


def append():
    add("failed", 0)
    put("log", b"")

    def appending(name):
        for i in range(rounds):
            fd = os.open("log", os.O_WRONLY | os.O_APPEND)
            os.write(fd, b"%s %09d\n" % (name, i))
            os.close(fd)

    def making():
        for i in range(rounds):
            try:
                os.close(os.open("made", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                os.unlink("made")
                os.close(os.open("made", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                os.rename("made", "made2")
            except OSError as error:
                add("failed")
                print(error, file=sys.stderr)

    threads = [threading.Thread(target=appending, args=(name,)) for name in (b"a", b"b", b"c")]
    threads.append(threading.Thread(target=making))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open("log", "rb") as file:
        add("appended", len(set(file.read().splitlines())))
    add("wanted", 3 * rounds)


globals()[scenario]()
print(" ".join(f"{name}={number}" for name, number in sorted(count.items())))
