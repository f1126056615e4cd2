"""Mounts a FUSE file system that stops to answer: hang.py DIRECTORY OWNER (read|leave). Says `ready`, and ends with its input.

`read`: it takes every request but INIT and answers none, so whoever waits can't even be killed. `leave`: it takes none.
"""
import ctypes, os, select, struct, sys

directory, owner, how = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id={owner},group_id={owner},allow_other"
if libc.mount(b"hang", directory.encode(), b"fuse", 6, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
try:
    request = os.read(device, 1 << 20)
    unique = struct.unpack_from("<Q", request, 8)[0]
    init = struct.pack("<IIIIHHIIHHII24x", 7, 31, 0, 0, 16, 16, 65536, 1, 16, 0, 0, 0)
    os.write(device, struct.pack("<IiQ", 16 + len(init), 0, unique) + init)
    print("ready", flush=True)
    while True:
        watched = [0, device] if how == "read" else [0]
        ready, _, _ = select.select(watched, [], [])
        if 0 in ready and not os.read(0, 1):
            break
        if device in ready:
            os.read(device, 1 << 20)
finally:
    # The connection ends with its last descriptor, and everybody who waits is woken.
    libc.umount2(directory.encode(), 1 | 2)
    os.close(device)
