#!/usr/bin/env bash
# One night: the suites on the GPUs of this machine, compared with the night before.
#
#   ci/nightly.sh GPUS HISTORY [what goes to pytest ...]
#
# GPUS     so many must be there: where a test is skipped for want of them, it fails. 0: whatever is there will do.
# HISTORY  the folder that keeps a run file a night, and beside them the last night's summary.md and report.html.
#
# Ends with 0 if nothing regressed since the last night whose run came to its end; with 1 if something did, or if a run
# without such a night before it is not green; with pytest's own status if the tests could not be run. The summary goes
# to GITHUB_STEP_SUMMARY too, where that is set. BIN is the folder of the environment's programs, with its slash.
set -euo pipefail
usage="usage: ci/nightly.sh GPUS HISTORY [what goes to pytest ...]"
gpus=${1:?"$usage"}
history=${2:?"$usage"}
shift 2
bin=${BIN:-}

mkdir -p "$history"
last=""
for one in "$history"/*.jsonl; do # in the order of their names, which is that of the nights
    # A run that was killed leaves no footer: there is nothing to compare with.
    if [ -e "$one" ] && tail -n 1 "$one" | grep -q '^{"line":"footer"'; then
        last=$one
    fi
done
tonight=$history/$(date -u +%Y-%m-%dT%H%M%S.%NZ).jsonl
summary=$history/summary.md

need=()
if [ "$gpus" -gt 0 ]; then
    need=("--require-gpus=$gpus")
fi
ran=0
"${bin}pytest" --run-file "$tonight" "${need[@]}" "$@" || ran=$?

footer=""
if [ -e "$tonight" ]; then
    footer=$(tail -n 1 "$tonight" | grep '^{"line":"footer"' || true)
    "${bin}everyrank" page --partial "$tonight" -o "$history/report.html" || true
fi
red=0 # whether the run file itself says why pytest is not content
if printf '%s' "$footer" | grep -Eq '"(crash|timeout|error|fail|stale|not-run)":[1-9]'; then
    red=1
fi

ended=0
compared=0
{
    echo "# everyrank, $(date -u +'%Y-%m-%d %H:%M') UTC, on $(uname -n), GPUS=$gpus"
    echo
    if [ -z "$footer" ] || [ "$ran" -gt 1 ]; then
        echo "**The run did not come to its end**: pytest ended with $ran. Nothing is compared."
        ended=$((ran > 0 ? ran : 1))
    elif [ -z "$last" ]; then
        echo "The first night: there is nothing to compare with. pytest ended with $ran."
        ended=$ran
    else
        "${bin}everyrank" diff --format markdown "$last" "$tonight" || compared=$?
        ended=$compared
        if [ "$ran" -ne 0 ] && [ "$red" -eq 0 ]; then
            # A test of one process, say: of those a run file says nothing.
            echo "**pytest ended with $ran**, for a reason that is in no line of the run file: see its output."
            ended=$ran
        elif [ "$ran" -ne 0 ] && [ "$compared" -eq 0 ]; then
            echo "Not green, and no worse than the night before."
        fi
    fi
    # What is red since when, what flips, what got slower from night to night.
    echo
    echo '```'
    "${bin}everyrank" history "$history" || true
    echo '```'
} >"$summary"
cat "$summary"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    cat "$summary" >>"$GITHUB_STEP_SUMMARY"
fi
exit "$ended"
