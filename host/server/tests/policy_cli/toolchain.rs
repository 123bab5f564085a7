//! `policy build` where a language's tools, or the folder, are not as they have to be.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::place::{Place, can_build};
use super::said::Said;

/// A `rustc` that claims that the libraries of every target are in its own folder.
const RUSTC: &str = "#!/bin/sh\nprintf '%s\\n' \"${0%/*}\"\n";

/// A folder with a crate of this manifest, `mine`.
fn with_manifest(text: &str) -> Place {
    let place = Place::new();
    fs::create_dir_all(place.path("mine/src")).unwrap();
    place.write("mine/Cargo.toml", text);
    place.write("mine/src/lib.rs", "");
    place
}

/// Builds `mine` on a machine that has only these programs.
fn build_with(programs: &[(&str, &str)]) -> Said {
    built_with(&with_manifest("[package]\nname = 'mine'\n"), programs)
}

/// Builds `mine` of a place, on a machine that has only these programs.
fn built_with(place: &Place, programs: &[(&str, &str)]) -> Said {
    built_in("mine", place, programs)
}

/// The same for the policy in another folder of the place.
fn built_in(policy: &str, place: &Place, programs: &[(&str, &str)]) -> Said {
    let folder = place.path("bin");
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in programs {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    Said::of(place.command().args(["build", policy]).env("PATH", folder))
}

#[test]
fn without_rust_one_is_told_where_to_get_it() {
    build_with(&[]).says(
        2,
        &["rustc is not there: install Rust, see https://rustup.rs"],
    );
    build_with(&[("rustc", RUSTC)]).says(
        2,
        &["cargo is not there: install Rust, see https://rustup.rs"],
    );
}

#[test]
fn without_the_target_one_is_told_what_to_type() {
    // One that has no library for the target, and one that does not know it.
    for rustc in [
        "#!/bin/sh\necho /nowhere/lib\n",
        "#!/bin/sh\necho 'error: no such target' >&2\nexit 1\n",
    ] {
        build_with(&[("rustc", rustc)]).says(
            2,
            &[
                "cannot build for wasm32-unknown-unknown yet",
                "type `rustup target add wasm32-unknown-unknown`",
            ],
        );
    }
}

#[test]
fn a_crate_that_can_be_no_policy_is_explained() {
    if !can_build() {
        return;
    }
    let build = |manifest: &str| with_manifest(manifest).say("build mine");
    let plain = "[package]\nname = 'mine'\nversion = '0.1.0'\nedition = '2024'\n";
    build(plain).says(
        1,
        &["mine makes no module: `[lib]` of its Cargo.toml needs crate-type = [\"rlib\", \"cdylib\"]"],
    );
    build(&format!("{plain}[lib]\ncrate-type = ['cdylib']\n")).says(
        1,
        &[
            "mine makes no policy: ",
            "to fix it: with the SDK, `export!",
        ],
    );
    build("[workspace]\nmembers = []\n").says(
        2,
        &["has no [package]: name the folder of the policy's own crate"],
    );
    build("[package\n").says(2, &["Cargo.toml:1:"]);
    build("[package]\nname = 'mine'\nversion = '0.1.0'\n[dependencies]\nnowhere = { path = '../nowhere' }\n")
        .says(1, &["mine does not build"]);
}

/// An `npm` that does not get at its registry, and one that has installed nothing of use.
const NPM: [&str; 2] = ["#!/bin/sh\necho offline >&2\nexit 1\n", "#!/bin/sh\n"];

#[test]
fn without_node_or_its_toolchain_one_is_told_what_to_do() {
    let place = Place::new();
    place.say("new mine --language javascript").ended(0);
    built_with(&place, &[]).says(
        2,
        &[
            "npm is not there: install Node.js 18 or newer with npm",
            "apt-get install nodejs npm",
        ],
    );
    let [offline, idle] = NPM;
    let said = built_with(&place, &[("npm", offline)]);
    said.says(2, &["offline", "`npm ci` did not succeed in mine"]);
    built_with(&place, &[("npm", idle)])
        .says(2, &["type `npm install --save-dev componentize-qjs`"]);
    // What is installed already is not installed again.
    let tool = place.path("mine/node_modules/componentize-qjs");
    fs::create_dir_all(&tool).unwrap();
    fs::write(tool.join("cli.mjs"), "").unwrap();
    fs::write(place.path("mine/node_modules/.package-lock.json"), "").unwrap();
    built_with(&place, &[("npm", offline)]).says(2, &["node is not there: install Node.js 18"]);
    fs::remove_file(place.path("mine/package-lock.json")).unwrap();
    built_with(&place, &[]).says(2, &["has no package-lock.json: type `npm install` there"]);
    fs::remove_file(place.path("mine/world.wit")).unwrap();
    built_with(&place, &[]).says(2, &["mine/world.wit cannot be read", "names the decisions"]);
    fs::remove_file(place.path("mine/policy.js")).unwrap();
    built_with(&place, &[]).says(
        2,
        &["mine/policy.js is not there", "`main` in package.json"],
    );
    place.write("mine/package.json", "{");
    built_with(&place, &[]).says(2, &["mine/package.json: ", "line 1"]);
}

/// A `python3` without its module venv, and one whose `pip` does not get at its index.
const PYTHON: [&str; 2] = [
    "#!/bin/sh\necho 'ensurepip is not available'\nexit 1\n",
    "#!/bin/sh\nb=build/python/bin\n/bin/mkdir -p $b\nprintf '#!/bin/sh\\nexit 1\\n' > $b/python\n\
     /bin/chmod +x $b/python\n",
];

#[test]
fn without_python_or_its_toolchain_one_is_told_what_to_do() {
    let place = Place::new();
    place.say("new mine --language python").ended(0);
    let install = "install Python 3.10 or newer with its venv module, as with `apt-get install";
    built_with(&place, &[]).says(2, &["python3 is not there: ", install]);
    let [lacking, offline] = PYTHON;
    built_with(&place, &[("python3", lacking)]).says(
        2,
        &[
            "python3 makes no virtual environment: ",
            install,
            "ensurepip is not available",
        ],
    );
    built_with(&place, &[("python3", offline)]).says(
        2,
        &["`pip install` did not succeed for mine/requirements.txt"],
    );
    // What is installed already is not installed again.
    let wanted = fs::read(place.path("mine/requirements.txt")).unwrap();
    place.write("mine/build/python/requirements.txt", wanted);
    built_with(&place, &[]).says(2, &["add a line such as `componentize-py=="]);
    fs::remove_file(place.path("mine/requirements.txt")).unwrap();
    built_with(&place, &[]).says(2, &["mine/requirements.txt cannot be read: it names"]);
    place.write("mine/pyproject.toml", "[project]\n");
    built_with(&place, &[]).says(2, &["mine/pyproject.toml has no name"]);
    place.write("mine/Cargo.toml", "");
    built_with(&place, &[]).says(
        2,
        &["mine has Cargo.toml and pyproject.toml: a policy is in"],
    );
}

/// A `python3` that makes an environment, whose `pip` installs the toolchain, and whose Python says which program it is given.
const PYTHON_WITH_PIP: &str = r#"#!/bin/sh
b=build/python/bin
/bin/mkdir -p $b
/bin/cat > $b/python <<'END'
#!/bin/sh
case $2 in
pip) : > "${0%/*}/componentize-py" ;;
-c) ;;
*) echo "$0 runs $1" >&2; exit 1 ;;
esac
END
/bin/chmod +x $b/python
"#;

#[test]
fn a_folder_in_python_builds_under_another_name_and_after_an_upgrade_of_python() {
    const FAILS: &str = "#!/bin/sh\nexit 1\n";
    let place = Place::new();
    place.say("new mine --language python").ended(0);
    let runs_its_own = |policy: &str, python: &str| {
        let said = built_in(policy, &place, &[("python3", python)]);
        said.says(1, &[&format!("{policy} does not build\n")]);
        let bin = fs::canonicalize(place.path(policy)).unwrap();
        let bin = bin.join("build/python/bin").display().to_string();
        let runs = format!("{bin}/python runs {bin}/componentize-py\n");
        assert!(said.err.contains(&runs), "{runs}not in\n{}", said.err);
    };
    runs_its_own("mine", PYTHON_WITH_PIP);
    fs::rename(place.path("mine"), place.path("moved")).unwrap();
    // No environment is made where there is one.
    runs_its_own("moved", FAILS);
    let python = "moved/build/python/bin/python";
    // One of another version does not find what was installed.
    place.write(python, FAILS);
    runs_its_own("moved", PYTHON_WITH_PIP);
    fs::remove_file(place.path(python)).unwrap();
    runs_its_own("moved", PYTHON_WITH_PIP);
}
