//! The names of functions in the binary, by which the backtrace of a panic is read. A profile that strips
//! symbols would leave bare addresses there, and nobody would notice before the first panic. What of the table tells nobody
//! anything is two thirds of it, and is taken out.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use object::LittleEndian;
use object::build::elf::Builder;
use object::elf::STT_FUNC;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol as _, SymbolKind};

use super::PROFILE;

/// Crates of which every server has functions, as symbols spell them.
const CRATES: [&str; 3] = ["pointsman_core", "pointsman_driver", "pointsman_server"];

/// A part of the names of code that compilers write to drop a value, which is named after its whole type.
const GLUE: &str = "drop_in_place";

/// Writes `binary` to `pruned` with no names but those of functions, each as a person writes it: in place of
/// `_ZN5tokio4time5sleep17h0123456789abcdefE`, `tokio::time::sleep`. The digest apart, thousands of functions share
/// their name with another one, and have it in the table once.
pub(super) fn prune(binary: &Path, pruned: &Path) -> Result<()> {
    let file = fs::read(binary).with_context(|| format!("{}", binary.display()))?;
    let mut program = Builder::read(&*file).with_context(|| format!("{}", binary.display()))?;
    for symbol in &mut program.symbols {
        let mangled = symbol.name.to_string();
        let name = format!("{:#}", rustc_demangle::demangle(&mangled));
        let is_function = symbol.section.is_some() && symbol.st_type() == STT_FUNC;
        symbol.delete = !is_function || name.contains(GLUE);
        symbol.name = name.into_bytes().into();
    }
    let mut written = Vec::with_capacity(file.len());
    program.write(&mut written)?;
    fs::write(pruned, written).with_context(|| format!("{}", pruned.display()))?;
    fs::set_permissions(pruned, fs::metadata(binary)?.permissions())?;
    Ok(())
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

/// The names of the functions that are in the file, as it has them; absent: it is no ELF file of this kind.
fn functions(file: &[u8]) -> Option<Vec<&str>> {
    let program = ElfFile64::<LittleEndian>::parse(file).ok()?;
    let functions = program
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    functions.map(|symbol| symbol.name().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use object::elf::SHT_SYMTAB;
    use object::read::elf::{FileHeader as _, SectionHeader as _};

    use super::*;
    use crate::process;

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
            names.any(|name| name.contains(GLUE))
        };
        assert!(has_glue(&before) && !has_glue(&after));
        let names = functions(&after).unwrap();
        // As people write it.
        assert!(names.contains(&concat!(module_path!(), "::this_program")));
        let mut mangled = names.iter().filter(|name| name.starts_with("_ZN"));
        assert_eq!(mangled.next(), None);
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
