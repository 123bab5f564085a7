//! The names of functions in the binary, by which the backtrace of a panic is read. A profile that strips
//! symbols would leave bare addresses there, and nobody would notice before the first panic. Names that tell nobody
//! anything are a third of the table, and are taken out.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use object::LittleEndian;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol as _, SymbolKind};

use super::PROFILE;
use crate::process;

/// Crates of which every server has functions, as symbols spell them.
const CRATES: [&str; 3] = ["pointsman_core", "pointsman_driver", "pointsman_server"];

/// Names that are taken out, as `objcopy` takes them: tables of the unwinder, constants without a name, and the code
/// that compilers write to drop a value, which is named after its whole type.
const DROPPED: [&str; 3] = ["GCC_except_table*", "anon.*", "*drop_in_place*"];

/// Writes `binary` to `pruned` without the names that tell nobody anything.
pub(super) fn prune(binary: &Path, pruned: &Path) -> Result<()> {
    let names = DROPPED.map(|name| format!("--strip-symbol={name}"));
    let mut objcopy = Command::new("objcopy");
    let objcopy = objcopy.arg("--wildcard").args(names);
    process::run(objcopy.arg(binary).arg(pruned))
}

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
    let program = ElfFile64::<LittleEndian>::parse(file).ok()?;
    let functions = program
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    functions.map(|symbol| symbol.name().ok()).collect()
}

#[cfg(test)]
mod tests {
    use object::elf::SHT_SYMTAB;
    use object::read::elf::{FileHeader as _, SectionHeader as _};

    use super::*;

    /// The program that runs this test.
    fn this_program() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    /// The program without its table of symbols, as one that was stripped.
    fn stripped(mut file: Vec<u8>) -> Vec<u8> {
        let program = ElfFile64::<LittleEndian>::parse(&*file).unwrap();
        let headers = program.elf_header().e_shoff(LittleEndian);
        let headers = usize::try_from(headers).unwrap();
        let sections = program.elf_section_table().iter().enumerate();
        let tables = sections.filter(|(_, section)| section.sh_type(LittleEndian) == SHT_SYMTAB);
        let types: Vec<usize> = tables
            .map(|(place, section)| headers + place * size_of_val(section) + 4)
            .collect();
        for at in types {
            file[at..][..4].fill(0);
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
    fn of_the_names_those_that_tell_nobody_anything_are_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let pruned = folder.path().join("pruned");
        prune(&std::env::current_exe().unwrap(), &pruned).unwrap();
        let (before, after) = (this_program(), fs::read(&pruned).unwrap());
        let has_glue = |file: &[u8]| {
            let mut names = functions(file).unwrap().into_iter();
            names.any(|name| name.contains("drop_in_place"))
        };
        assert!(has_glue(&before) && !has_glue(&after));
        check_crates(&after, &["xtask", "of_the_names_those_that_tell"]).unwrap();
        // It runs as before.
        process::run(Command::new(&pruned).arg("--list")).unwrap();
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
