#!/usr/bin/env bash
# The laws on torch's own systems, with what a person needs to look at them afterwards: a run file and its page.
#
#   ci/conformance.sh FOLDER [what goes to pytest ...]
#
# Ends as pytest does. BIN is the folder of the environment's programs, with its slash; without it, those of PATH.
set -euo pipefail
folder=${1:?"usage: ci/conformance.sh FOLDER [what goes to pytest ...]"}
shift
bin=${BIN:-}
run=$folder/run.jsonl

mkdir -p "$folder"
rm -f "$run" # the last run's is not shown for this one's, if this one cannot even begin
ended=0
"${bin}pytest" --run-file "$run" "$@" || ended=$?
if [ -e "$run" ]; then
    # A run that was killed is shown as far as it came.
    "${bin}everyrank" page --partial "$run" -o "$folder/report.html" || ended=$((ended > 0 ? ended : 2))
fi
exit "$ended"
