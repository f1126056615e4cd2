# An overlay above a mount of Stockade's, in the current directory, in a mount namespace of its own. Its writable layer holds
# what it has made there only as long as nothing tells the kernel that the name leads elsewhere. $1 is stockade, $2 how often.
# Exit status 77: this kernel won't put an overlay there.
set -eu
stockade=$1 rounds=$2
mkdir src mnt
"$stockade" mount --quiet src mnt &
server=$!
trap 'umount -l mnt; wait $server' EXIT
for _ in $(seq 500); do mountpoint -q mnt && break; sleep 0.02; done
top=$PWD/mnt
mkdir -p "$top/lower/etc"
echo salts > "$top/lower/etc/file"
worker() {
    for round in $(seq "$rounds"); do
        # The same names and, where the host gives them again, the same inodes.
        at=$top/$1
        rm -rf "$at"
        mkdir "$at" "$at/upper" "$at/work" "$at/merged"
        mount -t overlay none -o "lowerdir=$top/lower,upperdir=$at/upper,workdir=$at/work,index=off" "$at/merged" || return 77
        file=$at/merged/etc/file
        # The first move leaves a whiteout, and the second file replaces it.
        mv "$file" "$file.bak" || echo "move $1 $round"
        echo new > "$file" || echo "make $1 $round"
        mv "$file" "$file.bak" || echo "move again $1 $round"
        touch "$file" || echo "make again $1 $round"
        [ "$(cat "$file.bak")" = new ] || echo "content $1 $round"
        umount -l "$at/merged"
    done
}
workers=
for number in 1 2 3 4 5 6; do worker $number & workers="$workers $!"; done
for pid in $workers; do wait "$pid" || exit; done
echo passed
