#!/usr/bin/env bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT - writes sat (and a counterexample), unsat, unknown, timeout or
# error to RESULTS.
set -uo pipefail
[ "${1:-}" = v1 ] && [ $# -eq 6 ] || { echo "usage: $0 v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT" >&2; exit 1; }
bin="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin"
onnx=$3 vnnlib=$4 results=$5 timeout=$6
# Starting and loading take some seconds of the time that is allowed.
search=$(awk -v t="$timeout" 'BEGIN { s = 0.97 * t - 4; print (s < 1 ? 1 : s) }')
rm -f "$results"
timeout --kill-after=5 "$timeout" "$bin/shakeproof" verify "$onnx" "$vnnlib" --timeout "$search" --results "$results" --quiet
code=$?
# Every answer has been written by now; what has none was cut off, or went wrong.
if [ ! -s "$results" ]; then
  case $code in
    124 | 137) echo timeout > "$results" ;;
    *) echo error > "$results" ;;
  esac
fi
