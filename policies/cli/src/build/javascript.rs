//! Policies in JavaScript, built by componentize-qjs, which the author's `package.json` names.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::super::facts::AuthorFacts;
use super::guest::{self, COMPONENT, File, WIT, WORLD};
use super::{Folder, Raw};

const MANIFEST: &str = "package.json";
const LOCK: &str = "package-lock.json";
/// A file that npm writes when it has installed what the lock file names.
const INSTALLED: &str = "node_modules/.package-lock.json";
/// The toolchain's program. The module is named rather than the command, which Node.js 18 does not take
/// for one.
const TOOL: &str = "node_modules/componentize-qjs/cli.mjs";
/// Advice where a program is missing.
const REMEDY: &str = "install Node.js 18 or newer with npm, as with `apt-get install nodejs npm` or from \
                      https://nodejs.org";

/// The author's `package.json`.
#[derive(Deserialize)]
struct Package {
    name: Option<String>,
    version: Option<String>,
    description: Option<String>,
    author: Option<Person>,
    license: Option<String>,
    repository: Option<Repository>,
    /// The module that exports the policy.
    #[serde(default = "main")]
    main: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Person {
    Text(String),
    Named { name: String, email: Option<String> },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Repository {
    Text(String),
    Typed { url: String },
}

fn main() -> String {
    "policy.js".to_owned()
}

/// Makes the component of a folder; the inner error says why it makes none.
pub(super) fn make(folder: Folder<'_>) -> Result<Result<Raw, String>> {
    let shown = folder.shown.display();
    let text = fs::read(folder.path.join(MANIFEST));
    let text = text.with_context(|| format!("{shown}/{MANIFEST} cannot be read"))?;
    let package: Package =
        serde_json::from_slice(&text).with_context(|| format!("{shown}/{MANIFEST}"))?;
    let name = guest::name(folder, MANIFEST, package.name.clone())?;
    let main = package.main.trim_start_matches("./");
    anyhow::ensure!(
        folder.path.join(main).is_file(),
        "{shown}/{main} is not there: it exports the policy; `main` in {MANIFEST} names another",
    );
    let made = guest::make(folder, files(main), REMEDY, || {
        install(folder)?;
        Ok(tool())
    })?;
    Ok(made.map(|component| Raw {
        facts: package.facts(),
        name,
        component,
        warnings: Vec::new(),
    }))
}

fn files(main: &str) -> Vec<File> {
    vec![
        (
            "build/guest/pointsman.js".into(),
            include_str!("guest/pointsman.js").to_owned(),
        ),
        (
            "build/guest/main.js".into(),
            include_str!("guest/main.js")
                .replace("MAIN", main)
                .replace("EXPORTS\n", &exports()),
        ),
    ]
}

/// The exports of a component, in the author's language.
fn exports() -> String {
    let export = |export: guest::Export| {
        let (name, functions) = (export.name, export.quoted());
        format!("export const {name} = reported(\"{name}\", [{functions}], policy.{name});\n")
    };
    guest::exports().into_iter().map(export).collect()
}

/// Installs what the lock file names, unless it is there.
fn install(folder: Folder<'_>) -> Result<()> {
    let (path, shown) = (folder.path, folder.shown.display());
    anyhow::ensure!(
        path.join(LOCK).is_file(),
        "{shown} has no {LOCK}: type `npm install` there once",
    );
    if !is_installed(path) {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]);
        npm.current_dir(path);
        anyhow::ensure!(
            guest::succeeds(npm, REMEDY)?,
            "`npm ci` did not succeed in {shown}: the toolchain that {MANIFEST} names is not there",
        );
    }
    anyhow::ensure!(
        path.join(TOOL).is_file(),
        "{MANIFEST} in {shown} does not name the toolchain: type `npm install --save-dev \
         componentize-qjs` there",
    );
    Ok(())
}

/// True if npm has installed something since the lock file changed.
fn is_installed(folder: &Path) -> bool {
    let changed = |file: &str| fs::metadata(folder.join(file)).and_then(|facts| facts.modified());
    let times = changed(INSTALLED).and_then(|installed| Ok((installed, changed(LOCK)?)));
    times.is_ok_and(|(installed, locked)| installed >= locked)
}

/// The toolchain's call. What a policy may import is `log`: no WASI, and no asynchronous calls.
fn tool() -> Command {
    let mut node = Command::new("node");
    node.args([TOOL, "--stub-wasi", "--sync", "--module-root", "."])
        .args(["--wit", WIT, "--world", WORLD])
        .args(["--js", "build/guest/main.js", "--output", COMPONENT]);
    node
}

// === impl Package ===

impl Package {
    fn facts(self) -> AuthorFacts {
        let author = self.author.map(|author| match author {
            Person::Text(text) => text,
            Person::Named { name, email: None } => name,
            Person::Named {
                name,
                email: Some(email),
            } => format!("{name} <{email}>"),
        });
        let repository = self.repository.map(|repository| match repository {
            Repository::Text(url) | Repository::Typed { url } => url,
        });
        AuthorFacts {
            name: self.name,
            texts: [
                self.version,
                self.description,
                author,
                self.license,
                repository,
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hook_throws_is_reported() {
        let budget =
            r#"export const budget = reported("budget", ["allot", "arrange"], policy.budget);"#;
        let [_, (_, text)] = &files("policy.js")[..] else {
            panic!("there are two files");
        };
        assert!(text.contains(budget), "{text}");
    }

    #[test]
    fn the_authors_facts_are_read_in_both_forms_that_npm_knows() {
        for (author, repository) in [
            (r#""Ä <a@b.c>""#, r#""https://b.c/x""#),
            (
                r#"{ "name": "Ä", "email": "a@b.c" }"#,
                r#"{ "type": "git", "url": "https://b.c/x" }"#,
            ),
        ] {
            let text = format!(
                r#"{{ "name": "mine", "version": "1.2.3", "license": "MIT", "type": "module",
                     "author": {author}, "repository": {repository} }}"#
            );
            let package: Package = serde_json::from_str(&text).unwrap();
            assert_eq!(package.main, "policy.js");
            let facts = package.facts();
            assert_eq!(facts.name.as_deref(), Some("mine"));
            let texts = facts.texts.each_ref().map(Option::as_deref);
            let (author, url) = (Some("Ä <a@b.c>"), Some("https://b.c/x"));
            assert_eq!(texts, [Some("1.2.3"), None, author, Some("MIT"), url]);
        }
    }
}
