//! The binary of Cube Proxy.

/// A quarter of a request's instructions were the C library's allocator; this one takes a fraction
/// of them (docs/decisions/0002-dependencies.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cube_proxy::cli::main()
}
