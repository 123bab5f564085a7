#!/bin/sh
# Runs the test of ../01-first-policy with this component in the place of its own: each scenario
# must come out as expected, and as in Rust to the byte.
set -eu
cd "$(dirname "$0")"

[ -f javascript-policy.wasm ] || ./build.sh
mkdir -p build/policies
cp javascript-policy.wasm build/policies/first-policy.wasm

# The variable tells the test where components are; cargo itself builds where it always does.
CARGO_TARGET_DIR="$PWD/build" cargo test --target-dir ../../target --package first-policy
