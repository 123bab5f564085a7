//! Makes machine code of components, which the server then has in itself: `pointsman-precompile IN.wasm OUT.code ...`.
//! `cargo xtask serve` and `cargo xtask dist` call it between the policies and the server.

#![forbid(unsafe_code)]

use std::env;
use std::fs;

fn main() -> Result<(), String> {
    let paths: Vec<String> = env::args().skip(1).collect();
    for pair in paths.chunks(2) {
        let [component, code] = pair else {
            return Err("each component needs a file for its code".to_owned());
        };
        let failed = |error: &dyn std::fmt::Display| format!("{component}: {error}");
        let bytes = fs::read(component).map_err(|error| failed(&error))?;
        let made = pointsman_policy::precompile(&bytes).map_err(|error| failed(&error))?;
        fs::write(code, made).map_err(|error| format!("{code}: {error}"))?;
    }
    Ok(())
}
