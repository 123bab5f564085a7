//! The names of functions in the binary, by which the backtrace of a panic is read. A profile that strips
//! symbols would leave bare addresses there, and nobody would notice before the first panic.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::PROFILE;

/// Crates of which every server has functions, as symbols spell them.
const CRATES: [&str; 3] = ["pointsman_core", "pointsman_driver", "pointsman_server"];

/// The type of a section with the symbols of a file.
const SYMBOL_TABLE: u32 = 2;
/// The type of a symbol that is a function.
const FUNCTION: u8 = 2;
/// The size of a symbol.
const SYMBOL_BYTES: usize = 24;

/// Checks that the binary names functions of ours.
pub(super) fn check(binary: &Path) -> Result<()> {
    let file = fs::read(binary).with_context(|| format!("{}", binary.display()))?;
    check_crates(&file, &CRATES).with_context(|| format!("{}", binary.display()))
}

fn check_crates(file: &[u8], crates: &[&str]) -> Result<()> {
    let names = functions(file).context("it is no program of 64 bits in ELF")?;
    for name in crates {
        ensure!(
            names.iter().any(|function| function.contains(name)),
            "of {} functions that it names none is of {name}, so that the backtrace of a panic would be \
             addresses: let [profile.{PROFILE}] strip no more than \"debuginfo\"",
            names.len()
        );
    }
    Ok(())
}

/// The mangled names of the functions that are in the file; absent: it is no ELF file of this kind.
fn functions(file: &[u8]) -> Option<Vec<&str>> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let sections = sections(file)?;
    let mut names = Vec::new();
    for table in sections.iter().filter(|it| it.kind == SYMBOL_TABLE) {
        let texts = sections.get(table.link)?.content(file)?;
        for symbol in table.content(file)?.chunks_exact(SYMBOL_BYTES) {
            let is_here = u16_at(symbol, 6)? != 0;
            if is_here && symbol[4] & 0xf == FUNCTION {
                let text = texts.get(usize::try_from(u32_at(symbol, 0)?).ok()?..)?;
                let end = text.iter().position(|byte| *byte == 0)?;
                names.push(std::str::from_utf8(&text[..end]).ok()?);
            }
        }
    }
    Some(names)
}

/// A section of an ELF file.
struct Section {
    kind: u32,
    offset: usize,
    size: usize,
    /// The number of the section with the texts of this one.
    link: usize,
}

impl Section {
    fn content<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        file.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

fn sections(file: &[u8]) -> Option<Vec<Section>> {
    let table = file.get(usize_at(file, 0x28)?..)?;
    let size = usize::from(u16_at(file, 0x3a)?).max(1);
    let count = usize::from(u16_at(file, 0x3c)?);
    let read = |header: &[u8]| {
        Some(Section {
            kind: u32_at(header, 0x04)?,
            offset: usize_at(header, 0x18)?,
            size: usize_at(header, 0x20)?,
            link: usize::try_from(u32_at(header, 0x28)?).ok()?,
        })
    };
    table.chunks_exact(size).take(count).map(read).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program that runs this test.
    fn this_program() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    /// The program without its table of symbols, as one that was stripped.
    fn stripped(mut file: Vec<u8>) -> Vec<u8> {
        let headers = usize_at(&file, 0x28).unwrap();
        let size = usize::from(u16_at(&file, 0x3a).unwrap());
        let all = sections(&file).unwrap();
        for at in (0..all.len()).filter(|at| all[*at].kind == SYMBOL_TABLE) {
            file[headers + at * size + 4..][..4].fill(0);
        }
        file
    }

    #[test]
    fn a_program_with_names_of_functions_passes_and_one_that_was_stripped_does_not() {
        let program = this_program();
        let named = "a_program_with_names_of_functions_passes";
        check_crates(&program, &["xtask", named]).unwrap();
        let other = check_crates(&program, &["pointsman_core"]).unwrap_err();
        assert!(
            other.to_string().contains("none is of pointsman_core"),
            "{other}"
        );
        let error = check_crates(&stripped(program), &["xtask"]).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("of 0 functions that it names"), "{error}");
        assert!(error.contains("[profile.packaged]"), "{error}");
    }

    #[test]
    fn what_is_no_program_or_is_cut_off_is_refused() {
        let program = this_program();
        let half = &program[..program.len() / 2];
        for file in [b"#!/bin/sh\n".as_slice(), b"", &program[..0x30], half] {
            let error = check_crates(file, &["xtask"]).unwrap_err().to_string();
            assert!(error.contains("no program of 64 bits"), "{error}");
        }
    }
}
