#!/bin/sh
# Runs N random programs (from number SEED on) in release; what fails is shrunk and written to target/soak.txt, as Rust
# to be pasted into tests/random_programs/regressions.rs.
#   tests/soak.sh N [SEED]
set -eu
cd "$(dirname "$0")/.."
N=${1:?usage: tests/soak.sh N [SEED]}
out=${STEPGRAPH_FAILED:-${CARGO_TARGET_DIR:-target}/soak.txt}
STEPGRAPH_PROGRAMS=$N STEPGRAPH_SEED=${2:-0} STEPGRAPH_FAILED=$out STEPGRAPH_FAILURES=${STEPGRAPH_FAILURES:-20} \
    cargo test --release --test random_programs -- --nocapture programs_are_the_same
