//! Policies in JavaScript, from `policy new` to a component. In Python it is the same code, whose slow part
//! is tested in `running/authors.rs` and `across_languages.rs`.

use std::fs;

use super::place::Place;
use super::said::Said;

/// The entries in a folder of compiled code.
fn entries(place: &Place) -> usize {
    let entries = fs::read_dir(place.path("cache/pointsman/code"));
    entries.map_or(0, Iterator::count)
}

#[test]
fn a_new_policy_in_javascript_is_built_once_after_a_change_and_its_code_is_kept() {
    let place = Place::new();
    place
        .say("new mine --language javascript")
        .says(0, &["cd mine && pointsman policy build"]);
    let say = |line: &str| {
        let mut command = place.command();
        command.env("XDG_CACHE_HOME", place.path("cache"));
        Said::of(command.args(line.split_whitespace()))
    };
    let manifest = place.text("mine/package.json");
    let facts = "\"license\": \"MIT\", \"author\": \"Me <me@b.c>\", \"private\"";
    place.write("mine/package.json", manifest.replace("\"private\"", facts));

    say("build mine").says(0, &["mine/mine.wasm: "]);
    assert_eq!(entries(&place), 1, "the code of what was built is kept");
    let component = place.path("mine/build/component.wasm");
    let changed = || fs::metadata(&component).unwrap().modified().unwrap();
    let first = changed();
    say("check mine").says(
        0,
        &[
            "mine/mine.wasm: ",
            "bytes\nmine/mine.wasm\n",
            "name      mine 0.1.0\n",
            "good: a server takes it\n",
        ],
    );
    say("test mine --properties --runs 1 --events 20").says(0, &["6 passed"]);
    say("inspect mine/mine.wasm").says(
        0,
        &[
            "name         mine\n",
            "version      0.1.0\n",
            "authors      Me <me@b.c>\n",
            "licenses     MIT\n",
        ],
    );
    assert_eq!(changed(), first, "it was made anew without a change");
    assert_eq!(entries(&place), 1);

    // A syntax error is told as the toolchain tells it, and nothing is written over.
    let good = fs::read(place.path("mine/mine.wasm")).unwrap();
    let text = place.text("mine/policy.js");
    place.write("mine/policy.js", format!("{text}let x = ;\n"));
    let said = say("build mine");
    said.says(1, &["mine does not build\n"]);
    let line = text.lines().count() + 1;
    for part in [
        "unexpected token in expression: ';'",
        &format!("/policy.js:{line}:"),
    ] {
        assert!(said.err.contains(part), "{}", said.err);
    }
    assert_eq!(fs::read(place.path("mine/mine.wasm")).unwrap(), good);
    place.write("mine/policy.js", &text);
    say("build mine").ended(0);
    assert_ne!(changed(), first);
}

#[test]
fn code_is_taken_from_the_cache_and_where_there_can_be_none_it_is_compiled() {
    let place = Place::new();
    let wasm = pointsman_testkit::component::component_path("round-robin");
    fs::copy(wasm, place.path("mine.wasm")).unwrap();
    let check = |cache: &str| {
        let mut command = place.command();
        command.env("XDG_CACHE_HOME", place.path(cache));
        Said::of(command.args(["check", "mine.wasm"])).says(0, &["good: "]);
    };
    check("cache");
    let folder = place.path("cache/pointsman/code");
    let entry = fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
    let facts = || fs::metadata(entry.path()).unwrap().modified().unwrap();
    let first = facts();
    check("cache");
    assert_eq!(
        (facts(), entries(&place)),
        (first, 1),
        "it was compiled again"
    );
    // Damage is seen, so it was looked at: the entry is made anew.
    fs::write(entry.path(), "damage").unwrap();
    check("cache");
    assert!(fs::metadata(entry.path()).unwrap().len() > 100_000);
    place.write("file", "");
    check("file");
}
