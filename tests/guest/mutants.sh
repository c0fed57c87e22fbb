#!/bin/bash
# limit: 300
# The tests of durability can fail: a build that ignores Flush fails them, and so does one that
# ignores FUA, each where it should and nowhere else; the same build with nothing ignored passes.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_durability.sh"
single_path
NVLANE=$NVLANE_MUTANTS

# attempt MUTANT WANTED_FLUSH WANTED_FUA
attempt() {
    export NVLANE_MUTANT=$1
    accident 3
    local by wanted=("$2" "$3") index=0 said got
    for by in flush fua; do
        got=kept
        said=$(verdict $by) || got=lost
        # Lost for the right reason: not because nothing was written, or nothing could be read.
        [[ $got == kept || $said == *"lost a durable write"* ]] || die "$1, $by: $said"
        expect "$1: writes made durable by $by are" "$got" "${wanted[index]}"
        index=$((index + 1))
    done
    disconnect
    stop
    rm -f "$SCRATCH"/v?.img
    echo "$1: by Flush $2, by FUA $3, as it should be"
}

attempt none kept kept
attempt ignore-flush lost kept
attempt ignore-fua kept lost
