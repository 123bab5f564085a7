//! The external crates that each of our packages may depend on.

use super::Problem;
use super::config::{Config, Frugal, PATH, Reserved};
use crate::workspace::{Kind, PREFIX, Package};

pub(super) fn check(packages: &[Package], config: &Config) -> Vec<Problem> {
    let mut problems = unknown_packages(packages, config);
    for package in packages {
        for rule in &config.reserved {
            problems.extend(reserved(package, rule));
        }
        for rule in config
            .frugal
            .iter()
            .filter(|rule| rule.package == package.name)
        {
            problems.extend(frugal(package, rule));
        }
    }
    problems
}

/// A rule for a package that is not there would never fail.
fn unknown_packages(packages: &[Package], config: &Config) -> Vec<Problem> {
    let reserved = config.reserved.iter().flat_map(|rule| &rule.packages);
    let frugal = config.frugal.iter().map(|rule| &rule.package);
    reserved
        .chain(frugal)
        .filter(|name| !packages.iter().any(|package| package.name == **name))
        .map(|name| {
            Problem::new(
                PATH,
                format!("no package of the workspace is called `{name}`"),
            )
        })
        .collect()
}

/// A reserved crate, or one of its family, in a package that may not know it.
fn reserved(package: &Package, rule: &Reserved) -> Vec<Problem> {
    if rule.packages.contains(&package.name) {
        return Vec::new();
    }
    let family = format!("{}-", rule.name);
    let taken = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.name == rule.name || dependency.name.starts_with(&family));
    taken
        .map(|dependency| {
            let text = format!(
                "only {} may depend on `{}`",
                rule.packages.join(", "),
                dependency.name
            );
            Problem::new(manifest(package), text)
        })
        .collect()
}

/// A dependency that a frugal package may not have.
fn frugal(package: &Package, rule: &Frugal) -> Vec<Problem> {
    let extra = package.dependencies.iter().filter(|dependency| {
        let allowed = match dependency.kind {
            Kind::Normal => rule.dependencies.contains(&dependency.name),
            Kind::Dev => {
                rule.dependencies.contains(&dependency.name)
                    || rule.dev_dependencies.contains(&dependency.name)
            }
        };
        !allowed && !dependency.name.starts_with(PREFIX)
    });
    extra
        .map(|dependency| {
            let text = format!(
                "`{}` is not among the few crates {PATH} allows here",
                dependency.name
            );
            Problem::new(manifest(package), text)
        })
        .collect()
}

fn manifest(package: &Package) -> String {
    format!("{}/Cargo.toml", package.folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{package, texts};

    const RULES: &str = "[[reserved]]\nname = 'wasmtime'\npackages = ['pointsman-policy']\nreason = 'r'\n\
                         [[frugal]]\npackage = 'pointsman-core'\ndependencies = ['thiserror']\n\
                         dev-dependencies = ['fastrand']\nreason = 'r'\n";

    /// The problems of a core and a policy package with these dependencies.
    fn said(core: &[(&str, Kind)], policy: &[(&str, Kind)]) -> Vec<String> {
        let packages = [package("core", core), package("policy", policy)];
        texts(&check(&packages, &Config::parse(RULES).unwrap()))
    }

    #[test]
    fn a_reserved_crate_is_for_its_packages_only() {
        assert!(said(&[], &[("wasmtime", Kind::Normal)]).is_empty());
        let found = said(&[("wasmtime-environ", Kind::Dev)], &[]);
        assert_eq!(
            found[0],
            "host/core/Cargo.toml: only pointsman-policy may depend on `wasmtime-environ`"
        );
    }

    #[test]
    fn a_frugal_package_takes_only_what_is_listed() {
        let listed = [
            ("thiserror", Kind::Normal),
            ("fastrand", Kind::Dev),
            ("pointsman-sim", Kind::Dev),
        ];
        assert!(said(&listed, &[("serde", Kind::Normal)]).is_empty());
        for extra in [
            ("serde", Kind::Normal),
            ("serde", Kind::Dev),
            ("fastrand", Kind::Normal),
        ] {
            let found = said(&[extra], &[]);
            assert_eq!(found.len(), 1, "{extra:?}");
            assert!(found[0].starts_with("host/core/Cargo.toml: `"), "{found:?}");
        }
    }

    #[test]
    fn a_rule_for_a_package_that_is_not_there_is_refused() {
        let config = Config::parse(RULES).unwrap();
        let found = texts(&check(&[package("core", &[])], &config));
        assert_eq!(
            found,
            ["xtask/tidy.toml: no package of the workspace is called `pointsman-policy`"]
        );
    }
}
