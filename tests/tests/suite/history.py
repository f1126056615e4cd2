"""Changes whatever is in the current directory at random: SEED COUNT."""

import ctypes
import mmap
import os
import random
import shutil
import sys

random.seed(int(sys.argv[1]))
libc = ctypes.CDLL(None)
held = []


def place():
    return os.path.join(*[random.choice("abcd") for _ in range(random.randint(1, 3))])


def some():
    found = [os.path.join(top, name) for top, dirs, files in os.walk(".") for name in dirs + files]
    return random.choice(sorted(found)) if found else place()


def write(path, flags):
    # Without O_NONBLOCK a FIFO waits for its reader.
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    os.write(file, random.randbytes(random.randint(0, 50)))
    if random.random() < 0.2:
        held.append(file)
    else:
        os.close(file)


def store(path):
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    memory = mmap.mmap(file, 0)
    memory[0:1] = b"M"
    memory.close()
    os.close(file)


def remove_tree(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)


OPERATIONS = [
    lambda: write(place(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    lambda: write(place(), os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    lambda: write(some(), os.O_WRONLY | os.O_APPEND),
    lambda: write(some(), os.O_RDWR),
    lambda: write(some(), os.O_WRONLY | os.O_TRUNC),
    lambda: os.truncate(some(), random.randint(0, 40)),
    lambda: os.unlink(some()),
    lambda: os.rmdir(some()),
    lambda: remove_tree(some()),
    lambda: os.rename(some(), place()),
    lambda: os.rename(some(), some()),
    lambda: libc.renameat2(-100, some().encode(), -100, some().encode(), 2),
    lambda: os.mkdir(place()),
    lambda: os.mkdir(place()),
    lambda: os.symlink(random.choice(["x", "../a", "/nowhere"]), place()),
    lambda: os.link(some(), place(), follow_symlinks=False),
    lambda: os.link(some(), place(), follow_symlinks=False),
    lambda: os.chmod(some(), random.choice([0o755, 0o700, 0o750])),
    lambda: os.utime(some(), (5, random.randint(0, 10**9)), follow_symlinks=False),
    lambda: os.setxattr(some(), "user." + random.choice("xy"), random.randbytes(3), follow_symlinks=False),
    lambda: os.removexattr(some(), "user.x", follow_symlinks=False),
    lambda: store(some()),
    lambda: os.mkfifo(place()),
    lambda: held and os.write(random.choice(held), b"late"),
    lambda: held and os.ftruncate(random.choice(held), 3),
    lambda: held and os.fchmod(random.choice(held), random.choice([0o600, 0o640])),
    lambda: held and os.close(held.pop()),
]
done = 0
for _ in range(int(sys.argv[2])):
    try:
        random.choice(OPERATIONS)()
        done += 1
    except (OSError, ValueError):
        pass
print(done)
