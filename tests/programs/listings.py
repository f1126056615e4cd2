"""Changes a directory (the argument) in each way, lists it after each change, and again, when the kernel may answer; prints how often."""
import os, signal, sys, time

directory = sys.argv[1]
listings = 0
os.chdir(directory)


def check(wanted, what):
    global listings
    for pause in (0, 0.05, 0, 0.05):
        time.sleep(pause)
        found = sorted(os.listdir("."))
        listings += 1
        if found != sorted(wanted):
            sys.exit(f"{what}: {found} instead of {sorted(wanted)}")


def make(name, text="x"):
    with open(name, "w") as file:
        file.write(text)


check({"f"}, "at first")
make("g")
check({"f", "g"}, "a file made")
open_file = open("staged", "w")
check({"f", "g", "staged"}, "a file being made")
open_file.write("x")
open_file.close()
check({"f", "g", "staged"}, "a file published")
os.rename("staged", "moved")
check({"f", "g", "moved"}, "renamed")
os.link("g", "linked")
check({"f", "g", "moved", "linked"}, "linked")
os.symlink("g", "soft")
os.mkdir("sub")
check({"f", "g", "moved", "linked", "soft", "sub"}, "a link and a directory made")
os.rename("g", "sub/g")
check({"f", "moved", "linked", "soft", "sub"}, "moved away")
for name in ("moved", "linked", "soft"):
    os.unlink(name)
check({"f", "sub"}, "removed")
os.unlink("sub/g")
os.rmdir("sub")
check({"f"}, "a directory removed")
make("f", "rewritten")
check({"f"}, "rewritten")
child = os.fork()
if child == 0:
    half = open("half", "w")
    half.write("x")
    half.flush()
    signal.pause()
while not os.path.exists("half"):
    time.sleep(0.01)
check({"f", "half"}, "being made by another")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
until = time.time() + 5
while os.path.exists("half") and time.time() < until:
    time.sleep(0.01)
check({"f", "half"} if os.path.exists("half") else {"f"}, "whoever made it was killed")
for turn in range(200):
    make(f"t{turn}")
    found = os.listdir(".")
    listings += 1
    if f"t{turn}" not in found:
        sys.exit(f"turn {turn}: {found}")
    os.unlink(f"t{turn}")
    found = os.listdir(".")
    listings += 1
    if f"t{turn}" in found:
        sys.exit(f"turn {turn}: {found} still")
print(listings)
