#!/bin/sh
# Makes python-policy.wasm, with the toolchain that requirements.txt names.
set -eu
cd "$(dirname "$0")"

# The world of this policy, and the interfaces it is made of.
rm -rf build/wit
mkdir -p build/wit/deps/scheduling
cp world.wit build/wit/
cp ../../wit/*.wit build/wit/deps/scheduling/

python3 -m venv build/python
build/python/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt

# What a policy may import is `log`: no WASI.
build/python/bin/componentize-py --wit-path build/wit --world policy componentize \
    --stub-wasi --python-path . --output python-policy.wasm policy
