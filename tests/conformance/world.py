"""Where the suites run: a plain ext4 directory, and a Stockade mount of another directory of the same file system."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

IMAGE_SIZE = 4 << 30


class World:
    """Two directories, `native` and `mount`, made on entering and gone on leaving. Paths are short: some suites make
    sockets, whose names the kernel limits to 108 bytes."""

    def __enter__(self):
        self.base = Path(tempfile.mkdtemp(prefix="sc-", dir="/var/tmp"))
        self.base.chmod(0o755)
        self.server = None
        self.mounted = []
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _prepare(self):
        disk = self.base / "d"
        disk.mkdir()
        self.kind = self._image(disk)
        for name in ("n", "s"):
            (disk / name).mkdir(mode=0o755)
        self.native, source, self.mount = disk / "n", disk / "s", self.base / "m"
        self.disk = disk
        self.mount.mkdir()
        self._serve(source)

    def _image(self, disk):
        """Mounts an ext4 image there, so that neither a different root file system nor a remount of it matters."""
        image = self.base / "image"
        with open(image, "wb") as file:
            file.truncate(IMAGE_SIZE)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True)
        if made.returncode == 0:
            made = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True)
        if made.returncode == 0:
            self.mounted.append(disk)
            return "ext4"
        image.unlink()
        kind = subprocess.run(["stat", "-f", "-c", "%T", disk], capture_output=True, text=True)
        return kind.stdout.strip() + " (no loop devices here, so the one of /var/tmp)"

    def _serve(self, source):
        self.log = open(self.base / "server.log", "wb")
        environment = dict(os.environ, STOCKADE_STATE=str(self.base / "state"))
        self.server = subprocess.Popen(
            [os.environ["STOCKADE_BINARY"], "mount", "--quiet", "--allow-other", source, self.mount],
            stdout=self.log, stderr=self.log, env=environment, start_new_session=True)
        for _ in range(200):
            if self._is_mounted():
                return
            if self.server.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError("no mount: " + (self.base / "server.log").read_text(errors="replace"))

    def _is_mounted(self):
        return f" {self.mount} " in Path("/proc/self/mountinfo").read_text()

    def directories(self):
        """The two places, the plain one first."""
        return (("native", self.native), ("stockade", self.mount))

    def alive(self):
        return self.server.poll() is None

    def __exit__(self, *_):
        if self.server is not None:
            self.server.terminate()
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        if getattr(self, "mount", None) and self._is_mounted():
            subprocess.run(["umount", "-l", self.mount])
        for path in reversed(self.mounted):
            if subprocess.run(["umount", path], capture_output=True).returncode:
                subprocess.run(["umount", "-l", path])
        shutil.rmtree(self.base, ignore_errors=True)


def fresh(place, name):
    """Makes an empty directory."""
    path = place / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    return path


def command(arguments, timeout, **options):
    """Runs a command; (passed, its output). One that takes too long fails, and so do all the processes it started."""
    child = subprocess.Popen([str(argument) for argument in arguments], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **options)
    try:
        output, _ = child.communicate(timeout=timeout)
        return child.returncode == 0, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        output, _ = child.communicate()
        return False, output.decode(errors="replace") + f"\ntook longer than {timeout} s"
    except BaseException:
        os.killpg(child.pid, 9)
        child.wait()
        raise
