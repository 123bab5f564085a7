#!/bin/sh
# Makes javascript-policy.wasm, with the toolchain that package-lock.json names.
set -eu
cd "$(dirname "$0")"

npm ci --no-audit --no-fund --loglevel=error

# The world of this policy, and the interfaces it is made of.
rm -rf build
mkdir -p build/wit/deps/scheduling
cp world.wit build/wit/
cp ../../wit/*.wit build/wit/deps/scheduling/

# What a policy may import is `log`: no WASI, and no asynchronous calls. The module is named rather
# than the command, which Node.js 18 does not take for one.
node node_modules/componentize-qjs/cli.mjs --stub-wasi --sync \
    --wit build/wit --world policy --js policy.js --output javascript-policy.wasm
