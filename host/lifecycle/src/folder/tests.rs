//! Listings by script.

use std::path::PathBuf;

use super::*;

const SETTLE: Micros = Micros(200);

/// A file whose content and time are `version`.
fn file(version: u64) -> Sight {
    Ok(FileStamp {
        path: PathBuf::from("/policies"),
        bytes: version,
        modified: (0, 0),
        changed: (0, 0),
    })
}

fn listing_of(inode: u64, files: &[(&str, u64)]) -> io::Result<Listing> {
    let files = files.iter();
    Ok(Listing {
        folder: FolderId {
            path: PathBuf::from("/policies"),
            device: 1,
            inode,
        },
        files: files
            .map(|(name, version)| ((*name).to_owned(), file(*version)))
            .collect(),
    })
}

/// The changes due after a look at `now` that finds `files`: `+` offered, `-` withdrawn.
fn look(folder: &mut Folder, now: u64, files: &[(&str, u64)]) -> Vec<String> {
    folder.observe(listing_of(7, files), Micros(now));
    due(folder, now)
}

fn due(folder: &mut Folder, now: u64) -> Vec<String> {
    let changes = folder.due(Micros(now)).into_iter();
    changes
        .map(|(name, pair)| match pair.map(|pair| pair.sidecar) {
            Some(Some(_)) => format!("+{name}+settings"),
            Some(None) => format!("+{name}"),
            None => format!("-{name}"),
        })
        .collect()
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_file_that_grows_is_offered_once_it_stays() {
    let mut folder = Folder::new(SETTLE);
    assert_eq!(look(&mut folder, 0, &[("a.wasm", 1)]), NOTHING);
    assert_eq!(look(&mut folder, 150, &[("a.wasm", 2)]), NOTHING);
    assert_eq!(folder.settles_at(), Some(Micros(350)));
    assert_eq!(look(&mut folder, 349, &[("a.wasm", 2)]), NOTHING);
    assert_eq!(look(&mut folder, 350, &[("a.wasm", 2)]), ["+a"]);
    assert_eq!(folder.settles_at(), None);
}

#[test]
fn one_listing_is_not_enough_however_long_ago() {
    let mut folder = Folder::new(SETTLE);
    folder.observe(listing_of(7, &[("a.wasm", 1)]), Micros(0));
    assert_eq!(due(&mut folder, 1000), NOTHING);
    assert_eq!(look(&mut folder, 1000, &[("a.wasm", 1)]), ["+a"]);
}

#[test]
fn what_was_offered_is_not_offered_again() {
    let mut folder = Folder::new(SETTLE);
    let files = [("a.wasm", 1)];
    look(&mut folder, 0, &files);
    assert_eq!(look(&mut folder, 200, &files), ["+a"]);
    assert_eq!(look(&mut folder, 400, &files), NOTHING);
    look(&mut folder, 500, &[("a.wasm", 2)]);
    assert_eq!(look(&mut folder, 700, &[("a.wasm", 2)]), ["+a"]);
}

#[test]
fn a_change_that_is_taken_back_before_it_settles_was_none() {
    let mut folder = Folder::new(SETTLE);
    look(&mut folder, 0, &[("a.wasm", 1)]);
    look(&mut folder, 200, &[("a.wasm", 1)]);
    look(&mut folder, 300, &[("a.wasm", 2)]);
    look(&mut folder, 310, &[("a.wasm", 1)]);
    assert_eq!(look(&mut folder, 900, &[("a.wasm", 1)]), NOTHING);
}

#[test]
fn a_sidecar_settles_with_its_policy() {
    let mut folder = Folder::new(SETTLE);
    look(&mut folder, 0, &[("a.wasm", 1)]);
    look(&mut folder, 200, &[("a.wasm", 1)]);
    let with = [("a.toml", 1), ("a.wasm", 1)];
    assert_eq!(look(&mut folder, 300, &with), NOTHING);
    assert_eq!(look(&mut folder, 500, &with), ["+a+settings"]);
    look(&mut folder, 600, &[("a.wasm", 1)]);
    assert_eq!(look(&mut folder, 800, &[("a.wasm", 1)]), ["+a"]);
}

#[test]
fn a_file_is_gone_after_two_listings_without_it() {
    let mut folder = Folder::new(SETTLE);
    look(&mut folder, 0, &[("a.wasm", 1)]);
    look(&mut folder, 200, &[("a.wasm", 1)]);
    assert_eq!(look(&mut folder, 1000, &[]), NOTHING);
    assert_eq!(look(&mut folder, 1200, &[]), ["-a"]);
    assert_eq!(look(&mut folder, 1400, &[]), NOTHING);
}

#[test]
fn a_file_that_is_replaced_by_way_of_its_absence_is_not_gone() {
    let mut folder = Folder::new(SETTLE);
    look(&mut folder, 0, &[("a.wasm", 1)]);
    look(&mut folder, 200, &[("a.wasm", 1)]);
    assert_eq!(look(&mut folder, 1000, &[]), NOTHING);
    assert_eq!(look(&mut folder, 1100, &[("a.wasm", 2)]), NOTHING);
    assert_eq!(look(&mut folder, 1300, &[("a.wasm", 2)]), ["+a"]);
}

#[test]
fn a_folder_that_vanishes_changes_nothing() {
    let mut folder = Folder::new(SETTLE);
    let files = [("a.wasm", 1)];
    look(&mut folder, 0, &files);
    look(&mut folder, 200, &files);
    let denied = ErrorKind::PermissionDenied;
    let unreadable = FolderState::Unreadable(io::Error::from(denied).to_string());
    for (now, error, state) in [
        (300, ErrorKind::NotFound, FolderState::Missing),
        (600, denied, unreadable),
    ] {
        folder.observe(Err(error.into()), Micros(now));
        folder.observe(Err(error.into()), Micros(now + 250));
        assert_eq!(due(&mut folder, now + 250), NOTHING);
        assert_eq!(*folder.state(), state);
        assert_eq!(folder.settles_at(), None);
    }
    // The empty folder that was mounted over, then the mounted one again.
    for now in [900, 1200] {
        folder.observe(listing_of(8, &[]), Micros(now));
        assert_eq!(due(&mut folder, now), NOTHING);
        assert_eq!(*folder.state(), FolderState::Emptied);
    }
    assert_eq!(look(&mut folder, 1500, &files), NOTHING);
    assert_eq!(*folder.state(), FolderState::Watched);
    // It is the same folder that is empty now.
    look(&mut folder, 1600, &[]);
    assert_eq!(look(&mut folder, 1800, &[]), ["-a"]);
}

#[test]
fn another_folder_in_its_place_counts_if_there_is_something_in_it() {
    let mut folder = Folder::new(SETTLE);
    look(&mut folder, 0, &[("a.wasm", 1)]);
    look(&mut folder, 200, &[("a.wasm", 1)]);
    folder.observe(listing_of(8, &[("b.wasm", 1)]), Micros(300));
    folder.observe(listing_of(8, &[("b.wasm", 1)]), Micros(500));
    assert_eq!(due(&mut folder, 500), ["-a", "+b"]);
}

#[test]
fn at_the_start_nothing_is_waited_for() {
    let mut folder = Folder::new(SETTLE);
    folder.observe(listing_of(7, &[("a.wasm", 1)]), Micros(0));
    assert_eq!(folder.all().len(), 1);
    assert_eq!(look(&mut folder, 200, &[("a.wasm", 1)]), NOTHING);
}

#[test]
fn what_could_not_be_read_settles_again() {
    let mut folder = Folder::new(SETTLE);
    look(&mut folder, 0, &[("a.wasm", 1)]);
    assert_eq!(look(&mut folder, 200, &[("a.wasm", 1)]), ["+a"]);
    folder.unsettle("a", Micros(200));
    assert_eq!(look(&mut folder, 300, &[("a.wasm", 1)]), NOTHING);
    assert_eq!(look(&mut folder, 400, &[("a.wasm", 1)]), ["+a"]);
    // It is withdrawn even where it is gone by then.
    folder.unsettle("a", Micros(400));
    look(&mut folder, 500, &[]);
    assert_eq!(look(&mut folder, 700, &[]), ["-a"]);
}

#[test]
fn temporary_files_are_not_looked_at_and_strays_are_said() {
    let mut folder = Folder::new(Micros(0));
    let long = format!("{}.wasm", "x".repeat(65));
    let files = [
        (".a.wasm.swp", 1),
        (".hidden.wasm", 1),
        ("#a.wasm", 1),
        ("a b.wasm", 1),
        ("a.wasm", 1),
        ("lonely.toml", 1),
        (long.as_str(), 1),
        ("~a.wasm", 1),
    ];
    look(&mut folder, 0, &files);
    assert_eq!(look(&mut folder, 0, &files), ["+a"]);
    let left_out: Vec<&str> = folder
        .left_out()
        .iter()
        .map(|out| out.file.as_str())
        .collect();
    assert_eq!(left_out, ["a b.wasm", &long, "lonely.toml"]);
}

#[test]
fn policies_past_the_bound_are_left_out() {
    let mut folder = Folder::new(Micros(0));
    let names: Vec<String> = (0..=POLICIES_MAX)
        .map(|n| format!("p{n:02}.wasm"))
        .collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    look(&mut folder, 0, &files);
    assert_eq!(look(&mut folder, 0, &files).len(), POLICIES_MAX);
    assert_eq!(folder.left_out().len(), 1);
    assert_eq!(folder.left_out()[0].file, "p64.wasm");
}
