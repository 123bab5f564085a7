//! New policies in JavaScript and Python: the repository's examples, under another name.

use anyhow::Result;

use super::super::hooks::Hook;
use super::File;

/// A policy of the repository that new ones are copies of.
pub(super) struct Example {
    /// The example's name, which stands wherever the new one's shall.
    name: &'static str,
    /// The module in which the author adds decisions.
    main: &'static str,
    /// Paths in the folder, and texts.
    files: &'static [(&'static str, &'static str)],
}

macro_rules! files {
    ($folder:literal: $($path:literal),*) => {
        &[$(($path, include_str!(concat!("../../../../examples/", $folder, "/", $path)))),*]
    };
}

pub(super) const JAVASCRIPT: Example = Example {
    name: "javascript-policy",
    main: "policy.js",
    files: files!("02-javascript-policy":
        "package.json", "package-lock.json", "policy.js", "mirror.js", "world.wit", ".gitignore",
        "scenarios/most-free-slots.toml"
    ),
};

pub(super) const PYTHON: Example = Example {
    name: "python-policy",
    main: "policy.py",
    files: files!("03-python-policy":
        "pyproject.toml", "requirements.txt", "policy.py", "mirror.py", "world.wit", ".gitignore",
        "scenarios/most-free-slots.toml"
    ),
};

// === impl Example ===

impl Example {
    /// The files of a new policy.
    ///
    /// # Errors
    /// If it is to decide something else than the example.
    pub(super) fn files(&self, name: &str, hooks: &[Hook]) -> Result<Vec<File>> {
        let main = self.main;
        anyhow::ensure!(
            hooks == [Hook::Routing],
            "in this language a new policy decides routing: leave out --hooks, and add a decision by hand, \
             as an interface in `world.wit` and in what {main} exports",
        );
        let mut files = vec![("README.md".into(), self.readme(name))];
        let own = self.files.iter();
        files.extend(own.map(|(path, text)| ((*path).into(), text.replace(self.name, name))));
        Ok(files)
    }

    fn readme(&self, name: &str) -> String {
        include_str!("templates/README.example.md.txt")
            .replace("MAIN", self.main)
            .replace("MIRROR", &self.main.replace("policy", "mirror"))
            .replace("NAME", name)
    }
}
