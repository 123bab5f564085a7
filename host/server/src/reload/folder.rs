//! What the policy folder offers, from one listing to the next.
//!
//! [`Folder`] is told what each look at the folder found and says what may be acted on: a policy,
//! its sidecar included, that has stayed as it is for long enough, or one that is gone. It reads
//! nothing itself; `listing` does.
//!
//! # Invariants
//! 1. Nothing is offered or withdrawn on a single listing, and nothing before it has stayed
//!    unchanged for the settle time (`a_file_that_grows_is_offered_once_it_stays`,
//!    `a_file_is_gone_after_two_listings_without_it`).
//! 2. A folder that cannot be listed, or that an empty one took the place of, changes nothing
//!    (`a_folder_that_vanishes_changes_nothing`).
//! 3. What was offered is not offered again before it changes
//!    (`what_was_offered_is_not_offered_again`).
//!
//! # Bounds
//! [`POLICIES_MAX`] policies. What is left out, for that or another reason, is said.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pointsman_core::Micros;

#[cfg(test)]
mod tests;

/// Policies that a folder may offer; further ones are left out.
pub(crate) const POLICIES_MAX: usize = 64;

/// Bytes of a policy's name, which ends up in labels, headers and log lines.
const NAME_BYTES_MAX: usize = 64;

/// A point in time as file systems tell it: seconds, nanoseconds.
pub(crate) type FileTime = (i64, i64);

/// A file as it was at one look. Equal stamps: it has not been touched.
///
/// There is no inode in it: some network file systems make one up at each look. A file moved
/// over another shows in the time of its last status change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Where it really is, links resolved.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) modified: FileTime,
    pub(crate) changed: FileTime,
}

/// What stands behind a name in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// A regular file.
    File(Stamp),
    /// A folder, pipe or device.
    NotAFile,
    /// Nothing that can be looked at, such as a link that leads nowhere. Not the same as gone.
    Unreadable(String),
}

/// Which folder it is, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolderId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// One look at the folder.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) folder: FolderId,
    /// By file name.
    pub(crate) files: BTreeMap<String, Sight>,
}

/// Why a folder was not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unlisted {
    Missing,
    Unreadable(String),
}

/// A policy's files, read and acted on together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) wasm: Sight,
    pub(crate) sidecar: Option<Sight>,
}

/// What may be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A policy is there, new or different.
    Offered { name: String, pair: Pair },
    /// A policy is gone.
    Withdrawn { name: String },
}

/// How the folder stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FolderState {
    /// None is configured.
    #[default]
    None,
    /// It is listed.
    Watched,
    /// It is not there; waited for. What was in it stays in force.
    Missing,
    /// An empty folder is where one with policies was, as when it is unmounted. What was in that
    /// stays in force.
    Emptied,
    /// It cannot be listed. What was in it stays in force.
    Unreadable(String),
}

/// A file that is not considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name in the folder.
    pub file: String,
    /// Why.
    pub why: &'static str,
}

/// What the folder offers.
#[derive(Debug)]
pub(crate) struct Folder {
    // Immutable.
    settle: Micros,
    // Owned state.
    state: FolderState,
    /// The folder of the last good listing.
    id: Option<FolderId>,
    offers: BTreeMap<String, Offer>,
    left_out: Vec<LeftOut>,
}

/// One policy as it was last seen.
#[derive(Debug)]
struct Offer {
    /// Absent: not there.
    seen: Option<Pair>,
    since: Micros,
    /// Good listings that showed it so.
    listings: u32,
    /// As it was when it was last acted on.
    taken: Option<Pair>,
}

// === impl Folder ===

impl Folder {
    /// A folder whose files must stay unchanged for `settle`.
    pub(crate) fn new(settle: Micros) -> Self {
        Self {
            settle,
            state: FolderState::None,
            id: None,
            offers: BTreeMap::new(),
            left_out: Vec::new(),
        }
    }

    pub(crate) fn state(&self) -> &FolderState {
        &self.state
    }

    /// The folder of the last good listing.
    pub(crate) fn id(&self) -> Option<FolderId> {
        self.id
    }

    /// In an earlier life the folder was `id`, with policies of these `names` in it: where there
    /// is an empty one instead, it is not mounted, and where one is missing, it is gone.
    pub(crate) fn expect(
        &mut self,
        id: FolderId,
        names: impl Iterator<Item = String>,
        now: Micros,
    ) {
        self.id = Some(id);
        let offers = names.map(|name| (name, Offer::absent(now)));
        self.offers.extend(offers.take(POLICIES_MAX));
    }

    /// What was offered as `name` may be offered again.
    pub(crate) fn retake(&mut self, name: &str) {
        if let Some(offer) = self.offers.get_mut(name) {
            offer.taken = None;
        }
    }

    /// What is not considered, in the order of names.
    pub(crate) fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Takes note of a look at the folder at `now`.
    pub(crate) fn observe(&mut self, looked: Result<Listing, Unlisted>, now: Micros) {
        let listing = match looked {
            Ok(listing) => listing,
            Err(Unlisted::Missing) => return self.state = FolderState::Missing,
            Err(Unlisted::Unreadable(why)) => return self.state = FolderState::Unreadable(why),
        };
        let (mut pairs, left_out) = pair_up(listing.files);
        let replaced = self.id.is_some_and(|id| id != listing.folder);
        if replaced && pairs.is_empty() && !self.offers.is_empty() {
            return self.state = FolderState::Emptied;
        }
        self.state = FolderState::Watched;
        self.id = Some(listing.folder);
        self.left_out = left_out;
        for (name, offer) in &mut self.offers {
            offer.see(pairs.remove(name), now);
        }
        for (name, pair) in pairs {
            if self.offers.len() < POLICIES_MAX {
                self.offers.insert(name, Offer::new(pair, now));
            } else {
                self.left_out.push(LeftOut {
                    file: format!("{name}.wasm"),
                    why: "there are more policies in the folder than are looked at",
                });
            }
        }
    }

    /// What has settled at `now` and was not acted on.
    pub(crate) fn due(&mut self, now: Micros) -> Vec<Change> {
        let settle = self.settle;
        self.take(|offer| offer.listings >= 2 && now.since(offer.since) >= settle)
    }

    /// Everything as it was last seen, settled or not: a host that starts does not wait. What is
    /// in a folder that was not listed is not known.
    pub(crate) fn all(&mut self) -> Vec<Change> {
        let listed = self.state == FolderState::Watched;
        self.take(|_| listed)
    }

    fn take(&mut self, ripe: impl Fn(&Offer) -> bool) -> Vec<Change> {
        let mut changes = Vec::new();
        self.offers.retain(|name, offer| {
            if !ripe(offer) {
                return true;
            }
            let name = name.clone();
            let Some(pair) = &offer.seen else {
                changes.push(Change::Withdrawn { name });
                return false;
            };
            if !offer.is_taken() {
                let pair = pair.clone();
                offer.taken = Some(pair.clone());
                changes.push(Change::Offered { name, pair });
            }
            true
        });
        changes
    }

    /// What was offered as `name` was not what was there: it has to settle again.
    pub(crate) fn unsettle(&mut self, name: &str, now: Micros) {
        if let Some(offer) = self.offers.get_mut(name) {
            offer.taken = None;
            offer.since = now;
            offer.listings = 0;
        }
    }

    /// When to look again so that what settles is noticed; absent: nothing does.
    pub(crate) fn settles_at(&self) -> Option<Micros> {
        let unsettled = self.offers.values().filter(|offer| !offer.is_taken());
        unsettled
            .map(|offer| offer.since.after(self.settle))
            .min()
            .filter(|_| self.state == FolderState::Watched)
    }
}

impl Offer {
    fn new(pair: Pair, now: Micros) -> Self {
        Self {
            seen: Some(pair),
            since: now,
            listings: 1,
            taken: None,
        }
    }

    /// One that was there in an earlier life.
    fn absent(now: Micros) -> Self {
        Self {
            seen: None,
            since: now,
            listings: 0,
            taken: None,
        }
    }

    fn see(&mut self, seen: Option<Pair>, now: Micros) {
        if self.seen == seen {
            self.listings = self.listings.saturating_add(1);
        } else {
            self.seen = seen;
            self.since = now;
            self.listings = 1;
        }
    }

    fn is_taken(&self) -> bool {
        self.seen.is_some() && self.seen == self.taken
    }
}

// === Names ===

/// Policies with their sidecars, and what is neither.
fn pair_up(mut files: BTreeMap<String, Sight>) -> (BTreeMap<String, Pair>, Vec<LeftOut>) {
    let mut pairs = BTreeMap::new();
    let mut left_out = Vec::new();
    files.retain(|file, _| !is_temporary(file));
    let policies: Vec<String> = files
        .keys()
        .filter_map(|file| file.strip_suffix(".wasm").map(str::to_owned))
        .collect();
    for name in policies {
        let file = format!("{name}.wasm");
        let sidecar = files.remove(&format!("{name}.toml"));
        let Some(wasm) = files.remove(&file) else {
            continue;
        };
        if is_name(&name) {
            pairs.insert(name, Pair { wasm, sidecar });
        } else {
            let why = "a policy's name has at most 64 letters, digits, '-', '_' and '.'";
            left_out.push(LeftOut { file, why });
        }
    }
    let sidecars = files.into_keys().filter(|file| file.ends_with(".toml"));
    left_out.extend(sidecars.map(|file| LeftOut {
        file,
        why: "settings of a policy that is not in the folder",
    }));
    left_out.truncate(POLICIES_MAX);
    (pairs, left_out)
}

/// What editors and copying tools leave while they work. Names that end otherwise than a policy or
/// a sidecar are not looked at anyway.
fn is_temporary(file: &str) -> bool {
    file.starts_with(['.', '#', '~'])
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed)
}
