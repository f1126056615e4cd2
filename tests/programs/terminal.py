"""Runs a command on a terminal of its own, types keys once certain text is on the screen, and says what was seen.

usage: terminal.py COLUMNS LINES STEPS COMMAND...
STEPS is JSON: a list of [text to wait for, keys to type then]; with [text, keys, COLUMNS, LINES] the terminal gets another size
first. Exits with the command's status."""
import fcntl, json, os, pty, re, select, signal, struct, sys, termios, time

columns, lines, steps, argv = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
before = termios.tcgetattr(slave)
child = os.fork()
if child == 0:
    os.close(master)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(slave, fd)
    os.environ["TERM"] = "xterm-256color"
    os.execvp(argv[0], argv)


# Control sequences, commands and strings to the terminal, and the short ones.
SEQUENCE = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]+[0-~]|[0-OQ-WYZ`-~=>])"
)


class Screen:
    """Enough of a terminal for what full-screen programs write: the cursor's moves, erasing, and text."""

    def __init__(self):
        self.cells = [[" "] * columns for _ in range(lines)]
        self.x = self.y = 0
        self.left = ""
        self.alternate = 0

    def resize(self, columns_now, lines_now):
        global columns, lines
        columns, lines = columns_now, lines_now
        self.cells = [(row + [" "] * columns)[:columns] for row in self.cells[:lines]]
        self.cells += [[" "] * columns for _ in range(lines - len(self.cells))]
        self.x, self.y = min(self.x, columns - 1), min(self.y, lines - 1)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def feed(self, text):
        text = self.left + text
        self.left = ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = SEQUENCE.match(text, at)
                if not found:
                    self.left = text[at:]
                    return
                self.escape(found.group(1))
                at = found.end()
                continue
            self.put(text[at])
            at += 1

    def put(self, letter):
        if letter == "\r":
            self.x = 0
        elif letter == "\n":
            if self.y == lines - 1:
                self.cells = self.cells[1:] + [[" "] * columns]
            self.y = min(self.y + 1, lines - 1)
        elif letter == "\b":
            self.x = max(self.x - 1, 0)
        elif letter >= " ":
            if self.x < columns:
                self.cells[self.y][self.x] = letter
            self.x += 1

    def escape(self, code):
        if code == "[?1049h":
            self.alternate += 1
        if code == "[?1049l":
            self.alternate -= 1
        numbers = [int(part or 0) for part in code[1:-1].split(";")] if re.fullmatch(r"\[[0-9;]*[A-Za-z]", code) else []
        if code[-1] in "Hf" and numbers is not None:
            self.y = min(max((numbers[0] if numbers else 1) - 1, 0), lines - 1)
            self.x = max((numbers[1] if len(numbers) > 1 else 1) - 1, 0)
        elif code[-1] == "J" and code[1:-1] == "2":
            self.cells = [[" "] * columns for _ in range(lines)]
        elif code[-1] == "K" and code[1:-1] in ("", "0"):
            for x in range(self.x, columns):
                self.cells[self.y][x] = " "
        elif code[-1] == "C" and numbers:
            self.x += max(numbers[0], 1)
        elif code[-1] == "G" and numbers:
            self.x = max(numbers[0], 1) - 1

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


screen, deadline, status = Screen(), time.monotonic() + 60, None
while status is None:
    if time.monotonic() > deadline:
        print(screen.text())
        print("waited in vain for", steps[:1])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        sys.exit(99)
    if select.select([master], [], [], 0.05)[0]:
        screen.feed(os.read(master, 65536).decode("utf-8", "replace"))
    if steps and steps[0][0] in screen.text():
        print("== " + steps[0][0] + "\n" + screen.text())
        _, keys, *size = steps.pop(0)
        if size:
            screen.resize(*size)
        os.write(master, keys.encode())
    done, status_now = os.waitpid(child, os.WNOHANG)
    if done:
        status = os.waitstatus_to_exitcode(status_now)
while select.select([master], [], [], 0)[0]:
    screen.feed(os.read(master, 65536).decode("utf-8", "replace"))
after = termios.tcgetattr(slave)
print("terminal as before:", after == before and screen.alternate == 0, "steps left:", len(steps))
sys.exit(status)
