//! The binary of Cube Proxy.

fn main() -> std::process::ExitCode {
    cube_proxy::cli::main()
}
