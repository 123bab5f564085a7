//! Guests of the workspace, and the names of their files.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use pointsman_notation::nearest;

use crate::workspace::{Package, Workspace};

/// Folders of crates whose libraries are policies.
const POLICIES: &[&str] = &["policies", "examples"];
/// Folder of the crate of guests that only tests load.
const TEST_GUESTS: &str = "tests/guests";
/// The size up to which LLVM puts a policy's function into its callers, in its own unit; rustc has 275 for speed. At each
/// call a guest settles its fuel and looks at its deadline, so that calls cost more than in other programs.
const INLINING: &str = "llvm-args=-inline-threshold=600";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    pub(crate) package: String,
    pub(crate) target: Target,
    /// Path of the component, relative to the folder of components.
    pub(crate) component: PathBuf,
}

/// The part of a package that is compiled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Library,
    Example(String),
}

pub(crate) fn discover(workspace: &Workspace) -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    for parent in POLICIES {
        for folder in workspace.folders(parent)? {
            guests.extend(policy(&workspace.package(&folder)?));
        }
    }
    if guests.is_empty() {
        bail!(
            "no crate in {} has the crate type cdylib",
            POLICIES.join(" or ")
        );
    }
    if workspace.root.join(TEST_GUESTS).is_dir() {
        guests.extend(test_guests(&workspace.package(TEST_GUESTS)?));
    }
    Ok(guests)
}

/// The guests of these names, in the order of the names.
pub(crate) fn select<S: AsRef<str>>(mut guests: Vec<Guest>, names: &[S]) -> Result<Vec<Guest>> {
    let mut selected = Vec::new();
    for name in names {
        let name = name.as_ref();
        match guests.iter().position(|guest| guest.name() == name) {
            Some(idx) => selected.push(guests.remove(idx)),
            None => bail!("{}", unknown(name, &guests)),
        }
    }
    Ok(selected)
}

fn unknown(name: &str, guests: &[Guest]) -> String {
    let names: Vec<String> = guests.iter().map(Guest::name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match nearest(name, names.iter().copied()) {
        Some(known) => format!("no policy `{name}`; did you mean `{known}`?"),
        None => format!("no policy `{name}`; there are: {}", names.join(", ")),
    }
}

fn policy(package: &Package) -> Option<Guest> {
    package.cdylib.then(|| Guest {
        package: package.name.clone(),
        target: Target::Library,
        component: PathBuf::from(format!("{}.wasm", package.short_name())),
    })
}

fn test_guests(package: &Package) -> Vec<Guest> {
    let guest = |name: &String| Guest {
        package: package.name.clone(),
        target: Target::Example(name.clone()),
        component: Path::new("test").join(format!("{name}.wasm")),
    };
    package.cdylib_examples.iter().map(guest).collect()
}

// === impl Guest ===

impl Guest {
    /// The path of the component without its extension, by which a user names the guest.
    pub(crate) fn name(&self) -> String {
        self.component.with_extension("").display().to_string()
    }

    /// The path of the module that cargo makes, below its folder for the target and profile.
    pub(crate) fn module(&self, folder: &Path) -> PathBuf {
        match &self.target {
            Target::Library => folder.join(format!("{}.wasm", self.package.replace('-', "_"))),
            Target::Example(name) => folder
                .join("examples")
                .join(format!("{}.wasm", name.replace('-', "_"))),
        }
    }
}

// === impl Target ===

impl Target {
    /// Cargo's flags for the target.
    pub(crate) fn flags(&self) -> Vec<&str> {
        match self {
            Self::Library => vec!["--lib"],
            Self::Example(name) => vec!["--example", name],
        }
    }

    /// The compiler's flags for the target. The functions of guests for tests stay apart: tests look for their names in traces.
    pub(crate) fn rustc_flags(&self) -> &'static [&'static str] {
        match self {
            Self::Library => &["-C", INLINING],
            Self::Example(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Package {
        Package {
            name: name.to_owned(),
            folder: String::new(),
            cdylib: true,
            cdylib_examples: Vec::new(),
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn a_policy_is_named_like_its_crate_without_the_prefix() {
        let guest = policy(&package("pointsman-memory-aware")).unwrap();
        assert_eq!(guest.component, Path::new("memory-aware.wasm"));
        let module = guest.module(Path::new("out"));
        assert_eq!(module, Path::new("out/pointsman_memory_aware.wasm"));
    }

    #[test]
    fn a_crate_that_cannot_be_a_cdylib_is_no_policy() {
        let plain = Package {
            cdylib: false,
            ..package("pointsman-sdk")
        };
        assert_eq!(policy(&plain), None);
    }

    #[test]
    fn test_guests_are_examples() {
        let several = Package {
            cdylib: false,
            cdylib_examples: vec!["hostile".to_owned(), "no-reply".to_owned()],
            ..package("pointsman-test-guests")
        };
        let guests = test_guests(&several);
        let components: Vec<_> = guests
            .iter()
            .map(|guest| guest.component.as_path())
            .collect();
        assert_eq!(
            components,
            [
                Path::new("test/hostile.wasm"),
                Path::new("test/no-reply.wasm")
            ]
        );
        assert_eq!(guests[1].target.flags(), ["--example", "no-reply"]);
        let module = guests[1].module(Path::new("out"));
        assert_eq!(module, Path::new("out/examples/no_reply.wasm"));
    }

    #[test]
    fn guests_are_selected_by_name_and_a_mistyped_name_is_refused() {
        let guests = || {
            let names = ["pointsman-aging", "pointsman-budget"];
            names.map(|name| policy(&package(name)).unwrap()).into()
        };
        let selected = select(guests(), &["budget"]).unwrap();
        assert_eq!(selected.len(), 1);
        assert_eq!(selected[0].component, Path::new("budget.wasm"));
        let error = select(guests(), &["agein"]).unwrap_err().to_string();
        assert_eq!(error, "no policy `agein`; did you mean `aging`?");
    }

    #[test]
    fn finds_the_policies_of_this_workspace() {
        let guests = discover(&Workspace::here().unwrap()).unwrap();
        let found = |name: &str| {
            guests
                .iter()
                .any(|guest| guest.component == Path::new(name))
        };
        assert!(found("aging.wasm") && found("memory-aware.wasm") && found("budget.wasm"));
        assert!(found("first-policy.wasm"));
        assert!(found("test/hostile.wasm"));
    }
}
