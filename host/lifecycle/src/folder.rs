//! The policies that the folder offers, from one listing to the next.
//!
//! [`Folder`] is given each listing and names the policies to act on: a policy whose files, its
//! sidecar included, have stayed the same for long enough, or one that is gone. `listing` reads the
//! disk.
//!
//! # Invariants
//! 1. Nothing is offered or withdrawn on a single listing, and nothing before it has stayed
//!    unchanged for the settle time (`a_file_that_grows_is_offered_once_it_stays`,
//!    `a_file_is_gone_after_two_listings_without_it`).
//! 2. A folder that cannot be listed, or whose place an empty one took, changes nothing
//!    (`a_folder_that_vanishes_changes_nothing`).
//! 3. An offered policy is not offered again before it changes
//!    (`what_was_offered_is_not_offered_again`).
//!
//! # Bounds
//! [`POLICIES_MAX`] policies. Files that are left out are reported.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use pointsman_files::FileStamp;
use pointsman_interface::Micros;
use pointsman_policy::{POLICY_NAME, is_policy_name};
use pointsman_state::FolderId;

#[cfg(test)]
mod tests;

/// Policies that a folder may offer; further ones are left out.
pub(crate) const POLICIES_MAX: usize = 64;

/// A regular file behind a name in the folder, or the reason why there is none to read, such as a
/// link that leads nowhere. Such a name is not the same as one that is gone.
pub(crate) type Sight = Result<FileStamp, String>;

/// The result of one look at the folder.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) folder: FolderId,
    /// Files by their names.
    pub(crate) files: BTreeMap<String, Sight>,
}

/// A policy's files, read and acted on together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) wasm: Sight,
    pub(crate) sidecar: Option<Sight>,
}

/// The state of the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FolderState {
    /// No folder is configured.
    #[default]
    None,
    /// The folder is listed.
    Watched,
    /// The folder is not there and is waited for. Its policies stay in force.
    Missing,
    /// An empty folder is where one with policies was, as when it is unmounted. Those policies
    /// stay in force.
    Emptied,
    /// The folder cannot be listed, for that reason. Its policies stay in force.
    Unreadable(String),
}

/// A file that is not considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub file: String,
    pub why: &'static str,
}

/// The policy folder, from one listing to the next.
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
    /// The policy's files at the last look; absent: the policy is not there.
    seen: Option<Pair>,
    since: Micros,
    /// Number of good listings in a row that showed these files.
    listings: u32,
    /// The files that were last acted on; absent: none.
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
    pub(crate) fn id(&self) -> Option<&FolderId> {
        self.id.as_ref()
    }

    /// Remembers from an earlier life that the folder was `id` and had policies of these `names`.
    /// An empty folder in its place is not mounted, and a missing policy is gone.
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

    /// Lets `name` be offered again.
    pub(crate) fn retake(&mut self, name: &str) {
        if let Some(offer) = self.offers.get_mut(name) {
            offer.taken = None;
        }
    }

    /// The files that are not considered, in the order of their names.
    pub(crate) fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Takes note of a look at the folder at `now`.
    pub(crate) fn observe(&mut self, looked: io::Result<Listing>, now: Micros) {
        let listing = match looked {
            Ok(listing) => listing,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self.state = FolderState::Missing;
            }
            Err(error) => return self.state = FolderState::Unreadable(error.to_string()),
        };
        let (mut pairs, left_out) = pair_up(listing.files);
        let replaced = self.id.as_ref().is_some_and(|id| *id != listing.folder);
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

    /// The policies whose files have changed, settled at `now` and were not acted on, by name;
    /// without files: the policy is gone.
    pub(crate) fn due(&mut self, now: Micros) -> Vec<(String, Option<Pair>)> {
        let settle = self.settle;
        self.take(|offer| offer.listings >= 2 && now.since(offer.since) >= settle)
    }

    /// The folder as it was last seen, settled or not: a host that starts does not wait. Nothing is
    /// known of a folder that was not listed.
    pub(crate) fn all(&mut self) -> Vec<(String, Option<Pair>)> {
        let listed = self.state == FolderState::Watched;
        self.take(|_| listed)
    }

    fn take(&mut self, ripe: impl Fn(&Offer) -> bool) -> Vec<(String, Option<Pair>)> {
        let mut changes = Vec::new();
        self.offers.retain(|name, offer| {
            if !ripe(offer) {
                return true;
            }
            if !offer.is_taken() {
                offer.taken.clone_from(&offer.seen);
                changes.push((name.clone(), offer.seen.clone()));
            }
            offer.seen.is_some()
        });
        changes
    }

    /// Lets `name` settle again: the files have changed since the offer.
    pub(crate) fn unsettle(&mut self, name: &str, now: Micros) {
        if let Some(offer) = self.offers.get_mut(name) {
            offer.taken = None;
            offer.since = now;
            offer.listings = 0;
        }
    }

    /// The time of the next look at which a change may have settled; absent: none will.
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

    /// A policy that was there in an earlier life.
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

/// Policies with their sidecars, and the files that are neither.
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
        if is_policy_name(&name) {
            pairs.insert(name, Pair { wasm, sidecar });
        } else {
            left_out.push(LeftOut {
                file,
                why: POLICY_NAME,
            });
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

/// True for the files that editors and copying tools leave while they work. Names with another
/// ending than that of a policy or a sidecar are not looked at anyway.
fn is_temporary(file: &str) -> bool {
    file.starts_with(['.', '#', '~'])
}
