"""Runs a command on a new terminal, and types an answer when a text appears. Prints what the terminal showed.

usage: answer.py TEXT ANSWER COMMAND...
"""
import os
import pty
import select
import sys
import time

text, answer, command = sys.argv[1].encode(), sys.argv[2].encode().decode("unicode_escape").encode("latin-1"), sys.argv[3:]
pid, master = pty.fork()
if pid == 0:
    os.execv(command[0], command)
shown = b""
typed = False
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    ready, _, _ = select.select([master], [], [], 1)
    if ready:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    if not typed and text in shown:
        typed = True
        os.write(master, answer)
_, status = os.waitpid(pid, 0)
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
