// Does known file operations: 20 a round, each of which succeeds or is refused in one known way.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void must(int ok, const char *what, const char *name) {
    if (!ok) { fprintf(stderr, "%s %s: %s\n", what, name, strerror(errno)); exit(1); }
}
static char *at(char *buffer, const char *base, int round, const char *name) {
    sprintf(buffer, "%s-%d-%s", base, round, name);
    return buffer;
}
static void rounds(const char *base, int from, int to) {
    char a[300], b[300], text[16];
    for (int n = from; n < to; n++) {
        int fd = open(at(a, base, n, "f"), O_WRONLY | O_CREAT | O_EXCL, 0644);            // create, write
        must(fd >= 0 && write(fd, "hello\n", 6) == 6 && close(fd) == 0, "create", a);
        fd = open(a, O_RDONLY);                                                            // read
        must(fd >= 0 && read(fd, text, 16) == 6 && close(fd) == 0, "read", a);
        fd = open(a, O_WRONLY | O_APPEND);                                                 // write
        must(fd >= 0 && write(fd, "more\n", 5) == 5 && close(fd) == 0, "append", a);
        must(chmod(a, 0600) == 0, "chmod", a);                                             // chmod
        must(truncate(a, 3) == 0, "truncate", a);                                          // truncate
        struct timeval times[2] = {{1, 0}, {2, 0}};
        must(utimes(a, times) == 0, "utimes", a);                                          // utimes
        must(rename(a, at(b, base, n, "g")) == 0, "rename", a);                            // rename
        must(link(b, at(a, base, n, "l")) == 0, "link", a);                                // link
        must(symlink("target", at(a, base, n, "s")) == 0, "symlink", a);                   // symlink
        must(mkdir(at(a, base, n, "d"), 0755) == 0, "mkdir", a);                           // mkdir
        must(rmdir(a) == 0, "rmdir", a);                                                   // rmdir
        must(unlink(at(a, base, n, "l")) == 0, "unlink", a);                               // unlink
        must(unlink(at(a, base, n, "s")) == 0, "unlink", a);                               // unlink
        must(unlink(at(a, base, n, "g")) == 0, "unlink", a);                               // unlink
        must(open(at(a, base, n, "locked"), O_WRONLY | O_CREAT, 0644) < 0 && errno == EROFS, "create", a);  // refused
        must(mkdir(a, 0755) < 0 && errno == EROFS, "mkdir", a);                            // refused
        must(open("secret", O_RDONLY) < 0 && errno == EACCES, "read", "secret");           // refused
        must(unlink("kept-locked") < 0 && errno == EROFS, "unlink", "kept-locked");        // refused
        must(rename("plain", at(a, base, n, "locked")) < 0 && errno == EROFS, "rename", a); // refused
    }
}
struct part { const char *base; int from, to; };
static void *thread(void *argument) {
    struct part *part = argument;
    rounds(part->base, part->from, part->to);
    return NULL;
}
int main(int argc, char **argv) {
    const char *kind = argv[1], *base = argv[2];
    if (!strcmp(kind, "threads")) {
        pthread_t threads[5];
        struct part parts[5];
        for (int n = 0; n < 5; n++) {
            parts[n] = (struct part){base, n, n + 1};
            must(pthread_create(&threads[n], NULL, thread, &parts[n]) == 0, "thread", base);
        }
        for (int n = 0; n < 5; n++) pthread_join(threads[n], NULL);
    } else if (!strcmp(kind, "forks")) {
        for (int n = 0; n < 5; n++)
            if (fork() == 0) { rounds(base, n, n + 1); _exit(0); }
        for (int n = 0, status; n < 5; n++) must(wait(&status) > 0 && status == 0, "child", base);
    } else {
        if (!strcmp(kind, "uring")) {
            struct io_uring_params params = {0};
            must(syscall(SYS_io_uring_setup, 4, &params) < 0, "io_uring is there", base);
            fprintf(stderr, "io_uring: %s\n", strerror(errno));
        }
        rounds(base, 0, 5);
    }
    return 0;
}
