#!/usr/bin/env bash
# Checks and measures stepgraph and its peers on a machine with an NVIDIA GPU, taking turns, and says which goals are met.
#   GPU_CHECK=./gpu_check PYTHON=.venv/bin/python ROUNDS=3 QUICK=1 bash benches/gpu.sh [regex on workloads' groups, as W4]
# Needs no Rust if GPU_CHECK names a built example. Peers that are not installed are left out, and named.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} rounds=${ROUNDS:-3} groups=${1:-W[1-7]}

if ! command -v nvidia-smi >/dev/null || ! gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null); then
    echo "gpu.sh: no NVIDIA GPU answers on this machine (nvidia-smi): nothing was measured" >&2
    exit 1
fi
check=${GPU_CHECK:-$here/../target/release/examples/gpu_check}
if [ ! -x "$check" ]; then
    command -v cargo >/dev/null || { echo "gpu.sh: set GPU_CHECK to a built example gpu_check" >&2; exit 1; }
    (cd "$here/.." && cargo build --release --locked --example gpu_check)
fi

name=$(printf '%s' "$gpu" | tr -cs 'A-Za-z0-9' '-' | tr A-Z a-z)
out=$here/results/gpu-$name-$(date +%Y%m%d-%H%M%S)
mkdir -p "$out"
nvidia-smi >"$out/nvidia-smi.txt" || true
quick=() seconds=0.5
if [ -n "${QUICK:-}" ]; then quick=(--quick) seconds=0.1; fi
wanted=$(for w in W1 W2 W3 W4 W5 W6 W7; do [[ $w =~ ^($groups)$ ]] && printf '%s,' "$w"; done | sed 's/,$//')
status=0

# stepgraph's own checks; the log lies where the tests look for logs to reproduce.
"$check" "${quick[@]}" --only conformance,promises --record "$here/results/$(basename "$out").log" \
    >"$out/checks.jsonl" || { status=1; echo "gpu.sh: some checks FAILED, see $out/checks.jsonl" >&2; }

for peer in torch jax; do
    "$python" -c "import $peer" 2>/dev/null || echo "gpu.sh: $python has no $peer: NOT measured" >&2
done
for round in $(seq "$rounds"); do
    echo "gpu.sh: round $round of $rounds" >&2
    "$check" "${quick[@]}" --only workloads --workloads "$wanted" >"$out/stepgraph-$round.jsonl" || status=1
    for peer in torch jax; do
        "$python" -c "import $peer" 2>/dev/null || continue
        modes=()
        # Searching for the best kernels takes minutes: in the first round only.
        [ "$peer" = torch ] && [ "$round" != 1 ] && modes=(--modes eager,eager_fused,compile,reduce_overhead,cuda_graph)
        "$python" "$here/peers/gpu/${peer}_peer.py" --workloads "$wanted" --min-time $seconds "${modes[@]}" \
            >"$out/$peer-$round.jsonl" 2>"$out/$peer-$round.err" || echo "gpu.sh: $peer failed, see $out/$peer-$round.err" >&2
    done
done
"$check" "${quick[@]}" --only ceilings,latency >"$out/ceilings.jsonl" || status=1

"$python" "$here/peers/gpu/ratios.py" "$out" | tee "$out/ratios.txt"
exit $status
