#!/usr/bin/env bash
# install_tool.sh v1 - installs shakeproof beside this script, in .venv.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "usage: $0 v1" >&2; exit 1; }
cd "$(dirname "$0")/.."
make setup
.venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[vnnlib2]'
