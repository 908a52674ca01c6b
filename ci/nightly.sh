#!/usr/bin/env bash
# One night: the suites on the GPUs of this machine, compared with the night before.
#
#   ci/nightly.sh GPUS HISTORY [pytest's arguments ...]
#
# GPUS     this many must be there: a test that would be skipped because one is missing fails. 0: any number will do.
# HISTORY  the folder that keeps a run file a night, and beside them the last night's summary.md and report.html. Older
#          nights may be compressed (gzip).
#
# Ends with 0 if nothing regressed since the last night whose run finished; with 1 if something did, if cases are gone
# (ALLOW_GONE=1: they may be), if nothing ran, if anything went wrong outside of the cases, or if a first night is not
# green; with pytest's own status if the tests could not be run. The summary also goes to GITHUB_STEP_SUMMARY, if that is
# set. BIN is the folder of the environment's programs, with its slash.
set -euo pipefail
usage="usage: ci/nightly.sh GPUS HISTORY [pytest's arguments ...]"
gpus=${1:?"$usage"}
history=${2:?"$usage"}
shift 2
bin=${BIN:-}

# Print the last line of a run file, compressed or not, if it is a footer: a run that was killed leaves none.
footer_of() {
    gzip -cdf -- "$1" 2>/dev/null | tail -n 1 | grep '^{"line":"footer"'
}

mkdir -p "$history"
last=""
for run in "$history"/*.jsonl*; do # in the order of their names, which is the order of the nights
    case $run in
        *.jsonl | *.jsonl.gz) ;;
        *) continue ;;
    esac
    # Without a footer there is nothing to compare with.
    if [ -e "$run" ] && footer_of "$run" >/dev/null; then
        last=$run
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
        echo "**The run did not finish**: pytest ended with $ran. Nothing is compared."
        ended=$((ran > 0 ? ran : 1))
    elif [ -z "$last" ]; then
        echo "The first night: there is nothing to compare with. pytest ended with $ran."
        ended=$ran
    else
        # It also reads the footer: collection errors, failed single-process tests, pytest's exit status.
        "${bin}everyrank" diff --format markdown "${gone[@]}" "$last" "$tonight" || ended=$?
        if [ "$ran" -ne 0 ] && [ "$ended" -eq 0 ]; then
            echo "Not green, and no worse than the night before."
        fi
    fi
    # The laws that are red and since when, that flip, or that got slower from night to night.
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
