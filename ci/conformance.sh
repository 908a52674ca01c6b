#!/usr/bin/env bash
# Run the laws on torch's own systems, and keep a run file and its page.
#
#   ci/conformance.sh FOLDER [pytest's arguments ...]
#
# The exit status is pytest's. BIN is the folder of the environment's programs, with its slash; default: PATH.
set -euo pipefail
folder=${1:?"usage: ci/conformance.sh FOLDER [pytest's arguments ...]"}
shift
bin=${BIN:-}
run=$folder/run.jsonl

mkdir -p "$folder"
rm -f "$run" # so that an old run file is not shown as this run's if this run cannot begin
ended=0
"${bin}pytest" --run-file "$run" "$@" || ended=$?
if [ -e "$run" ]; then
    # A run that was killed is shown as far as it came.
    "${bin}everyrank" page --partial "$run" -o "$folder/report.html" || ended=$((ended > 0 ? ended : 2))
fi
exit "$ended"
