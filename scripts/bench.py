"""The measuring part of `scripts/bench`: see there.

One worker process stays in the plain directory, another one inside the mount; each does the same piece of work in turn, so
that what else the machine does hits both. Preparation isn't measured."""
import argparse, json, os, pwd, shutil, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STOCKADE = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "stockade")
PYTHON = ["/usr/bin/python3", "-I", "-S", "-B"]
USER = "stockade-test"

WORKER = r"""
import json, os, subprocess, sys, time
SMALL = sorted(os.path.join(d, f) for d, _, fs in os.walk("tree") for f in fs) if os.path.isdir("tree") else []

def opens():
    for path in SMALL:
        os.close(os.open(path, os.O_RDONLY))

def stats():
    for _ in range(10):
        for path in SMALL:
            os.stat(path)

def missing():
    for path in SMALL:
        for _ in range(5):
            try:
                os.stat(path + ".missing")
            except OSError:
                pass

def reads():
    for path in SMALL:
        fd = os.open(path, os.O_RDONLY)
        while os.read(fd, 1 << 17):
            pass
        os.close(fd)

def writes():
    fd = os.open("small-writes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    block = b"x" * 512
    for _ in range(100000):
        os.write(fd, block)
    os.close(fd)

def rewrites():
    rewrite(os.O_WRONLY | os.O_TRUNC)

def cuts():
    rewrite(os.O_RDWR)

def rewrite(flags):
    for number in range(3000):
        fd = os.open("many/%d" % number, flags)
        if not flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
        os.write(fd, b"x" * 1000)
        os.close(fd)

def creates():
    os.mkdir("many")
    for number in range(3000):
        os.close(os.open("many/%d" % number, os.O_WRONLY | os.O_CREAT))

def fio(kind):
    report = subprocess.run(["fio", "--name=x", "--filename=fio-file", "--size=128M", "--bs=4k", "--rw=" + kind, "--ioengine=psync",
        "--runtime=3", "--time_based", "--output-format=json"], capture_output=True, check=True).stdout
    job = json.loads(report[report.index(b"{"):])["jobs"][0]
    return 1 / job["read" if "read" in kind else "write"]["iops"]

def shell(command):
    done = subprocess.run(["bash", "-ec", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit("failed: %s: %s" % (command, done.stderr.decode(errors="replace")[-500:]))

for line in sys.stdin:
    prepare, kind, work = json.loads(line)
    if prepare:
        shell(prepare)
    start = time.monotonic()
    if kind == "shell":
        shell(work)
        took = time.monotonic() - start
    elif kind == "fio":
        took = fio(work)
    else:
        globals()[work]()
        took = time.monotonic() - start
    print(json.dumps(took), flush=True)
"""

MANY = "mkdir -p many && for i in $(seq 0 2999); do echo old > many/$i; done"

# What the work inside can be measured with, beside the default.
VARIANTS = {"inside": [], "atomic": ["--publish", "atomic"], "direct": ["--publish", "direct"], "history": ["--keep-history", "--history-size", "20GB"]}

# label, unit, rounds (a share of those asked for), preparation, kind, work
ROWS = [
    ("cargo build", "s", 0.4, "rm -rf crate/target", "shell", "cd crate && cargo build -q --offline"),
    ("cargo build, nothing to do", "s", 1, "cd crate && cargo build -q --offline", "shell", "cd crate && cargo build -q --offline"),
    ("git status", "s", 1, "", "shell", "cd repository && git status"),
    ("git status, index refreshed", "s", 1, "cd repository && touch .git/index && find . -name '*.rs' -not -path './.git/*' -exec touch {} +", "shell", "cd repository && git status"),
    ("rg", "s", 1, "", "shell", "rg -c 'fn ' repository"),
    ("find with stat", "s", 1, "", "shell", "find tree -printf '%s %T@ %p\\n'"),
    ("untar", "s", 1, "rm -rf untarred && mkdir untarred", "shell", "tar xf tree.tar -C untarred"),
    ("cp -r", "s", 1, "rm -rf copied", "shell", "cp -r tree copied"),
    ("rm -rf", "s", 1, "rm -rf removed && cp -r tree removed && sync -f removed", "shell", "rm -rf removed"),
    ("read every file", "s", 1, "", "python", "reads"),
    ("open + close every file", "s", 1, "", "python", "opens"),
    ("stat storm (10 × every file)", "s", 1, "", "python", "stats"),
    ("stat of missing names (5 × every file)", "s", 1, "", "python", "missing"),
    ("create 3,000 files", "s", 1, "rm -rf many", "python", "creates"),
    ("rewrite 3,000 files", "s", 1, MANY, "python", "rewrites"),
    ("cut and rewrite 3,000 files", "s", 1, MANY, "python", "cuts"),
    ("100,000 writes of 512 bytes", "s", 1, "rm -f small-writes", "python", "writes"),
    ("sequential write, 256 MiB", "s", 1, "rm -f sequential", "shell", "dd if=/dev/zero of=sequential bs=1M count=256"),
    ("sequential read, 256 MiB", "s", 1, "test -e sequential || dd if=/dev/zero of=sequential bs=1M count=256", "shell", "dd if=sequential of=/dev/null bs=1M"),
    ("random 4 KiB read, each", "µs", 0.6, "test -e fio-file || dd if=/dev/zero of=fio-file bs=1M count=128", "fio", "randread"),
    ("random 4 KiB write, each", "µs", 0.6, "test -e fio-file || dd if=/dev/zero of=fio-file bs=1M count=128", "fio", "randwrite"),
    ("SQLite, WAL, 500 transactions", "s", 1, "rm -f db db-*", "shell",
     "(echo 'PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE t(a);'; for i in $(seq 500); do echo \"INSERT INTO t VALUES('$i');\"; done) | sqlite3 db"),
]


def run(argv, **options):
    return subprocess.run(argv, check=True, **options)


class Side:
    """One identity: its directories, its two workers."""

    def __init__(self, who, base, toolchain, variants):
        self.who = who
        self.names = ["native"] + variants
        self.top = os.path.join(base, who)
        os.mkdir(self.top)
        os.chmod(self.top, 0o755)
        self.binary = os.path.join(self.top, "stockade")
        shutil.copy(STOCKADE, self.binary)
        self.prefix = []
        path = toolchain + "/bin:/usr/local/bin:/usr/bin:/bin"
        self.environment = {"PATH": path, "HOME": os.path.join(self.top, "home"), "LANG": "C.UTF-8", "XDG_STATE_HOME": os.path.join(self.top, "state"),
                            "CARGO_HOME": os.path.join(self.top, "home", "cargo"), "CARGO_INCREMENTAL": "0", "GIT_OPTIONAL_LOCKS": "1"}
        if who == "user" and os.getuid() == 0:
            try:
                pwd.getpwnam(USER)
            except KeyError:
                run(["useradd", "--create-home", USER])
            self.prefix = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--"]
        for name in self.names + ["home", "state"]:
            os.mkdir(os.path.join(self.top, name))
        for name in self.names:
            prepare(os.path.join(self.top, name))
        if self.prefix:
            run(["chown", "-hR", USER + ":" + USER] + [os.path.join(self.top, name) for name in self.names + ["home", "state"]])
        self.workers = {}

    def start(self):
        for name in self.names:
            directory = os.path.join(self.top, name)
            argv = PYTHON + ["-c", WORKER]
            if name in VARIANTS:
                argv = [self.binary, "run", "-q", "--allow-write", "**"] + VARIANTS[name] + ["--"] + argv
            self.workers[name] = subprocess.Popen(self.prefix + argv, cwd=directory, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name, row):
        worker = self.workers[name]
        worker.stdin.write(json.dumps(row[3:]) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        if not line:
            raise SystemExit("the worker %s of %s ended" % (name, self.who))
        return json.loads(line)

    def stop(self):
        for worker in self.workers.values():
            worker.stdin.close()
            worker.wait(60)

    def measure(self, row, rounds):
        """Medians, the plain directory's first."""
        times = {name: [] for name in self.names}
        for number in range(max(3, round(rounds * row[2]))):
            for name in self.names if number % 2 == 0 else reversed(self.names):
                times[name].append(self.ask(name, row))
        return tuple(statistics.median(times[name]) for name in self.names)

    def launch(self, rounds):
        bare = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--die-with-parent", "--", "true"]
        ours = [self.binary, "run", "-q", "--allow-write", "**", "--", "true"]
        directory = os.path.join(self.top, self.names[-1])
        times = {"bare": [], "ours": []}
        for number in range(rounds + 2):
            for name, argv in (("bare", bare), ("ours", ours)):
                start = time.monotonic()
                run(self.prefix + argv, cwd=directory, env=self.environment)
                if number >= 2:
                    times[name].append(time.monotonic() - start)
        return statistics.median(times["bare"]), statistics.median(times["ours"])


def registry():
    home = os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))
    top = os.path.join(home, "registry", "src")
    return sorted(os.path.join(top, index, name) for index in os.listdir(top) for name in os.listdir(os.path.join(top, index)))


def locked(name):
    block = next(part for part in open(os.path.join(ROOT, "Cargo.lock")).read().split("[[package]]") if 'name = "%s"\n' % name in part)
    field = lambda key: next(line.split('"')[1] for line in block.splitlines() if line.startswith(key + " ="))
    return field("version"), field("checksum")


def prepare(directory):
    """A tree of some thousand real files, as a tree, a tar file and a repository, and a crate with dependencies."""
    tree = os.path.join(directory, "tree")
    os.mkdir(tree)
    files = 0
    for source in registry():
        inside = sum(len(names) for _, _, names in os.walk(source))
        if inside > 500:
            continue
        shutil.copytree(source, os.path.join(tree, os.path.basename(source)), symlinks=True)
        files += inside
        if files >= 4000:
            break
    run(["tar", "cf", "tree.tar", "tree"], cwd=directory)
    run(["cp", "-r", "tree", "repository"], cwd=directory)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        run(git + command, cwd=os.path.join(directory, "repository"))
    crate = os.path.join(directory, "crate")
    os.makedirs(os.path.join(crate, "src"))
    os.makedirs(os.path.join(crate, ".cargo"))
    for name in ("syn", "quote", "proc-macro2", "unicode-ident", "itoa", "memchr"):
        version, checksum = locked(name)
        source = next(path for path in registry() if path.endswith("/%s-%s" % (name, version)))
        target = os.path.join(crate, "vendor", name)
        shutil.copytree(source, target)
        with open(os.path.join(target, ".cargo-checksum.json"), "w") as file:
            json.dump({"files": {}, "package": checksum}, file)
    open(os.path.join(crate, ".cargo", "config.toml"), "w").write('[source.crates-io]\nreplace-with = "v"\n[source.v]\ndirectory = "vendor"\n')
    open(os.path.join(crate, "Cargo.toml"), "w").write(
        '[package]\nname = "bench"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nsyn = { version = "*", features = ["full"] }\nitoa = "*"\nmemchr = "*"\n[workspace]\n')
    open(os.path.join(crate, "src", "main.rs"), "w").write("fn main() { println!(\"{}\", syn::parse_str::<syn::File>(\"fn a() {}\").is_ok()); }\n")


def toolchain(base):
    """A toolchain that an ordinary user can run too: links, where it lies in a directory that is root's alone."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    if os.getuid() != 0:
        return sysroot
    links = os.path.join(base, "toolchain")
    os.mkdir(links)
    parts = [os.path.join(sysroot, part) for part in ("bin", "lib")]
    if subprocess.run(["cp", "-al"] + parts + [links], stderr=subprocess.DEVNULL).returncode:
        run(["cp", "-a"] + parts + [links])
    return links


def shown(value, unit):
    return "%.0f µs" % (value * 1e6) if unit == "µs" and value >= 1e-5 else "%.1f µs" % (value * 1e6) if unit == "µs" else "%.3f s" % value


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures work inside the mount against the plain directory.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds a row (default 5)")
    parser.add_argument("--who", default="root,user" if os.getuid() == 0 else "user", help="root, user, or both (default)")
    parser.add_argument("--variants", default="inside", help="what to compare with the plain directory: " + ", ".join(VARIANTS) + " (the default)")
    parser.add_argument("--only", default="", help="only the rows whose name contains this, or one of these (a comma in between)")
    parser.add_argument("--directory", default="/var/tmp", help="where to work; its file system is what is measured")
    arguments = parser.parse_args()
    sides, variants, table = arguments.who.split(","), arguments.variants.split(","), {}
    only = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir=arguments.directory) as base:
        os.chmod(base, 0o755)
        tools = toolchain(base)
        for who in sides:
            print("preparing", who, file=sys.stderr, flush=True)
            side = Side(who, base, tools, variants)
            if "launch" in arguments.only or not arguments.only:
                table[("launch of `true` (bare bubblewrap | stockade)", who)] = ("ms",) + side.launch(arguments.rounds * 6)
            side.start()
            try:
                for row in ROWS:
                    if any(part in row[0] for part in only):
                        table[(row[0], who)] = (row[1],) + side.measure(row, arguments.rounds)
                        _, native, *others = table[(row[0], who)]
                        print(who, row[0], *("%.2f" % (other / native) for other in others), file=sys.stderr, flush=True)
            finally:
                side.stop()
    print("| work | " + " | ".join(" | ".join(["%s: plain" % who] + ["%s: %s | ratio" % (who, name) for name in variants]) for who in sides) + " |")
    print("|---|" + ("---:|" + "---:|---:|" * len(variants)) * len(sides))
    for label in dict.fromkeys(label for label, _ in table):
        cells = []
        for who in sides:
            unit, native, *others = table[(label, who)]
            if unit == "ms":
                inside = others[0]
                cells += ["%.1f ms" % (native * 1e3), "%.1f ms" % (inside * 1e3), "+%.1f ms" % ((inside - native) * 1e3)]
            else:
                cells += [shown(native, unit)]
                for other in others:
                    cells += [shown(other, unit), "%.2f" % (other / native)]
        print("| " + " | ".join([label] + cells) + " |")


main()
