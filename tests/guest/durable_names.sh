#!/bin/bash
# limit: 120
# A file that is made, or given another size, is synced with its name before anybody is told of it; so is the state, when
# it is changed.
# A power cut rarely shows what is missing here, since file systems sync more than they are asked to;
# so this looks at what is asked.
. "$(dirname "$0")/harness.sh"

real=$NVLANE trace=$WORK/trace
NVLANE=$WORK/traced
printf '#!/bin/sh\nexec strace -D -f -y -e trace=ftruncate,fsync,fdatasync,rename,renameat,renameat2 -o %s %s "$@"\n' "$trace" "$real" >"$NVLANE"
chmod +x "$NVLANE"

# in_order REGEX...: the trace goes on with lines like these, one after the other
from=1
in_order() {
    local wanted found
    for wanted in "$@"; do
        # No pipe: it would fail where the one end is done before the other.
        found=$(grep -nE -m1 "$wanted" < <(tail -n "+$from" "$trace")) \
            || die "no '$wanted' from line $from on in: $(<"$trace")"
        from=$((from + ${found%%:*}))
    done
}

image=$SCRATCH/new.img
serve "file:$image?size=16M&create"
in_order "ftruncate\([0-9]+<$image>, 16777216\) += 0" "fsync\([0-9]+<$image>\) += 0" "fsync\([0-9]+<$SCRATCH>\) += 0"
NVLANE=$real ctl volume resize 1 32M
in_order "ftruncate\([0-9]+<$image>, 33554432\) += 0" "fsync\([0-9]+<$image>\) += 0"
# The resize has changed the state, too: what follows is the next change's.
from=$(($(wc -l <"$trace") + 1))
NVLANE=$real ctl host allow nqn.2014-08.org.example:host1
state=$(tail -n "+$from" "$trace" | sed -nE 's/.* rename[a-z0-9]*\(.*"([^"]+\/state-[^"]+)\.new".*/\1/p')
[[ -n $state ]] || die "the state was not written anew: $(<"$trace")"
in_order "fsync\([0-9]+<$state\.new>\) += 0" "rename[a-z0-9]*\(.*\"$state\.new\", .*\"$state\".*\) += 0" \
    "fsync\([0-9]+<$WORK/data>\) += 0"
stop
