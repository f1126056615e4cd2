"""File handles of a mount of Stockade's over ext4, in the current directory and a mount namespace of its own: they outlive
the mount, follow what is renamed, and lead to nothing but what lies below the source. argv[1] is stockade. Exit status 77:
this kernel won't mount such a thing."""

import ctypes
import errno
import os
import subprocess
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def handle_of(path):
    buffer = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(buffer).value = 128
    mount_id = ctypes.c_int()
    check(libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), buffer, ctypes.byref(mount_id), 0))
    return buffer


def opened(handle):
    """What is read by a handle, or the name of the error."""
    top = os.open("mnt", os.O_RDONLY)
    try:
        fd = check(libc.open_by_handle_at(top, handle, os.O_RDONLY))
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(top)
    with os.fdopen(fd) as file:
        return file.read()


class Mounted:
    def __enter__(self):
        self.server = subprocess.Popen([sys.argv[1], "mount", "--quiet", "disk/src", "mnt"])
        while not os.path.ismount("mnt"):
            assert self.server.poll() is None
            time.sleep(0.01)

    def __exit__(self, *_):
        subprocess.run(["umount", "mnt"], check=True)
        assert self.server.wait() == 0


for directory in ("disk", "mnt"):
    os.mkdir(directory)
subprocess.run(["truncate", "-s", "64M", "image"], check=True)
subprocess.run(["mkfs.ext4", "-q", "-F", "image"], check=True)
if subprocess.run(["mount", "-o", "loop", "image", "disk"]).returncode:
    sys.exit(77)
os.makedirs("disk/src/d/e")
for name in ("src/kept", "src/d/e/moved", "src/gone", "src/led out", "outside"):
    with open("disk/" + name, "w") as file:
        file.write(name)
with Mounted():
    handles = {name: handle_of("mnt/" + name) for name in ("kept", "d/e/moved", "gone", "led out")}
os.rename("disk/src/d", "disk/src/n")
os.rename("disk/src/led out", "disk/led out")
os.unlink("disk/src/gone")
with Mounted():
    for name, handle in handles.items():
        print(f"{name}: {opened(handle)}")
