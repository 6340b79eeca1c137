#!/bin/bash
# The CUDA tables of docs/performance.md in one go: random weights at MiniCPM5-2B's shape, one GPU.
#   scripts/device_bench.sh OUT [SECTION...]     sections: full real math step plan unsloth (default: all but unsloth)
# LENGTHS names the file with the row lengths; every section writes OUT/SECTION.json and its log to stderr.
set -u
OUT=$1
shift
LENGTHS=${LENGTHS:-alpaca_lengths.json}
PYTHON=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
MODEL="--model random:minicpm5-2b"

section() { # NAME SECONDS COMMAND...: its JSON, and how long it took
  local name=$1 seconds=$2 began=$SECONDS
  shift 2
  timeout "$seconds" "$PYTHON" -m bc250studio.cli.main bench "$@" --json > "$OUT/$name.json" 2> >(grep -v USDT >&2)
  echo "== $name: exit code $?, $((SECONDS - began)) s" >&2
}

for name in ${*:-full real math step plan}; do
  case $name in
    full) section full 170 train $MODEL --random --tokens 2048,8192 --graph auto,off --rows 16 --against post ;;
    real) section real 240 train $MODEL --lengths "$LENGTHS" --tokens 2048,8192 --graph auto,off --rows 600 --against post ;;
    math) section math 150 train $MODEL --lengths "$LENGTHS" --tokens 2048 --graph auto,off --rows 240 --against post --math-only ;;
    step) section step 90 step $MODEL --lengths "$LENGTHS" --tokens 2048 --recipes ours,post ;;
    plan) section plan 240 train $MODEL --lengths "$LENGTHS" --tokens 2048 --rows 200 --rounds 1 --against post --plan ;;
    unsloth) section unsloth 260 train $MODEL --lengths "$LENGTHS" --tokens 2048,8192 --rows 240 --rounds 1 --dtype bf16 --against post --unsloth "${UNSLOTH:-$PYTHON}" ;;
    smoke) section smoke 120 train $MODEL --lengths "$LENGTHS" --tokens 2048 --rows 64 --rounds 1 --against post ;;
    *) echo "unknown section $name" >&2 ;;
  esac
done
