#!/usr/bin/env bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB - exits with 0 if shakeproof can try this instance.
set -euo pipefail
[ "${1:-}" = v1 ] && [ $# -eq 4 ] || { echo "usage: $0 v1 CATEGORY ONNX VNNLIB" >&2; exit 1; }
bin="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin"
onnx=$3 vnnlib=$4
[ -r "$vnnlib" ] || { echo "$vnnlib: cannot be read" >&2; exit 1; }
"$bin/shakeproof" supports "$onnx" --trial 0 --json | grep -q '"supported": true'
