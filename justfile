# Tasks that a developer repeats. `just` lists them.

default:
    @just --list

# Everything a newcomer needs in one process
demo:
    cargo run --release -- demo

# Install what the tests need and run them all
test *args:
    scripts/test {{args}}

# The black-box cases of the contract, against any binary (default: what cargo built last)
conformance bin="" *args:
    python3 tests/conformance {{ if bin == "" { "" } else { "--bin " + bin } }} {{args}}

# E2B's SDKs, the newest ones, against the proxy
sdk-newest:
    scripts/sdk newest
    SDK_UNDER_TEST=newest cargo test -p cube-proxy --locked --test all sdk::

# Inputs that break what reads the bytes of strangers: each target for so many seconds (fuzz/README.md)
fuzz *args:
    scripts/fuzz {{args}}

# The tests that take minutes: ten minutes of silence on every kind of stream
long:
    cargo test -p cube-proxy --locked --test all -- --ignored silence::

# Ten upgrades under load: clients of every kind, then the SDKs, undici and httpx
upgrades:
    scripts/sdk
    cargo test -p cube-proxy --test all --locked -- --ignored --nocapture --test-threads 1 ten_upgrades

# The Debian package under a real systemd, in a container of its own; needs root
systemd *args:
    scripts/systemd {{args}}

# The container image, built and run by podman; with --compile compiled in it; needs root
container *args:
    scripts/container {{args}}

# What a change must pass
ci:
    .ci/run

# Format everything
fmt:
    cargo fmt --all

# Lints, warnings denied
lint:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Which file of cube-edge uses which; fails where files use each other in a circle (--graph: all arrows)
modules *args:
    scripts/modules {{args}}

# Advisories, licences, sources
deny:
    scripts/deny

# Documentation of the code
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --open

# What the pieces of a request cost, and what a cached sandbox takes
bench-micro *args:
    mkdir -p "${CARGO_TARGET_DIR:-$PWD/target}/bench"
    CUBE_BENCH_OUT="${CARGO_TARGET_DIR:-$PWD/target}/bench/memory.json" cargo bench --locked -p cube-benches --bench memory
    cargo bench --locked -p cube-benches --bench micro -- {{args}}

# Instructions of a cached request, against the recorded ceiling (--record sets it anew)
bench-instructions *args:
    scripts/instructions {{args}}

# Load, against the peers; writes docs/performance.md (--quick, --only get,h2)
bench-load *args:
    benches/load {{args}}

# Whether time tells a refused preview ticket from an unknown sandbox; half a minute once it is built (--pairs 500)
bench-masking *args:
    cargo build --release --locked -p cube-proxy --bin cube-proxy
    benches/masking {{args}}
# Good and hostile traffic while Redis, configuration and process change; half an hour (MINUTES)
soak *args:
    benches/soak {{args}}
# Good clients beside floods, nginx beside; fifteen minutes (--only slow_heads, --write)
bench-attack *args:
    benches/attack {{args}}

# The release profile, without what a recorded load adds
build:
    cargo build --release --locked

# The binary as it is shipped: laid out by a load that is recorded first; half an hour on two cores
release:
    scripts/release

# docs/configuration.md, made from the code
reference:
    UPDATE_DOCS=1 cargo test -q -p cube-proxy --lib reference

# The Debian package, into target/
deb:
    binary=$(scripts/release) && deploy/build-deb "$binary"
