//! Policies in Python, built by componentize-py, which the author's `requirements.txt` names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::super::facts::AuthorFacts;
use super::guest::{self, COMPONENT, File, WIT, WORLD};
use super::{Folder, Raw, not_run};

const MANIFEST: &str = "pyproject.toml";
const REQUIREMENTS: &str = "requirements.txt";
/// The module that has the policy's classes.
const MAIN: &str = "policy.py";
/// The virtual environment of a policy's folder.
const ENVIRONMENT: &str = "build/python";
/// Its Python.
const PYTHON: &str = "build/python/bin/python";
/// The toolchain's program in it, which is given to that Python. By itself it would run the one at the folder's first path.
const TOOL: &str = "build/python/bin/componentize-py";
/// The requirements that are installed in it.
const INSTALLED: &str = "build/python/requirements.txt";
/// Advice where Python is missing.
const REMEDY: &str = "install Python 3.10 or newer with its venv module, as with `apt-get install python3 python3-venv`";

/// The author's `pyproject.toml`.
#[derive(Deserialize)]
struct Manifest {
    project: Option<Project>,
}

#[derive(Default, Deserialize)]
struct Project {
    name: Option<String>,
    version: Option<String>,
    description: Option<String>,
    #[serde(default)]
    authors: Vec<Author>,
    license: Option<License>,
    #[serde(default)]
    urls: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Author {
    name: Option<String>,
    email: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum License {
    Text(String),
    Table { text: Option<String> },
}

/// Makes the component of a folder; the inner error says why it makes none.
pub(super) fn make(folder: Folder<'_>) -> Result<Result<Raw, String>> {
    let shown = folder.shown.display();
    let text = fs::read_to_string(folder.path.join(MANIFEST));
    let text = text.with_context(|| format!("{shown}/{MANIFEST} cannot be read"))?;
    let manifest: Manifest =
        toml::from_str(&text).with_context(|| format!("{shown}/{MANIFEST}"))?;
    let project = manifest.project.unwrap_or_default();
    let name = guest::name(folder, MANIFEST, project.name.clone())?;
    anyhow::ensure!(
        folder.path.join(MAIN).is_file(),
        "{shown}/{MAIN} is not there: it has the classes of the policy",
    );
    let made = guest::make(folder, files(), REMEDY, || {
        install(folder)?;
        Ok(tool(folder))
    })?;
    Ok(made.map(|component| Raw {
        facts: project.facts(),
        name,
        component,
        warnings: Vec::new(),
    }))
}

fn files() -> Vec<File> {
    vec![(
        "build/guest/pointsman_main.py".into(),
        include_str!("guest/pointsman_main.py").replace("EXPORTS", &exports()),
    )]
}

/// The classes that a component may export, with their functions.
fn exports() -> String {
    let export = |export: guest::Export| {
        let (first, rest) = export.name.split_at(1);
        let (first, functions) = (first.to_uppercase(), export.quoted());
        format!("\n    \"{first}{rest}\": [{functions}],")
    };
    let exports: String = guest::exports().into_iter().map(export).collect();
    exports + "\n"
}

/// Makes the virtual environment with what the requirements name, unless it is there.
fn install(folder: Folder<'_>) -> Result<()> {
    let (path, shown) = (folder.path, folder.shown.display());
    let wanted = fs::read_to_string(path.join(REQUIREMENTS)).with_context(|| {
        format!(
            "{shown}/{REQUIREMENTS} cannot be read: it names the toolchain, as in `componentize-py==0.25.1`"
        )
    })?;
    let installed = path.join(INSTALLED);
    let is_installed = fs::read_to_string(&installed).is_ok_and(|there| there == wanted);
    if !is_installed || has_lost_its_packages(path) {
        environment(folder)?;
        let mut pip = Command::new(path.join(PYTHON));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args(["--requirement", REQUIREMENTS])
        .current_dir(path);
        anyhow::ensure!(
            guest::succeeds(pip, REMEDY)?,
            "`pip install` did not succeed for {shown}/{REQUIREMENTS}: the toolchain that it names is not \
             there",
        );
        fs::write(&installed, wanted)
            .with_context(|| format!("{} not written", installed.display()))?;
    }
    anyhow::ensure!(
        path.join(TOOL).is_file(),
        "{shown}/{REQUIREMENTS} does not name the toolchain: add a line such as \
         `componentize-py==0.25.1`",
    );
    Ok(())
}

/// True if the toolchain was installed, and the environment's Python does not find it: that Python is gone, or one of another version
/// is in its place, which has packages of its own.
fn has_lost_its_packages(folder: &Path) -> bool {
    if !folder.join(TOOL).is_file() {
        return false;
    }
    let mut python = Command::new(folder.join(PYTHON));
    python
        .args(["-I", "-c", "import componentize_py"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = python.status();
    !status.is_ok_and(|status| status.success())
}

fn environment(folder: Folder<'_>) -> Result<()> {
    let mut python = Command::new("python3");
    python
        .args(["-m", "venv", "--clear", ENVIRONMENT])
        .current_dir(folder.path);
    let said = python.output();
    let said = said.map_err(|error| not_run(&python, error, REMEDY))?;
    let why = [said.stdout, said.stderr].concat();
    anyhow::ensure!(
        said.status.success(),
        "python3 makes no virtual environment: {REMEDY}\n{}",
        String::from_utf8_lossy(&why).trim(),
    );
    Ok(())
}

/// The toolchain's call. What a policy may import is `log`: no WASI. The environment's packages can be
/// imported, and no others of this machine.
fn tool(folder: Folder<'_>) -> Command {
    let mut tool = Command::new(folder.path.join(PYTHON));
    tool.env("VIRTUAL_ENV", folder.path.join(ENVIRONMENT))
        .arg(folder.path.join(TOOL))
        .args(["--quiet", "--wit-path", WIT, "--world", WORLD])
        .args(["componentize", "--stub-wasi"])
        .args(["--python-path", ".", "--python-path", "build/guest"])
        .args(["--output", COMPONENT, "pointsman_main"]);
    tool
}

// === impl Project ===

impl Project {
    fn facts(self) -> AuthorFacts {
        let authors = self.authors.into_iter().map(Author::text);
        let authors: Vec<_> = authors.filter(|author| !author.is_empty()).collect();
        let license = self.license.and_then(|license| match license {
            License::Text(text) => Some(text),
            License::Table { text } => text,
        });
        let is_source = |label: &str| {
            ["repository", "source", "source code"].contains(&label.to_lowercase().as_str())
        };
        let mut urls = self.urls.into_iter();
        let source = urls.find_map(|(label, url)| is_source(&label).then_some(url));
        AuthorFacts {
            name: self.name,
            texts: [
                self.version,
                self.description,
                (!authors.is_empty()).then(|| authors.join(", ")),
                license,
                source,
            ],
        }
    }
}

// === impl Author ===

impl Author {
    fn text(self) -> String {
        match (self.name, self.email) {
            (Some(name), Some(email)) => format!("{name} <{email}>"),
            (name, email) => name.or(email).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hook_raises_is_reported() {
        let (_, text) = &files()[0];
        let budget = "\n    \"Budget\": [\"allot\", \"arrange\"],\n";
        assert!(text.contains(budget), "{text}");
    }

    #[test]
    fn the_authors_facts_are_those_of_the_project() {
        let manifest: Manifest = toml::from_str(
            "[project]\nname = 'mine'\nversion = '1.2.3'\nlicense = 'MIT'\n\
             authors = [{ name = 'Ä', email = 'a@b.c' }, { name = 'B' }]\n\
             [project.urls]\nHomepage = 'https://b.c'\nRepository = 'https://b.c/x'\n",
        )
        .unwrap();
        let facts = manifest.project.unwrap().facts();
        assert_eq!(facts.name.as_deref(), Some("mine"));
        let texts = facts.texts.each_ref().map(Option::as_deref);
        let (authors, url) = (Some("Ä <a@b.c>, B"), Some("https://b.c/x"));
        assert_eq!(texts, [Some("1.2.3"), None, authors, Some("MIT"), url]);
        let dated: License = serde_json::from_str(r#"{ "text": "MIT" }"#).unwrap();
        assert!(matches!(dated, License::Table { text: Some(text) } if text == "MIT"));
    }
}
