# Tasks that a developer repeats. `just` lists them.

default:
    @just --list

# Everything a newcomer needs in one process
demo:
    cargo run --release -- demo

# Install what the tests need and run them all
test *args:
    scripts/test {{args}}

# E2B's SDKs, the newest ones, against the proxy
sdk-newest:
    scripts/sdk newest
    SDK_UNDER_TEST=newest cargo test -p cube-proxy --locked --test all sdk::

# What a change must pass
ci:
    .ci/run

# Format everything
fmt:
    cargo fmt --all

# Lints, warnings denied
lint:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Advisories, licences, sources
deny:
    scripts/deny

# Documentation of the code
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --open

# The binary as it is shipped
build:
    cargo build --release --locked
