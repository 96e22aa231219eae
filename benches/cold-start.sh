#!/usr/bin/env bash
# The first `briquette generate` of the embedded model, from process start with nothing compiled or tuned before, and the
# second. Writes lines for bench-table to the standard output.
#
#   benches/cold-start.sh target/release/briquette [DEVICE] [DTYPE] >> kernels.jsonl
set -euo pipefail
binary=$(realpath "$1")
device=${2:-cuda}
dtype=${3:-bf16}
model=$(realpath "$(dirname "$0")/../models/ember-7m")
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
# Outside of every workspace, where CubeCL would find the cache of its target folder.
cd "$empty"
mkdir home
run() {
  local row=$1 start end
  start=$(date +%s%N)
  if ! env HOME="$empty/home" XDG_CACHE_HOME="$empty/home/cache" XDG_CONFIG_HOME="$empty/home/config" \
    CUDA_CACHE_PATH="$empty/home/nv" "$binary" generate --model "$model" --device "$device" --dtype "$dtype" \
    --policy snapkv --budget 128 --max-new-tokens 64 \
    --prompt "The old man looked at the sea and said nothing for a long while. Then he turned to the boy" \
    > out.txt 2> err.txt; then
    echo "briquette generate failed:" >&2
    tail -5 err.txt >&2
    return 1
  fi
  end=$(date +%s%N)
  printf '{"side":"briquette","row":"%s","variant":"briquette","shape":"briquette generate, %s, %s, 64 tokens","ms":%d,' \
    "$row" "$device" "$dtype" $(((end - start) / 1000000))
  printf '"dtype":"%s","device":"%s","versions":"%s","date":"%s"}\n' \
    "$dtype" "$device" "$("$binary" --version)" "$(date -u +%F)"
}
run cold-start
run cold-start/second
echo "what the caches hold: $(du -sh "$empty/home" | cut -f1)" >&2
