#!/usr/bin/env bash
# One night: the suites on the GPUs of this machine, compared with the night before.
#
#   ci/nightly.sh GPUS HISTORY [what goes to pytest ...]
#
# GPUS     so many must be there: where a test is skipped for want of them, it fails. 0: whatever is there will do.
# HISTORY  the folder that keeps a run file a night, and beside them the last night's summary.md and report.html. Older
#          nights may be compressed (gzip).
#
# Ends with 0 if nothing regressed since the last night whose run came to its end; with 1 if something did, if cases are
# gone (ALLOW_GONE=1: they may be), if nothing ran, if anything went wrong beside the cases, or if a run without such a
# night before it is not green; with pytest's own status if the tests could not be run. The summary goes to GITHUB_STEP_SUMMARY too, where that is set. BIN
# is the folder of the environment's programs, with its slash.
set -euo pipefail
usage="usage: ci/nightly.sh GPUS HISTORY [what goes to pytest ...]"
gpus=${1:?"$usage"}
history=${2:?"$usage"}
shift 2
bin=${BIN:-}

# The last line of a run file, compressed or not, if it is a footer: a run that was killed leaves none.
footer_of() {
    gzip -cdf -- "$1" 2>/dev/null | tail -n 1 | grep '^{"line":"footer"'
}

mkdir -p "$history"
last=""
for one in "$history"/*.jsonl*; do # in the order of their names, which is that of the nights
    case $one in
        *.jsonl | *.jsonl.gz) ;;
        *) continue ;;
    esac
    # Without a footer there is nothing to compare with.
    if [ -e "$one" ] && footer_of "$one" >/dev/null; then
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
    footer=$(footer_of "$tonight" || true)
    "${bin}everyrank" page --partial "$tonight" -o "$history/report.html" || true
fi
gone=()
if [ "${ALLOW_GONE:-0}" != 0 ]; then
    gone=(--allow-gone)
fi
ended=0
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
        # It reads the footer too: what could not be collected, tests of one process that failed, pytest's exit status.
        "${bin}everyrank" diff --format markdown "${gone[@]}" "$last" "$tonight" || ended=$?
        if [ "$ran" -ne 0 ] && [ "$ended" -eq 0 ]; then
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
