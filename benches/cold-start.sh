#!/usr/bin/env bash
# `briquette generate` from process start: its first token and all 64, with nothing compiled or tuned before, and the same of
# the process after it. Medians of three rounds, as lines for bench-table on the standard output. The model is the embedded one.
#
#   benches/cold-start.sh target/release/briquette [DEVICE] [DTYPE] [MODEL] >> kernels.jsonl
set -euo pipefail
binary=$(realpath "$1")
device=${2:-cuda}
dtype=${3:-bf16}
model=$(realpath "${4:-$(dirname "$0")/../models/ember-7m}")
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
# Outside of every workspace, where CubeCL would find the cache of its target folder.
cd "$empty"
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
generate() {
  env HOME="$empty/home" XDG_CACHE_HOME="$empty/home/cache" XDG_CONFIG_HOME="$empty/home/config" \
    CUDA_CACHE_PATH="$empty/home/nv" "$binary" generate --model "$model" --device "$device" --dtype "$dtype" \
    --policy snapkv --budget 128 --max-new-tokens 64 \
    --prompt "The old man looked at the sea and said nothing for a long while. Then he turned to the boy" \
    2> err.txt
}
# Appends the milliseconds to the first token to NAME.first, and those to the end to NAME.whole.
run() {
  local name=$1 start
  start=$(milliseconds)
  if ! generate | { read -r -N 1 _ && milliseconds > at-first && cat > /dev/null; }; then
    echo "briquette generate failed:" >&2
    tail -5 err.txt >&2
    return 1
  fi
  echo $(($(milliseconds) - start)) >> "$name.whole"
  echo $(($(cat at-first) - start)) >> "$name.first"
}
line() {
  local row=$1 what=$2 times
  mapfile -t times < <(sort -n "$3")
  printf '{"side":"briquette","row":"%s","variant":"briquette","shape":"briquette generate, %s, %s, %s, %s","ms":%d,' \
    "$row" "$(basename "$model")" "$device" "$dtype" "$what" "${times[1]}"
  printf '"ms_range":[%d,%d],"dtype":"%s","device":"%s","versions":"%s","date":"%s"}\n' \
    "${times[0]}" "${times[2]}" "$dtype" "$device" "$("$binary" --version)" "$(date -u +%F)"
}
for _ in 1 2 3; do
  rm -rf home
  mkdir home
  run cold
  run second
done
line cold-start/first-token "1 token" cold.first
line cold-start "64 tokens" cold.whole
line cold-start/second-first-token "1 token" second.first
line cold-start/second "64 tokens" second.whole
echo "what the caches hold: $(du -sh home | cut -f1)" >&2
