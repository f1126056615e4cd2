# Makes a file system of kind $1 at `src` in the current directory, in a mount namespace of its own, and compares what is in
# it as natively with what a run sees there: attributes before and after, identities, and what is written. $2 is stockade.
# Exit status 77: this kernel won't mount such a thing.
set -eu
kind=$1 stockade=$2
mkdir src
image() { # size, mkfs command
    truncate -s "$1" image; shift
    "$@" image >/dev/null 2>&1
    mount -o loop image src || exit 77
}
case $kind in
    ext4) image 64M mkfs.ext4 -q -F ;;
    xfs) image 320M mkfs.xfs -q -f ;;
    btrfs) image 256M mkfs.btrfs -q -f ;;
    tmpfs) mount -t tmpfs none src || exit 77 ;;
    overlay)
        # Its layers are on a tmpfs: what is below here may be an overlay itself, which can't be a layer above one.
        mkdir layers
        mount -t tmpfs none layers || exit 77
        mkdir -p layers/lower/d layers/upper layers/work
        echo below > layers/lower/below
        echo "below too" > layers/lower/d/below
        mount -t overlay none -o lowerdir=layers/lower,upperdir=layers/upper,workdir=layers/work src || exit 77 ;;
esac
cd src
mkdir -p d/e nested bound other
name=$(printf 'n\351')
echo one > d/one; echo two > "d/$name"; ln d/one d/second; ln -s one d/link; mkfifo d/fifo; echo deep > d/e/deep
# Files of another file system, with numbers that the first may have as well, and a second way to one directory.
mount -t tmpfs none nested
mkdir nested/d; for i in 1 2 3 4 5 6 7 8 9; do echo "nested $i" > "nested/d/$i"; done
mount --bind d bound
mount -t tmpfs none other
for i in 1 2 3 4 5 6 7 8 9; do echo "other $i" > "other/$i"; done

run() { "$stockade" run -q -- "$@"; }
# Numbers of the source's own device are the host's; all attributes are.
list='find . \( -path ./nested -o -path ./other -o -path ./bound \) -prune -o -printf "%p %i %y %s %n %m %T@ %C@ %l\n" | LC_ALL=C sort
    find nested other bound -mindepth 1 -printf "%p %y %s %n %m %T@ %C@ %l\n" | LC_ALL=C sort'
sh -c "$list" > ../native
for time in first second; do
    run sh -c "$list" > ../inside
    cmp ../native ../inside || { diff ../native ../inside | head -20; echo "the $time run saw other attributes"; exit 1; }
done
# No two files are one: but for hard links and what is bound, each number stands for one content.
run sh -c 'find . -type f ! -path "./bound*" -exec sh -c "for f; do stat -c %d:%i \"\$f\"; done" sh {} + | LC_ALL=C sort | uniq -d | wc -l' > ../twice
[ "$(cat ../twice)" = 1 ] || { echo "$(cat ../twice) numbers stand for several files, only one is a hard link"; exit 1; }
run sh -c 'cat nested/d/* other/*' > ../inside
cat nested/d/* other/* | cmp - ../inside
# Both ways to a directory are one.
run sh -c '[ "$(stat -c %i d/one)" = "$(stat -c %i bound/one)" ] && echo bound > bound/made && [ "$(cat d/made)" = bound ] && \
    echo more >> d/made && [ "$(tail -n 1 bound/made)" = more ]' || { echo "a bound directory is another one"; exit 1; }
# What is written arrives, everywhere, and stays where it belongs.
run sh -c 'set -e
    for dir in . d nested nested/d other; do
        echo made > $dir/new; mv $dir/new $dir/named; ln $dir/named $dir/linked; echo again > $dir/named
        [ "$(stat -c "%i %h" $dir/linked)" = "$(stat -c "%i %h" $dir/named)" ]
        mkdir $dir/sub; echo x > $dir/sub/x; rm $dir/sub/x; rmdir $dir/sub; chmod 600 $dir/named; rm $dir/linked
    done
    mv nested/d/1 d/moved; [ "$(cat d/moved)" = "nested 1" ]
    echo rewritten > d/e/deep; printf "%s" appended >> "d/'"$name"'"'
for dir in . d nested nested/d other; do
    [ "$(stat -c '%a %h' $dir/named) $(cat $dir/named)" = "600 1 again" ] || { echo "$dir/named isn't what was written"; exit 1; }
    [ ! -e $dir/sub ] && [ ! -e $dir/linked ] && [ ! -e $dir/new ]
done
[ "$(cat d/moved d/e/deep)" = "$(printf 'nested 1\nrewritten')" ] && [ ! -e nested/d/1 ]
[ "$(cat "d/$name")" = "$(printf 'two\nappended')" ]
if [ "$kind" = overlay ]; then
    run sh -c 'ino=$(stat -c %i below); echo changed >> below; [ "$ino" = "$(stat -c %i below)" ] && rm d/below && ! ls d | grep -q below'
    [ "$(cat below)" = "$(printf 'below\nchanged')" ] && [ ! -e d/below ]
fi
[ -z "$(find . -name '.stockade-*')" ] || { echo "something is left"; exit 1; }
echo passed
