//! Makes machine code of a component, which the server then has in itself: `pointsman-precompile IN.wasm OUT.code`.
//! `cargo xtask serve` and `cargo xtask dist` call it between the policies and the server.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::process::ExitCode;

#[expect(clippy::print_stderr, reason = "a program says why it failed")]
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pointsman-precompile: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let paths: Vec<String> = env::args().skip(1).collect();
    let [component, code] = &paths[..] else {
        return Err("name a component, and the file for its code".to_owned());
    };
    let bytes = fs::read(component).map_err(|error| format!("{component}: {error}"))?;
    let made =
        pointsman_component::precompile(&bytes).map_err(|why| format!("{component}: {why}"))?;
    fs::write(code, made).map_err(|error| format!("{code}: {error}"))
}
