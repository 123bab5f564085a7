//! The servers that are to be there, as a file and its names tell.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::mpsc;
use std::time::SystemTime;

use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::*;

/// The roster of a file with these backends.
fn roster(backends: &str) -> Roster {
    let config = Config::of_text(backends).unwrap();
    Roster {
        flags: Flags::default(),
        lookup: Lookup::default(),
        wanted: wanted(&config.backends),
        attached: BTreeMap::new(),
        coming: BTreeMap::new(),
        read: None,
        seen: None,
        unusable: None,
        refused: BTreeMap::new(),
    }
}

/// A file with this text, in a folder of its own, and the roster that follows it.
fn following(text: &str) -> (TempDir, PathBuf, Roster) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pointsman.toml");
    fs::write(&path, text).unwrap();
    let mut roster = roster(text);
    roster.flags.config = Some(path.clone());
    (folder, path, roster)
}

/// The executors that are to be there after another look at the file.
async fn look(roster: &mut Roster) -> Vec<String> {
    roster.reread().await;
    roster.desired().into_keys().collect()
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_used() {
    let one = "[[backends]]\nurl = 'http://one:80'\n";
    let (_folder, path, mut roster) = following(one);
    // Emptied, and not written yet.
    for text in ["", one, ""] {
        fs::write(&path, text).unwrap();
        assert_eq!(look(&mut roster).await, ["one:80"]);
    }
    let two = format!("{one}[[backends]]\nurl = 'http://two:80'\n");
    fs::write(&path, two).unwrap();
    assert_eq!(look(&mut roster).await, ["one:80"]);
    assert_eq!(look(&mut roster).await, ["one:80", "two:80"]);
    // It is meant so.
    fs::write(&path, "").unwrap();
    assert_eq!(look(&mut roster).await, ["one:80", "two:80"]);
    assert!(look(&mut roster).await.is_empty());
}

#[tokio::test]
async fn a_file_that_cannot_be_used_yet_is_tried_until_it_can() {
    let one = "[[backends]]\nurl = 'http://one:80'\n";
    let (folder, path, mut roster) = following(one);
    let two = "[[backends]]\nurl = 'http://two:80'\nkey-file = 'two.key'\n";
    fs::write(&path, two).unwrap();
    for _ in 0..3 {
        assert_eq!(look(&mut roster).await, ["one:80"]);
    }
    let (_, why) = roster.unusable.clone().unwrap();
    assert!(why.contains("two.key"), "{why}");
    fs::write(folder.path().join("two.key"), "secret").unwrap();
    assert_eq!(look(&mut roster).await, ["two:80"]);
    assert_eq!(roster.unusable, None);
}

/// Writes a file as tools do that give every file the same time.
fn write_dated(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    file.set_modified(time).unwrap();
}

/// The time of the last status change of a file.
fn changed(path: &Path) -> (i64, i64) {
    let found = fs::metadata(path).unwrap();
    (found.ctime(), found.ctime_nsec())
}

#[tokio::test]
async fn a_file_in_the_place_of_another_is_noticed_though_it_has_the_same_time_and_length() {
    let one = "[[backends]]\nurl = 'http://one:80'\n";
    let (folder, path, mut roster) = following(one);
    let at = |name: &str| folder.path().join(name);
    let lead_to = |name: &str| {
        symlink(name, at("link")).unwrap();
        fs::rename(at("link"), &path).unwrap();
    };
    write_dated(&at("1.toml"), one);
    write_dated(&at("2.toml"), &one.replace("one", "two"));
    lead_to("1.toml");
    for _ in 0..2 {
        assert_eq!(look(&mut roster).await, ["one:80"]);
    }
    lead_to("2.toml");
    assert_eq!(look(&mut roster).await, ["one:80"]);
    assert_eq!(look(&mut roster).await, ["two:80"]);

    // Moved to where the link leads.
    while !at("3.toml").exists() || changed(&at("3.toml")) == changed(&at("2.toml")) {
        write_dated(&at("3.toml"), &one.replace("one", "six"));
    }
    fs::rename(at("3.toml"), at("2.toml")).unwrap();
    assert_eq!(look(&mut roster).await, ["two:80"]);
    assert_eq!(look(&mut roster).await, ["six:80"]);
}

#[test]
fn a_file_is_loaded_on_a_thread_that_may_wait() {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let (_folder, path, mut roster) = following("");
        fs::write(&path, "[[backends]]\nurl = 'http://one:80'\n").unwrap();
        assert!(look(&mut roster).await.is_empty());
        // The only thread that may wait has something else to do.
        let (end, ended) = mpsc::channel::<()>();
        let other = task::spawn_blocking(move || ended.recv());
        let looked = timeout(Duration::ZERO, look(&mut roster)).await;
        assert!(looked.is_err(), "loaded on a thread of the runtime");
        drop(end);
        assert!(other.await.unwrap().is_err());
        assert_eq!(look(&mut roster).await, ["one:80"]);
    });
}

#[test]
fn a_name_stands_for_a_server_at_each_of_its_addresses() {
    let mut roster = roster(
        "[[backends]]\nurl = 'http://one:80'\n[[backends]]\nname = 'many'\nurl = 'http://svc:8000/v'\n\
         resolve = '5s'\ngroup = 3",
    );
    let names = |roster: &Roster| roster.desired().into_keys().collect::<Vec<_>>();
    assert_eq!(names(&roster), ["one:80"]);
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    roster.wanted[1].addresses = vec![address("10.0.0.1:8000"), address("[fd00::1]:8000")];
    let desired = roster.desired();
    let expected = [
        ("many/10.0.0.1:8000", "http://10.0.0.1:8000/v", 3),
        ("many/[fd00::1]:8000", "http://[fd00::1]:8000/v", 3),
        ("one:80", "http://one:80", 0),
    ];
    let found = desired.iter().map(|(name, backend)| {
        let url = backend.server.url.to_string();
        (name.as_str(), url, backend.terms.group)
    });
    let expected = expected.map(|(name, url, group)| (name, url.to_owned(), group));
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn a_name_without_an_address_stands_for_a_server_where_its_models_are_named() {
    let mut roster = roster(
        "[[backends]]\nname = 'many'\nurl = 'http://svc:8000'\nresolve = '5s'\nmodels = ['m']",
    );
    let names = |roster: &Roster| roster.desired().into_keys().collect::<Vec<_>>();
    assert_eq!(names(&roster), ["many"]);
    roster.wanted[0].addresses = vec!["10.0.0.1:8000".parse().unwrap()];
    assert_eq!(names(&roster), ["many/10.0.0.1:8000"]);
}

#[tokio::test]
async fn a_name_that_cannot_be_looked_up_keeps_its_addresses() {
    let mut roster = roster("[[backends]]\nurl = 'http://no.such.name.invalid:1'\nresolve = '5s'");
    roster.wanted[0].addresses = vec!["10.0.0.1:8000".parse().unwrap()];
    roster.resolve().await;
    assert_eq!(roster.desired().len(), 1);
    // Where its terms are written anew, too.
    let mut edited = roster.wanted[0].backend.clone();
    edited.terms.group = 3;
    roster.want(&[edited]);
    roster.resolve().await;
    let groups: Vec<_> = roster.desired().values().map(|it| it.terms.group).collect();
    assert_eq!(groups, [3]);
}
