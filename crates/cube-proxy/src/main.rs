//! The binary of Cube Proxy.

/// A third of a request's instructions were the C library's allocator; this one takes a fraction
/// of them (docs/decisions/0005-speed.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cube_proxy::cli::main()
}
